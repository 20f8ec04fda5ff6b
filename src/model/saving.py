"""Writing a quantized model as a directory in Hugging Face's layout, which other tools read too.

NF4 is written as bitsandbytes has it, and int8 as compressed-tensors does, so that transformers
loads the directory with either. A directory appears whole or not at all.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import ml
from ..checkpoint import Checkpoint
from ..checkpoint.names import rows_of
from ..checkpoint.packed_weights import INT8_CONFIG, NF4_CONFIG
from ..checkpoint.safetensors_writer import (
    NewTensor,
    TensorWriter,
    new_tensors,
    part_contents,
    reordered,
    safetensors_head,
)
from ..tokenizer import MAX_FILE_BYTES, Tokenizer
from ..untrusted import followed_inside, label_of, read_whole
from .args import EMBEDDINGS, LinearRopeScaling, ModelArgs, RopeScaling
from .errors import ModelConfigError, ModelError, SaveError, mismatch
from .files import ModelFiles, read_model_files
from .loader import check_not_quantized, checkpoint_args, find_tokenizer, open_checkpoint
from .quantization import (
    QuantizationProgress,
    dtype_in_model,
    quantization_of,
    quantize_weights,
    sources_of,
)

_COPIED_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_ROTATED = (".wq.weight", ".wk.weight")


def save_quantized(
    path: str | Path | None,
    directory: str | Path,
    quantize: str,
    *,
    rope_scaling_factor: float | None = None,
    progress: QuantizationProgress | None = None,
) -> int:
    """Quantize a plain model into a new directory; return the bytes of the weights.

    Its `config.json` has the overridden factor, and the files of the tokenizer are copied. No more
    than one weight is in memory at a time. Raise SaveError where the directory is there already, or
    cannot be written; nothing of it is left then.
    """
    target, dtype = Path(directory), quantization_of(quantize)
    if dtype not in ml.BLOCK_DTYPES:
        raise SaveError(f"[save] quantize must be nf4 or int8 in a directory: got {quantize}")
    check_new(target, "directory")
    with plain_model(path, rope_scaling_factor) as (files, checkpoint, args):
        tokenizer, origin = find_tokenizer(files), checkpoint.dtypes[EMBEDDINGS].name
        is_meta = files.directory.layout == "Meta"
        config = hugging_face_config(args, tokenizer, origin) if is_meta else dict(files.given)
        _adapt(config, args, dtype)
        side_files = _side_files((files.directory.path, files.top))  # before hours of work
        with new_path(target, "directory") as unfinished:
            nbytes = _write_weights(target, unfinished, checkpoint, args, dtype, progress)
            (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", "ascii")
            for name, content in side_files.items():
                (unfinished / name).write_bytes(content)
        return nbytes


@contextlib.contextmanager
def plain_model(
    path: str | Path | None, rope_scaling_factor: float | None
) -> Iterator[tuple[ModelFiles, Checkpoint, ModelArgs]]:
    """Open the directory of a plain model, whose tensors are read one by one."""
    files = read_model_files(path)
    checkpoint = open_checkpoint(files, one_by_one=True)
    try:
        if files.directory.layout == "GGUF":
            raise mismatch("save", "a model directory", "a GGUF file")
        check_not_quantized(files, checkpoint)
        yield files, checkpoint, checkpoint_args(files, checkpoint, rope_scaling_factor)
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(files.directory.path)}: {error}") from None
    finally:
        checkpoint.close()


def check_new(target: Path, kind: str) -> None:
    """Check that a directory or file can be made: it is not there, but its parent is."""
    if os.path.lexists(target):
        raise SaveError(f"{label_of(target)}: expected a new {kind}, got one that exists")
    if not target.absolute().parent.is_dir():
        raise SaveError(f"{label_of(target)}: expected a parent directory, got none")


def check_room(target: Path, nbytes: int) -> None:
    """Check that the disk has room for `nbytes` bytes."""
    free = shutil.disk_usage(target.absolute().parent).free
    if nbytes > free:
        raise SaveError(f"{label_of(target)}: expected {nbytes} bytes of free disk, got {free}")


@contextlib.contextmanager
def new_path(target: Path, kind: str) -> Iterator[Path]:
    """Give a path to write at, which gets the target's name at the end, or is removed.

    A directory exists already. It, or the file, is inside a new directory with a random name, which
    no other process has, on this machine or in another container.
    """
    parent, prefix = target.absolute().parent, f".{target.absolute().name}.unfinished-"
    try:
        with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as place:
            made = Path(place, kind)
            if kind == "directory":
                made.mkdir()
            yield made
            check_new(target, kind)
            made.rename(target)
    except OSError as error:
        raise SaveError(f"{label_of(target)}: cannot be written: {error.strerror}") from None


def _write_weights(
    target: Path,
    directory: Path,
    checkpoint: Checkpoint,
    args: ModelArgs,
    dtype: ml.BlockDType,
    progress: QuantizationProgress | None,
) -> int:
    """Write all weights into one file, one after the other; return their bytes."""
    for size in (args.dim, args.ffn_dim, args.n_heads * args.head_dim):
        if dtype is ml.int8_block and size % dtype.block_size:
            rule = f"a multiple of {dtype.block_size} long"
            raise ModelConfigError(f"save: rows of int8 must be {rule}: got {size}")
    names = {row.name: row.hugging_face for row in rows_of(args.n_layers, args.parts)}
    shapes, sources = args.tensor_shapes, sources_of(checkpoint.tensors, dtype)
    plain = {key: each for key, each in checkpoint.dtypes.items() if isinstance(each, ml.DType)}
    new: list[NewTensor] = []
    for key in sources.keys() & names:
        new += new_tensors(names[key], shapes[key], dtype_in_model(key, dtype), plain[sources[key]])
    check_room(target, nbytes := sum(tensor.nbytes for tensor in new))

    def prepared(key: str, weight: ml.Tensor) -> ml.Tensor:
        is_meta = args.rope_pairs == "interleaved" and key.endswith(_ROTATED)
        return reordered(weight, args.head_dim, "halves") if is_meta else weight

    weights = quantize_weights(checkpoint.tensors, dtype, progress, prepared)
    head, places = safetensors_head(new, {"format": "pt"})
    with TensorWriter(directory / "model.safetensors", head, places) as writer:
        for key, weight in weights:
            if key in names:
                for name, content in part_contents(names[key], weight, plain[sources[key]]):
                    writer.write(name, content)
    return nbytes


def _adapt(config: dict[str, object], args: ModelArgs, dtype: ml.BlockDType) -> None:
    """Change the `config.json` of the plain model into that of the quantized one."""
    for key in ("rope_scaling", "rope_parameters"):
        match config.get(key), args.rope_scaling:
            case dict() as part, RopeScaling() | LinearRopeScaling() as scaling if "factor" in part:
                config[key] = part | {"factor": scaling.factor}  # perhaps overridden
    config["tie_word_embeddings"] = False  # the output has its own codes
    config["quantization_config"] = NF4_CONFIG if dtype is ml.nf4 else INT8_CONFIG


def hugging_face_config(
    args: ModelArgs, tokenizer: Tokenizer | None, dtype: str
) -> dict[str, object]:
    """Return the `config.json` of a model in Meta's layout, whose output may still be tied.

    The tokenizer, if any, tells the tokens that begin and end a text; `dtype` is the weights'.
    """
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
        "torch_dtype": dtype,
    }
    scaling = args.rope_scaling
    if isinstance(scaling, RopeScaling):
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


def _side_files(places: Sequence[Path]) -> dict[str, bytes]:
    """Read the files of the tokenizer and of the generation, the nearest of each name.

    Raise ModelError for one that is not a regular file, too large, or a link out of the model.
    """
    found: dict[str, bytes] = {}
    for path in (place / name for place in places for name in _COPIED_FILES):
        if path.name not in found and os.path.lexists(path):
            target = followed_inside(path, ModelError, *places)
            found[path.name] = read_whole(target, MAX_FILE_BYTES, ModelError)
    return found
