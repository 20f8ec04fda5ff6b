"""Writing a model as a directory in Hugging Face's layout, which other tools can read.

NF4 is written in the format of bitsandbytes, and int8 in the format of
compressed-tensors, so transformers loads the directory with either. Dequantized weights
are written as plain weights. For a GGUF file, the configuration and the tokenizer files
are made from its keys. A directory appears whole or not at all.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import ml
from ..checkpoint import Checkpoint
from ..checkpoint.model_directory import CONFIG_FILE
from ..checkpoint.names import stored_rows
from ..checkpoint.packed_weights import INT8_CONFIG, NF4_CONFIG
from ..checkpoint.safetensors_writer import (
    NewTensor,
    TensorWriter,
    new_tensors,
    part_contents,
    reordered,
    safetensors_head,
)
from ..untrusted import label_of
from .args import EMBEDDINGS, OUTPUT, LinearRopeScaling, ModelArgs, RopeScaling
from .errors import ModelConfigError, SaveError
from .loader import check_stored, checkpoint_args, stored_quantization
from .quantization import (
    DequantizedWeights,
    JoinedWeights,
    QuantizationProgress,
    dequantized_dtypes,
    dtype_in_model,
    quantization_of,
    quantize_weights,
    sources_of,
)
from .sources import Source, find_source


def save_quantized(
    path: str | Path | None,
    directory: str | Path,
    quantize: str | None = None,
    *,
    dequantize: bool = False,
    rope_scaling_factor: float | None = None,
    progress: QuantizationProgress | None = None,
) -> int:
    """Quantize or dequantize a model into a new directory; return its weights' bytes.

    Its `config.json` contains the overridden factor. The files of the tokenizer are
    copied, or made from the keys of a GGUF file. At most one weight is in memory at a
    time.

    Args:
        path: As for `load_model`.
        directory: The directory to create.
        quantize: "nf4" or "int8", or with `dequantize` None for plain weights.
        dequantize: Whether the weights are quantized in their files.
        rope_scaling_factor: As for `load_model`.
        progress: As for `load_model`.

    Raises:
        SaveError: The directory exists already, or cannot be written; no part of it is
            left.
        ModelConfigError: No `config.json` can describe the model.
    """
    target = Path(directory)
    dtype = None if quantize is None else quantization_of(quantize)
    if dtype not in ml.BLOCK_DTYPES and not (dequantize and quantize is None):
        raise SaveError(
            f"[save] quantize must be nf4 or int8 in a directory: got {quantize}"
        )
    check_new(target, "directory")
    with plain_model(path, rope_scaling_factor, dequantize) as (source, checkpoint, args):
        tokenizer = source.find_tokenizer()
        origin = checkpoint.dtypes[EMBEDDINGS].name
        config = source.config_json(args, tokenizer, origin)
        side_files = source.side_files(
            tokenizer
        )  # may fail, so it precedes hours of work
        _adapt_config(config, args, dtype, OUTPUT in checkpoint.tensors)
        with new_path(target, "directory") as unfinished:
            (unfinished / CONFIG_FILE).write_text(
                json.dumps(config, indent=2) + "\n", "ascii"
            )
            for name, content in side_files.items():
                path = unfinished / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
            source.check_saved(unfinished, args, tokenizer)
            return _write_weights(target, unfinished, checkpoint, args, dtype, progress)


@contextlib.contextmanager
def plain_model(
    path: str | Path | None, rope_scaling_factor: float | None, dequantize: bool = False
) -> Iterator[tuple[Source, Checkpoint, ModelArgs]]:
    """Open a model with plain or dequantized weights, which are read one by one."""
    source = find_source(path)
    checkpoint = source.open_checkpoint(True)
    try:
        check_stored(
            stored_quantization(source, checkpoint), dequantize, needs_plain=True
        )
        args = checkpoint_args(source, checkpoint, rope_scaling_factor)
        if dequantize:
            checkpoint.dtypes = dequantized_dtypes(checkpoint.dtypes, args.dtype)
            checkpoint.tensors = DequantizedWeights(checkpoint.tensors, args.dtype)
        yield source, checkpoint, args
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(source.path)}: {error}") from None
    finally:
        checkpoint.close()


def rotated_weights(args: ModelArgs) -> Collection[str]:
    """Return the weights whose order of rows depends on RoPE, without the suffix.

    The suffix is `.weight` or `.bias`.
    """
    return {
        f"layers.{layer}.attention.{matrix}"
        for layer in args.rotated_layers
        for matrix in ("wq", "wk")
    }


def check_new(target: Path, kind: str) -> None:
    """Check that a directory or file can be created: only its parent exists."""
    if os.path.lexists(target):
        raise SaveError(f"{label_of(target)}: expected a new {kind}, got an existing one")
    if not target.absolute().parent.is_dir():
        raise SaveError(f"{label_of(target)}: expected a parent directory, got none")


def check_room(target: Path, nbytes: int) -> None:
    """Check that the disk has room for `nbytes` bytes."""
    free = shutil.disk_usage(target.absolute().parent).free
    if nbytes > free:
        raise SaveError(
            f"{label_of(target)}: expected {nbytes} bytes of free disk, got {free}"
        )


@contextlib.contextmanager
def new_path(target: Path, kind: str) -> Iterator[Path]:
    """Yield a path to write to, which is renamed to the target at the end, or removed.

    A directory is created before. The path is inside a new directory with a random name
    that no other process has, on this machine or in another container.
    """
    parent = target.absolute().parent
    prefix = f".{target.absolute().name}.unfinished-"
    try:
        with TemporaryDirectory(
            prefix=prefix, dir=parent, ignore_cleanup_errors=True
        ) as place:
            unfinished = Path(place, kind)
            if kind == "directory":
                unfinished.mkdir()
            yield unfinished
            check_new(target, kind)
            unfinished.rename(target)
    except OSError as error:
        raise SaveError(
            f"{label_of(target)}: cannot be written: {error.strerror}"
        ) from None


def _write_weights(
    target: Path,
    directory: Path,
    checkpoint: Checkpoint,
    args: ModelArgs,
    dtype: ml.BlockDType | None,
    progress: QuantizationProgress | None,
) -> int:
    """Write all weights into one file, one after the other; return their bytes."""
    for size in (args.dim, args.ffn_dim, args.n_heads * args.head_dim):
        if dtype is ml.int8_block and size % dtype.block_size:
            rule = f"a multiple of {dtype.block_size} long"
            raise ModelConfigError(f"save: rows of int8 must be {rule}: got {size}")
    stored = stored_rows(args.tensor_rows, lambda row: row.hugging_face)
    names = {row.name: name for name, row in stored.items()}
    tensors = JoinedWeights(checkpoint.tensors, args)
    shapes = args.stored_shapes
    sources = sources_of(tensors, dtype)
    plain = {
        key: stored
        for key, stored in checkpoint.dtypes.items()
        if isinstance(stored, ml.DType)
    }
    new: list[NewTensor] = []
    for key in sources.keys() & names:
        new += new_tensors(
            names[key], shapes[key], dtype_in_model(key, dtype), plain[sources[key]]
        )
    check_room(target, nbytes := sum(tensor.nbytes for tensor in new))

    rotated = rotated_weights(args) if args.rope_pairs == "interleaved" else ()

    def prepare(key: str, weight: ml.Tensor) -> ml.Tensor:
        is_rotated = key.rpartition(".")[0] in rotated
        return reordered(weight, args.head_dim, "halves") if is_rotated else weight

    weights = quantize_weights(tensors, dtype, progress, prepare)
    head, places = safetensors_head(new, {"format": "pt"})
    with TensorWriter(directory / "model.safetensors", head, places) as writer:
        for key, weight in weights:
            if key in names:
                for name, content in part_contents(
                    names[key], weight, plain[sources[key]]
                ):
                    writer.write(name, content)
    return nbytes


def _adapt_config(
    config: dict[str, object],
    args: ModelArgs,
    dtype: ml.BlockDType | None,
    has_output: bool,
) -> None:
    """Change the `config.json` of a model for its quantized or dequantized copy."""
    for key in ("rope_scaling", "rope_parameters"):
        match config.get(key), args.rope_scaling:
            case dict() as part, RopeScaling() | LinearRopeScaling() as scaling if (
                "factor" in part
            ):
                config[key] = part | {"factor": scaling.factor}  # may be overridden
    # A quantized output has its own codes.
    config["tie_word_embeddings"] = dtype is None and not has_output
    config.pop("quantization_config", None)
    if dtype is not None:
        config["quantization_config"] = NF4_CONFIG if dtype is ml.nf4 else INT8_CONFIG
