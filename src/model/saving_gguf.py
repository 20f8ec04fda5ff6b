"""Writing a model as a GGUF file, which llama.cpp and other programs read too.

Matrices stay as they are, or become blocks of q8_0 or q4_0, by the same rule as for
`load_model`; vectors become float32. The rows of q and k are put into the order of the
architecture. The file appears whole or not at all.
"""

from collections.abc import Mapping
from pathlib import Path

from .. import ml
from ..checkpoint.gguf import nbytes_of
from ..checkpoint.gguf_config import (
    CHAT_TEMPLATE_KEYS,
    GGUF_KEYS,
    ROPE_FACTORS,
    GgufSchema,
)
from ..checkpoint.gguf_writer import TYPE_NUMBERS, GgufWriter, NewValue
from ..checkpoint.names import stored_rows
from ..checkpoint.safetensors_writer import reordered
from .args import (
    EMBEDDINGS,
    OUTPUT,
    LinearRopeScaling,
    ModelArgs,
    RopeFactors,
    RopeScaling,
)
from .errors import ModelConfigError, SaveError, mismatch
from .families import FAMILIES, Family
from .quantization import (
    JoinedWeights,
    QuantizationProgress,
    dtype_in_model,
    quantization_of,
    quantize_weights,
    sources_of,
)
from .rope import rope_factors
from .saving import check_new, check_room, new_path, plain_model, rotated_weights

_FILE_TYPES = {"float32": 0, "float16": 1, "q4_0": 2, "q8_0": 7, "bfloat16": 32}


def save_gguf(
    path: str | Path | None,
    target: str | Path,
    quantize: str | None = None,
    *,
    dequantize: bool = False,
    rope_scaling_factor: float | None = None,
    chat_template: str | None = None,
    progress: QuantizationProgress | None = None,
) -> int:
    """Write a model as one new GGUF file; return the bytes of the weights.

    Weights that are quantized in their files need `dequantize`, which makes them plain
    ones before `quantize`. No more than one weight is in memory at a time. Raise
    SaveError where the file is there already, or cannot be written; nothing of it is left
    then. Raise ModelConfigError where the format cannot hold the model.
    """
    target = Path(target)
    dtype = None if quantize is None else quantization_of(quantize)
    check_new(target, "file")
    with plain_model(path, rope_scaling_factor, dequantize) as (source, checkpoint, args):
        family = FAMILIES[source.model_type]
        family.check_gguf(args)
        _check_schema(family.gguf, args)
        stored = stored_rows(args.tensor_rows, lambda row: row.gguf)
        names = {row.name: name for name, row in stored.items()}
        tensors = JoinedWeights(checkpoint.tensors, args)
        sources = sources_of(tensors, dtype)
        copies_output = family.gguf.has_own_output and OUTPUT not in sources
        shapes = {  # with what each weight becomes, vectors float32
            names[key]: (_kind(key, dtype, checkpoint.dtypes, shape), shape)
            for key, shape in args.stored_shapes.items()
            if key in sources
        }
        if copies_output:
            shapes[names[OUTPUT]] = shapes[names[EMBEDDINGS]]
        factors = rope_factors(args)
        if factors is None and isinstance(args.rope_scaling, RopeFactors):
            factors = ml.tensor(list(args.rope_scaling.factors), dtype=ml.float32)
        tables = family.gguf_tensors(args)
        if factors is not None:
            tables = {ROPE_FACTORS: factors, **tables}
        shapes |= {name: (ml.float32, table.shape) for name, table in tables.items()}
        keys = _keys(family, args, dtype)
        keys |= source.gguf_tokenizer_keys(args.vocab_size)
        templates = dict(source.chat_templates)
        if chat_template is not None:
            templates["default"] = chat_template
        for name, key in CHAT_TEMPLATE_KEYS.items():
            if name in templates:
                keys[key] = templates[name]
        check_room(target, nbytes := sum(nbytes_of(*each) for each in shapes.values()))

        in_halves = (
            args.rope_pairs == "halves" and family.gguf.rope_pairs == "interleaved"
        )
        rotated = rotated_weights(args) if in_halves else ()

        def prepared(key: str, weight: ml.Tensor) -> ml.Tensor:
            if key.rpartition(".")[0] in rotated:
                weight = reordered(weight, args.head_dim, "interleaved")
            return weight.to(ml.float32) if len(weight.shape) == 1 else weight

        with (
            new_path(target, "file") as unfinished,
            GgufWriter(unfinished, keys, shapes) as writer,
        ):
            for key, weight in quantize_weights(tensors, dtype, progress, prepared):
                if key in names:
                    writer.write(names[key], weight)
            if copies_output:
                writer.write(names[OUTPUT], checkpoint.tensors[EMBEDDINGS])
            for name, table in tables.items():
                writer.write(name, table)
        return nbytes


def _check_schema(known: GgufSchema, args: ModelArgs) -> None:
    """Check that the architecture of llama.cpp has the tensors and sizes of the model."""
    name = known.architecture
    biases = [matrix for matrix in args.biases if matrix not in known.biases]
    if biases:
        rule = f"no biases but those that {name} has in GGUF files"
        raise mismatch("save", rule, f"those of {', '.join(biases)}")
    if known.heads_fill_dim and args.n_heads * args.head_dim != args.dim:
        rule = (
            f"heads x head dimension = {args.dim}, the size of the model, as {name} has "
            "it in"
        )
        raise mismatch("save", f"{rule} GGUF files", f"{args.n_heads} x {args.head_dim}")
    if (
        isinstance(args.rope_scaling, RopeScaling | RopeFactors)
        and not known.has_rope_factors
    ):
        rule = (
            f"RoPE without scaling or with a linear one, as {name} has it in GGUF files"
        )
        raise mismatch("save", rule, "Llama 3.1's scaling")


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
        raise SaveError(
            f"[save] GGUF files do not have {found}, of tensor {key}, but q8_0, q4_0"
        )
    if into is not None and shape[-1] % into.block_size:
        raise ModelConfigError(
            f"save: rows of {into} must be a multiple of {into.block_size} long: got "
            f"{shape[-1]}"
        )
    return found


def _keys(
    family: Family, args: ModelArgs, dtype: ml.BlockDType | None
) -> dict[str, NewValue]:
    """Return the keys that say what is computed."""
    name = family.gguf.architecture
    values: dict[str, NewValue] = {
        **{key: getattr(args, field) for field, key in GGUF_KEYS.items()},
        **dict.fromkeys(
            ("attention.value_length", "rope.dimension_count"), args.head_dim
        ),
    }
    if isinstance(args.rope_scaling, LinearRopeScaling):
        values |= {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": args.rope_scaling.factor,
        }
    values |= family.gguf_keys(args)
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.file_type": _FILE_TYPES[
            (dtype or args.feed_forward_dtype or args.dtype).name
        ],
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in values.items()},
    }
