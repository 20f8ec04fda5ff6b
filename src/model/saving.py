"""Writing a quantised model as a directory in Hugging Face's layout, which other tools read too.

NF4 is written as bitsandbytes has it, and int8 as compressed-tensors does, so that transformers
loads the directory with either. A directory appears whole or not at all.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import ml
from ..checkpoint import Checkpoint
from ..checkpoint.names import Bias, hugging_face_names
from ..checkpoint.packed_parts import bytes_of, new_tensors, part_contents
from ..checkpoint.quantization_config import INT8_GROUP, int8_config, nf4_config
from ..checkpoint.safetensors_writer import NewTensor, SafetensorsWriter, written_bytes
from ..tokenizer import Tokenizer
from .args import LinearRopeScaling, ModelArgs
from .errors import ModelConfigError, ModelError
from .layout import find_model_directory, label_of
from .loader import (
    BUNDLED_MODEL,
    check_not_quantized,
    checkpoint_args,
    find_tokenizer,
    open_checkpoint,
)
from .quantization import (
    EMBEDDINGS,
    OUTPUT,
    QuantizationProgress,
    dtype_in_model,
    quantization_of,
    quantize_weight,
)

_DTYPE_NAMES = {ml.bfloat16: "BF16", ml.float16: "F16", ml.float32: "F32"}
_COPIED_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_TURNED = (".wq.weight", ".wk.weight")


class SaveError(ModelError):
    """A directory that cannot be written."""


@dataclass(frozen=True)
class _Item:
    """A weight that is written: its key here, its name in the file, and what it becomes."""

    key: str
    name: str
    dtype: ml.BlockDType | None


def save_quantized(
    path: str | Path | None,
    directory: str | Path,
    quantize: str,
    *,
    rope_scaling_factor: float | None = None,
    progress: QuantizationProgress | None = None,
) -> int:
    """Quantise a model into a new directory; no more than one weight is in memory at a time.

    Args:
        path: The directory of the plain model, as for `load_model`.
        directory: What is written: `config.json`, `model.safetensors` and copies of the files of
            the tokenizer. It must not exist, and what it is to lie in must.
        quantize: "nf4" or "int8", as for `load_model`.
        rope_scaling_factor: As for `load_model`; it is written into `config.json`.
        progress: Called with how many of how many matrices are done.

    Returns:
        The bytes of the weights that were written.

    Raises:
        SaveError: The directory is there already, or cannot be written.
        ModelError, CheckpointError, TokenizerError: The model cannot be used.
    """
    target, dtype = Path(directory), quantization_of(quantize)
    _check_new(target)
    top = BUNDLED_MODEL if path is None else Path(path)
    found = find_model_directory(top)
    checkpoint = open_checkpoint(found, one_by_one=True)
    try:
        check_not_quantized(checkpoint)
        args = checkpoint_args(checkpoint, rope_scaling_factor)
        tokenizer = find_tokenizer(found.path, top)
        config = _config(checkpoint, args, tokenizer, dtype)
        if rope_scaling_factor is not None:
            config |= _overridden(config, rope_scaling_factor)
        items = list(_items(checkpoint, args, dtype))
        with _new_directory(target) as unfinished:
            nbytes = _write_weights(unfinished, checkpoint, args, items, progress)
            (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "ascii")
            _copy_files(dict.fromkeys((found.path, top)), unfinished)
        return nbytes
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(found.path)}: {error}") from None
    finally:
        checkpoint.close()


def _check_new(target: Path) -> None:
    if os.path.lexists(target):
        raise SaveError(f"{label_of(target)}: expected a new directory, got one that exists")
    if not target.absolute().parent.is_dir():
        raise SaveError(f"{label_of(target)}: expected a directory that it can lie in, got none")


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """Give a directory to write into, which gets its name at the end, or is removed."""
    unfinished = target.absolute().parent / f".{target.absolute().name}.unfinished-{os.getpid()}"
    try:
        unfinished.mkdir()
        yield unfinished
        _check_new(target)
        unfinished.rename(target)
    except OSError as error:
        raise SaveError(f"{label_of(target)}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _items(checkpoint: Checkpoint, args: ModelArgs, dtype: ml.BlockDType) -> Iterator[_Item]:
    """Yield what is written, in the order in which it is read.

    Raises:
        ModelConfigError: Rows that int8 codes in groups do not divide.
    """
    names = {ours: theirs for theirs, ours in hugging_face_names(args.n_layers, list(Bias))}
    for size in (args.dim, args.ffn_dim, args.n_heads * args.head_dim):
        if dtype is ml.int8_block and size % INT8_GROUP:
            raise ModelConfigError(
                f"save: rows of int8 must be a multiple of {INT8_GROUP} long: got {size}"
            )
    for key in checkpoint.tensors:
        if key in names:
            yield _Item(key, names[key], dtype_in_model(key, dtype))
    if OUTPUT not in checkpoint.tensors:
        yield _Item(EMBEDDINGS, names[OUTPUT], dtype)


def _write_weights(
    directory: Path,
    checkpoint: Checkpoint,
    args: ModelArgs,
    items: list[_Item],
    progress: QuantizationProgress | None,
) -> int:
    """Write all weights into one file, one after the other; return their bytes."""
    files = _Source(checkpoint, args)
    new = [tensor for item in items for tensor in files.described(item)]
    free = shutil.disk_usage(directory).free
    if written_bytes(new) > free:
        raise SaveError(
            f"{label_of(directory.parent)}: expected {written_bytes(new)} bytes of free disk, "
            f"got {free}"
        )
    total = sum(item.dtype is not None for item in items)
    done = 0
    with SafetensorsWriter(directory / "model.safetensors", new, {"format": "pt"}) as writer:
        for item in items:
            if item.dtype is not None and progress is not None:
                progress(done, total)
            for name, content in files.contents(item):
                writer.write(name, content)
            done += item.dtype is not None
    if progress is not None:
        progress(total, total)
    return written_bytes(new)


class _Source:
    """The plain weights of a checkpoint, in the order of rows that Hugging Face's files have."""

    def __init__(self, checkpoint: Checkpoint, args: ModelArgs) -> None:
        self._tensors = checkpoint.tensors
        self._halves = args.rope_pairs == "halves"
        self._head_dim = args.head_dim

    def _weight(self, key: str) -> ml.Tensor:
        weight = self._tensors[key]
        assert isinstance(weight, ml.Tensor)
        if self._halves or not key.endswith(_TURNED):
            return weight
        return ml.Tensor.from_numpy(_halves(weight.numpy(), self._head_dim), name=key)

    def described(self, item: _Item) -> list[NewTensor]:
        """Return the tensors that an item becomes."""
        weight = self._tensors[item.key]
        assert isinstance(weight, ml.Tensor)
        if item.dtype is None:
            return [NewTensor(item.name, _DTYPE_NAMES[weight.dtype], weight.shape)]
        return new_tensors(item.name, weight.shape, item.dtype, weight.dtype)

    def contents(self, item: _Item) -> Iterator[tuple[str, bytes | memoryview]]:
        """Yield names and bytes of these tensors."""
        weight = self._weight(item.key)
        if item.dtype is None:
            yield item.name, bytes_of(weight)
            return
        quantized = quantize_weight(item.key, weight, item.dtype)
        yield from part_contents(item.name, quantized, weight.dtype)


def _halves(rows: "np.ndarray[Any, Any]", head_dim: int) -> "np.ndarray[Any, Any]":
    """Put the even rows of each head before the odd ones: from Meta's pairs to halves."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _config(
    checkpoint: Checkpoint,
    args: ModelArgs,
    tokenizer: Tokenizer | None,
    dtype: ml.BlockDType,
) -> dict[str, object]:
    """Return what `config.json` says of the new model."""
    given = checkpoint.config
    config = _from_meta(args, tokenizer, checkpoint) if given is None else dict(given.given)
    config["tie_word_embeddings"] = False  # the output has codes of its own
    config["quantization_config"] = nf4_config() if dtype is ml.nf4 else int8_config()
    return config


def _overridden(config: Mapping[str, object], factor: float) -> dict[str, object]:
    """Return the parts of a configuration that name the factor of a scaled RoPE, with another."""
    parts = ((key, config.get(key)) for key in ("rope_scaling", "rope_parameters"))
    return {key: part | {"factor": factor} for key, part in parts if isinstance(part, dict)}


def _from_meta(
    args: ModelArgs, tokenizer: Tokenizer | None, checkpoint: Checkpoint
) -> dict[str, object]:
    embeddings = checkpoint.tensors[EMBEDDINGS]
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.dim,
        "intermediate_size": args.ffn_dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_kv_heads,
        "head_dim": args.head_dim,
        "vocab_size": args.vocab_size,
        "rms_norm_eps": args.norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": args.max_context_length,
        "rope_theta": args.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": embeddings.dtype.name,
    }
    scaling = args.rope_scaling
    if scaling is not None and not isinstance(scaling, LinearRopeScaling):
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context_length,
        }
    if tokenizer is not None:
        config["bos_token_id"] = tokenizer.bos_id
        config["eos_token_id"] = sorted(tokenizer.stop_ids)
    return config


def _copy_files(places: dict[Path, None], target: Path) -> None:
    """Copy the files of the tokenizer and of the generation, the nearest of each name."""
    for name in _COPIED_FILES:
        for place in places:
            if (place / name).is_file():
                shutil.copyfile(place / name, target / name)
                break
