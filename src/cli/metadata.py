"""`--metadata`: what is in a model's files and what follows from it."""

import dataclasses
from collections.abc import Iterator, Mapping

from .. import ml
from ..memory import readable_bytes
from ..model import LinearRopeScaling, Model, kv_cache_bytes
from .console import Console

_VALUES = (("name", "left"), ("value", "left"))
_TENSORS = (("name", "left"), ("shape", "left"), ("dtype", "left"), ("bytes", "right"))
_NAMES_IN_FILES = (("name in the file", "left"),)
_LONGEST_VALUE = 80


def report_metadata(console: Console, model: Model) -> None:
    """Write hyperparameters, tensors, counts and bytes of a model to standard output.

    Args:
        console: the streams of this run.
        model: the loaded model; no weight is read.
    """
    console.report_heading(str(model.source_directory))
    given = "params.json" if model.files.directory.layout == "Meta" else "config.json"
    names = model.checkpoint.names_in_files
    for title, columns, rows in (
        ("source", _VALUES, _source(model)),
        (f"hyperparameters given ({given})", _VALUES, list(_given(model.files.given))),
        ("hyperparameters used and derived", _VALUES, _used(model)),
        ("tensors", (*_TENSORS, *(_NAMES_IN_FILES if names else ())), list(_tensors(model))),
        ("sizes", _VALUES, _sizes(model)),
    ):
        console.report_line()
        console.report_heading(title)
        console.report_table(columns, rows)


def _source(model: Model) -> list[tuple[str, str]]:
    """Return the format, the files, and what was decided while loading."""
    return [
        ("format", model.checkpoint.source_format),
        *(("file", file.name) for file in model.checkpoint.files),
        *(("note", note) for note in model.notes),
    ]


def _given(params: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the content of a file of hyperparameters; an object's values one by one."""
    for name, value in params.items():
        if isinstance(value, dict) and not prefix:
            yield from _given(value, f"{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:_LONGEST_VALUE]


def _used(model: Model) -> list[tuple[str, str]]:
    """Return the fields of `ModelArgs` and what follows from them."""
    args = model.args
    fields = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    fields["dtype"] = args.dtype.name
    fields["biases"] = ", ".join(args.biases)
    scaling = fields.pop("rope_scaling")
    if scaling is not None:
        fields["rope_scaling"] = "linear" if isinstance(scaling, LinearRopeScaling) else "llama3"
        fields |= {f"rope_scaling.{k}": v for k, v in dataclasses.asdict(scaling).items()}
    fields["group_size (n_heads / n_kv_heads)"] = args.group_size
    fields["RoPE pairs per head (head_dim / 2)"] = args.head_dim // 2
    if model.tokenizer is not None:
        fields["special tokens"] = len(model.tokenizer.special_tokens)
    fields["tokens that end an answer"] = ", ".join(map(str, sorted(model.stop_ids))) or "none"
    return [(name, str(value)) for name, value in fields.items() if value not in (None, "")]


def _tensors(model: Model) -> Iterator[tuple[str, ...]]:
    """Yield name, shape, dtype and bytes of each tensor, and its name in the file if another."""
    names = model.checkpoint.names_in_files
    for name, tensor in model.tensors.items():
        row = name, str(list(tensor.shape)), tensor.dtype.name, str(tensor.nbytes)
        yield (*row, names[name]) if names else row


def _sizes(model: Model) -> list[tuple[str, str]]:
    longest = model.args.max_context_length
    longest_bytes = kv_cache_bytes(model.args, longest)
    return [
        ("tensors", str(len(model.tensors))),
        ("parameters", str(model.parameter_count)),
        ("bytes of tensors", _bytes(sum(tensor.nbytes for tensor in model.tensors.values()))),
        *_quantized_sizes(model),
        ("bytes of mapped files", _bytes(model.mapped_bytes)),
        ("KV cache bytes per token", _bytes(longest_bytes // longest)),
        (f"KV cache bytes for {longest} tokens", _bytes(longest_bytes)),
    ]


def _quantized_sizes(model: Model) -> list[tuple[str, str]]:
    """Return the bytes of quantized matrices, and what each of their numbers takes."""
    weights = [w for w in model.tensors.values() if isinstance(w, ml.QuantizedTensor)]
    if not weights:
        return []
    nbytes, size = sum(w.nbytes for w in weights), sum(w.size for w in weights)
    return [
        ("bytes of quantized matrices", _bytes(nbytes)),
        ("bits per number in them", f"{8 * nbytes / size:.3f}"),
    ]


def _bytes(count: int) -> str:
    return f"{count} ({readable_bytes(count)})" if count >= 1024 else str(count)
