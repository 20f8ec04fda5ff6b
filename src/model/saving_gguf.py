"""Writing a model as a GGUF file, which llama.cpp and other programs read too.

Matrices stay as they are, or become blocks of q8_0 or q4_0, by the same rule as for `load_model`;
vectors become float32. The rows of q and k are put into the order of the architecture. The file
appears whole or not at all.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .. import ml
from ..checkpoint.gguf import nbytes_of
from ..checkpoint.gguf_config import ARCHITECTURES, GGUF_KEYS, GRANITE_SCALES
from ..checkpoint.gguf_writer import TYPE_NUMBERS, GgufWriter, NewValue
from ..checkpoint.names import rows_of
from ..checkpoint.safetensors_writer import reordered
from ..tokenizer import TokenizerNotFoundError
from ..tokenizer.gguf_export import gguf_tokenizer_keys
from .args import LinearRopeScaling, ModelArgs
from .errors import ModelConfigError, SaveError, mismatch
from .files import CHAT_TEMPLATE_KEY, ModelFiles
from .quantization import (
    QuantizationProgress,
    dtype_in_model,
    quantization_of,
    quantize_weights,
    sources_of,
)
from .rope import rope_factors
from .saving import check_new, check_room, new_path, plain_model

_FILE_TYPES = {"float32": 0, "float16": 1, "q4_0": 2, "q8_0": 7, "bfloat16": 32}


def save_gguf(
    path: str | Path | None,
    target: str | Path,
    quantize: str | None = None,
    *,
    rope_scaling_factor: float | None = None,
    chat_template: str | None = None,
    progress: QuantizationProgress | None = None,
) -> int:
    """Write a plain model as one new GGUF file; return the bytes of the weights.

    No more than one weight is in memory at a time. Raise SaveError where the file is there already,
    or cannot be written; nothing of it is left then. Raise ModelConfigError where the format cannot
    hold the model.
    """
    target, dtype = Path(target), None if quantize is None else quantization_of(quantize)
    check_new(target, "file")
    with plain_model(path, rope_scaling_factor) as (files, checkpoint, args):
        name = _architecture(files, args)
        names = {row.name: row.gguf for row in rows_of(args.n_layers, args.parts)}
        sources = sources_of(checkpoint.tensors, dtype)
        shapes = {  # with what each weight becomes, vectors float32
            names[key]: (_kind(key, dtype, checkpoint.dtypes, shape), shape)
            for key, shape in args.tensor_shapes.items()
            if key in sources
        }
        factors = rope_factors(args)
        if factors is not None:
            shapes["rope_freqs.weight"] = (ml.float32, factors.shape)
        keys = _keys(name, args, dtype)
        for place in dict.fromkeys((files.directory.path, files.top)):
            with contextlib.suppress(TokenizerNotFoundError):
                keys |= gguf_tokenizer_keys(place, args.vocab_size)
                break
        else:
            keys["tokenizer.ggml.model"] = "no_vocab"
        if chat_template is not None:
            keys[CHAT_TEMPLATE_KEY] = chat_template
        check_room(target, nbytes := sum(nbytes_of(*each) for each in shapes.values()))

        in_halves = args.rope_pairs == "halves" and ARCHITECTURES[name] == "interleaved"
        rotated = {  # in other layers the order of rows does not matter
            f"layers.{layer}.attention.{matrix}"
            for layer in set(range(args.n_layers if in_halves else 0)) - {*args.layers_without_rope}
            for matrix in ("wq", "wk")
        }

        def prepared(key: str, weight: ml.Tensor) -> ml.Tensor:
            if key.rpartition(".")[0] in rotated:
                weight = reordered(weight, args.head_dim, "interleaved")
            return weight.to(ml.float32) if len(weight.shape) == 1 else weight

        with new_path(target, "file") as unfinished, GgufWriter(unfinished, keys, shapes) as writer:
            for key, weight in quantize_weights(checkpoint.tensors, dtype, progress, prepared):
                if key in names:
                    writer.write(names[key], weight)
            if factors is not None:
                writer.write("rope_freqs.weight", factors)
        return nbytes


def _architecture(files: ModelFiles, args: ModelArgs) -> str:
    """Return the name of the architecture; refuse what only `config.json` can say."""
    kind = str(files.given.get("model_type", "llama"))
    name = "llama" if kind == "mistral" else kind
    every = 4 if name == "smollm3" else args.n_layers + 1  # no key of the file says it
    if args.layers_without_rope != tuple(range(every - 1, args.n_layers, every)):
        rule = "every fourth layer" if name == "smollm3" else "no layer"
        layers = ", ".join(map(str, args.layers_without_rope)) or "none"
        rule += f" without RoPE, as {name} has it in GGUF files"
        raise mismatch("save", rule, f"layers {layers}")
    return name


def _kind(
    key: str,
    dtype: ml.BlockDType | None,
    dtypes: Mapping[str, ml.DType | ml.BlockDType],
    shape: tuple[int, ...],
) -> ml.DType | ml.BlockDType:
    """Return what a weight becomes; refuse what the format does not have."""
    if len(shape) == 1:
        return ml.float32
    into = dtype_in_model(key, dtype)
    found = into or dtypes[key]  # only a quantized output is made of another weight
    if found not in TYPE_NUMBERS:
        raise SaveError(f"[save] GGUF files do not have {found}, of tensor {key}, but q8_0, q4_0")
    if into is not None and shape[-1] % into.block_size:
        raise ModelConfigError(
            f"save: rows of {into} must be a multiple of {into.block_size} long: got {shape[-1]}"
        )
    return found


def _keys(name: str, args: ModelArgs, dtype: ml.BlockDType | None) -> dict[str, NewValue]:
    """Return the keys that say what is computed."""
    values: dict[str, NewValue] = {
        **{key: getattr(args, name) for name, key in GGUF_KEYS.items()},
        **dict.fromkeys(("attention.value_length", "rope.dimension_count"), args.head_dim),
    }
    if isinstance(args.rope_scaling, LinearRopeScaling):
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": args.rope_scaling.factor}
    if name == "granite":
        of_attention = args.attention_multiplier or 1 / math.sqrt(args.head_dim)
        args = replace(args, attention_multiplier=of_attention)
        values |= {key: float(getattr(args, name)) for name, key in GRANITE_SCALES.items()}
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.file_type": _FILE_TYPES[(dtype or args.dtype).name],
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in values.items()},
    }
