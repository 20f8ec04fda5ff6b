"""`--metadata`: what is in a model's files and what follows from it."""

import dataclasses

from ..ml import Tensor
from ..model import Model, kv_cache_bytes, readable_bytes
from .console import Console

_VALUES = (("name", "left"), ("value", "left"))
_TENSORS = (("name", "left"), ("shape", "left"), ("dtype", "left"), ("bytes", "right"))
_LONGEST_VALUE = 80


def report_metadata(console: Console, model: Model) -> None:
    """Writes hyperparameters, tensors, counts and bytes of a model to standard output.

    Args:
        console: the streams of this run.
        model: the loaded model; no weight is read.
    """
    console.report_heading(str(model.source_directory))
    for title, columns, rows in (
        ("hyperparameters given (params.json)", _VALUES, _given(model)),
        ("hyperparameters used, derived ones included", _VALUES, _used(model)),
        ("tensors", _TENSORS, [_tensor_row(*item) for item in model.tensors.items()]),
        ("sizes", _VALUES, _sizes(model)),
    ):
        console.report_line()
        console.report_heading(title)
        console.report_table(columns, rows)


def _given(model: Model) -> list[tuple[str, str]]:
    return [(name, str(value)[:_LONGEST_VALUE]) for name, value in model.checkpoint.params.items()]


def _used(model: Model) -> list[tuple[str, str]]:
    """Returns the fields of `ModelArgs` and what follows from them."""
    args = model.args
    fields = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    fields["dtype"] = args.dtype.name
    scaling = fields.pop("rope_scaling")
    if scaling is not None:
        fields |= {f"rope_scaling.{k}": v for k, v in dataclasses.asdict(scaling).items()}
    fields["group_size (n_heads / n_kv_heads)"] = args.group_size
    fields["RoPE pairs per head (head_dim / 2)"] = args.head_dim // 2
    if model.tokenizer is not None:
        fields["special tokens"] = len(model.tokenizer.special_tokens)
    return [(name, str(value)) for name, value in fields.items()]


def _tensor_row(name: str, tensor: Tensor) -> tuple[str, str, str, str]:
    return name, str(list(tensor.shape)), tensor.dtype.name, str(tensor.nbytes)


def _sizes(model: Model) -> list[tuple[str, str]]:
    per_token = kv_cache_bytes(model.args, 1)
    longest = model.args.max_context_length
    return [
        ("tensors", str(len(model.tensors))),
        ("parameters", str(model.parameter_count)),
        ("bytes of tensors", _bytes(sum(tensor.nbytes for tensor in model.tensors.values()))),
        ("bytes of mapped files", _bytes(model.mapped_bytes)),
        ("KV cache bytes per token", _bytes(per_token)),
        (f"KV cache bytes for {longest} tokens", _bytes(per_token * longest)),
    ]


def _bytes(count: int) -> str:
    return f"{count} ({readable_bytes(count)})" if count >= 1024 else str(count)
