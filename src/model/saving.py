"""Save a model as a directory in Hugging Face's layout, which other tools can read.

NF4 weights are written in the bitsandbytes format and int8 weights in the
compressed-tensors format, so transformers can load either. Dequantized weights are
written as plain weights. If the source is a GGUF file, the configuration and the
tokenizer files are generated from its metadata keys. The directory is renamed into place
only after all its files are written, so a failed save leaves nothing behind.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import ml
from ..checkpoint import Checkpoint
from ..checkpoint.model_directory import CONFIG_FILE
from ..checkpoint.names import EMBEDDINGS, OUTPUT, stored_rows
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
from .args import (
    LinearRopeScaling,
    ModelArgs,
    RopeScaling,
    YarnRopeScaling,
)
from .errors import ModelConfigError, SaveError, mismatch
from .families import FAMILIES
from .loader import check_stored, checkpoint_args, stored_quantization
from .merging import NamedAdapters, merge_adapters
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
    adapters: NamedAdapters = (),
    progress: QuantizationProgress | None = None,
) -> int:
    """Save a quantized, dequantized or merged model in a new directory.

    Returns the size of the weights in bytes.

    The new `config.json` contains the overridden RoPE scaling factor. The tokenizer files
    are copied, or generated from the metadata keys of a GGUF file. At most one weight is
    in memory at a time.

    Args:
        path: See `load_model`.
        directory: The directory to create.
        quantize: "nf4" or "int8", or None to write plain weights, which requires
            `dequantize` or adapters.
        dequantize: Whether to dequantize weights that are already quantized in their
            files.
        rope_scaling_factor: See `load_model`.
        adapters: The paths of LoRA adapters that are merged into the weights, with a
            factor for each. See `MergedWeights`.
        progress: See `load_model`.

    Raises:
        SaveError: The directory already exists or cannot be written. A failed save
            leaves nothing behind.
        ModelConfigError: The model cannot be described by a `config.json`.
    """
    target = Path(directory)
    dtype = None if quantize is None else quantization_of(quantize)
    is_plain = quantize is None and (dequantize or len(adapters) > 0)
    if dtype not in ml.BLOCK_DTYPES and not is_plain:
        raise SaveError(
            f"[save] quantize must be nf4 or int8 in a directory: got {quantize}"
        )
    check_new(target, "directory")
    opened = plain_model(path, rope_scaling_factor, dequantize, adapters)
    with opened as (source, checkpoint, args):
        tokenizer = source.find_tokenizer()
        origin = checkpoint.dtypes[EMBEDDINGS].name
        config = source.config_json(args, tokenizer, origin)
        # This may fail, so it is done before hours of work.
        side_files = source.side_files(tokenizer)

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
            offset = args.norm_offset - FAMILIES[source.model_type].norm_offset
            return _write_weights(
                target, unfinished, checkpoint, args, dtype, progress, offset
            )


@contextlib.contextmanager
def plain_model(
    path: str | Path | None,
    rope_scaling_factor: float | None,
    dequantize: bool = False,
    adapters: NamedAdapters = (),
) -> Iterator[tuple[Source, Checkpoint, ModelArgs]]:
    """Open a model with plain weights, which are read one at a time.

    They may be dequantized, and adapters may be merged into them.
    """
    source = find_source(path)
    checkpoint = source.open_checkpoint(True)
    try:
        check_stored(
            stored_quantization(source, checkpoint), dequantize, needs_plain=True
        )
        args = checkpoint_args(source, checkpoint, rope_scaling_factor)
        if adapters:
            merge_adapters(source, checkpoint, args, adapters)
        if dequantize:
            checkpoint.dtypes = dequantized_dtypes(checkpoint.dtypes, args.dtype)
            checkpoint.tensors = DequantizedWeights(checkpoint.tensors, args.dtype)
        yield source, checkpoint, args
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(source.path)}: {error}") from None
    finally:
        checkpoint.close()


def check_new(target: Path, kind: str) -> None:
    """Check that a path does not exist yet and that its parent directory exists."""
    if os.path.lexists(target):
        raise SaveError(f"{label_of(target)}: expected a new {kind}, got an existing one")
    if not target.absolute().parent.is_dir():
        raise SaveError(f"{label_of(target)}: expected a parent directory, got none")


def check_room(target: Path, nbytes: int) -> None:
    """Check that the disk has at least `nbytes` free bytes."""
    free = shutil.disk_usage(target.absolute().parent).free
    if nbytes > free:
        raise SaveError(
            f"{label_of(target)}: expected {nbytes} bytes of free disk, got {free}"
        )


@contextlib.contextmanager
def new_path(target: Path, kind: str) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to the target on success.

    For the kind "directory", an empty directory is created at that path. The path is in a
    new directory with a random name, so that concurrent processes, including those in
    other containers, cannot choose the same path. It is removed on failure.
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
    norm_offset: float,
) -> int:
    """Write all weights to one file, one after the other; return their size in bytes."""
    for size in (args.dim, args.ffn_dim, args.n_heads * args.head_dim):
        if dtype is ml.int8_block and size % dtype.block_size:
            rule = f"a multiple of {dtype.block_size} long"
            raise ModelConfigError(f"save: rows of int8 must be {rule}: got {size}")
    stored = stored_rows(args.tensor_rows, "hugging_face")
    if dtype is not None and any(len(row.sizes) > 2 for row in stored.values()):
        rule = "plain weights, because the experts of a layer are one tensor"
        raise mismatch("save", rule, dtype)
    names = {row.name: name for name, row in stored.items()}
    tensors = JoinedWeights(checkpoint.tensors, args, "hugging_face")
    shapes = args.stored_shapes("hugging_face")
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

    rotated = args.rotated_weights if args.rope_pairs == "interleaved" else ()

    def prepare(key: str, weight: ml.Tensor) -> ml.Tensor:
        is_rotated = key.rpartition(".")[0] in rotated
        weight = reordered(weight, args.head_dim, "halves") if is_rotated else weight
        return with_norm_offset(key, weight, norm_offset)

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


def with_norm_offset(key: str, weight: ml.Tensor, offset: float) -> ml.Tensor:
    """Return a weight, with the offset added to it if it belongs to a norm."""
    is_norm = key.endswith("norm.weight")
    if not offset or not is_norm:
        return weight
    return ml.add(weight.to(ml.float32), offset).to(weight.dtype)


def _adapt_config(
    config: dict[str, object],
    args: ModelArgs,
    dtype: ml.BlockDType | None,
    has_output: bool,
) -> None:
    """Update the `config.json` of a model for its quantized or dequantized copy."""
    for key in ("rope_scaling", "rope_parameters"):
        match config.get(key), args.rope_scaling:
            case (
                dict() as part,
                RopeScaling() | LinearRopeScaling() | YarnRopeScaling() as scaling,
            ) if "factor" in part:
                # The factor may be overridden.
                config[key] = part | {"factor": scaling.factor}
    # A quantized output matrix is stored separately from the embedding table.
    config["tie_word_embeddings"] = dtype is None and not has_output
    config.pop("quantization_config", None)
    if dtype is not None:
        config["quantization_config"] = NF4_CONFIG if dtype is ml.nf4 else INT8_CONFIG
