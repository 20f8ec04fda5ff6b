"""Reports of the command line: `--metadata`, `--check-weights`, `--info` and `--explain`."""

import dataclasses
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from .. import __version__, ml
from ..checkpoint.torch_pth import check_crcs
from ..memory import available_memory, readable_bytes
from ..model import (
    QUANTIZATIONS,
    LinearRopeScaling,
    Model,
    RopeFactors,
    RopeScaling,
    kv_cache_bytes,
    open_checkpoint,
    read_model_files,
)
from ..trace.code import PACKAGE, find_page, section_of
from ..trace.events import STAGES
from .arguments import Options
from .console import Console, UsageError

_VALUES = (("name", "left"), ("value", "left"))
_TENSORS = (("name", "left"), ("shape", "left"), ("dtype", "left"), ("bytes", "right"))
_NAMES_IN_FILES = (("name in the file", "left"),)
_LONGEST_VALUE = 80
_GIVEN = {"Meta": "params.json", "Hugging Face": "config.json", "GGUF": "keys of the file"}
_ROPE_SCALINGS = {
    RopeScaling: "llama3", LinearRopeScaling: "linear", RopeFactors: "rope_freqs.weight",
}  # fmt: skip
_ZIP = b"PK\x03\x04"
_LIBRARIES = ("numpy", "ml_dtypes", "regex", "structlog", "rich", "prompt_toolkit")


def report_metadata(console: Console, model: Model) -> None:
    """Write hyperparameters, tensors, counts and bytes of a model; no weight is read."""
    console.report_heading(str(model.source_directory))
    given = _GIVEN[model.files.directory.layout]
    names = model.checkpoint.names_in_files
    source = [
        ("format", model.checkpoint.source_format),
        *(("file", file.name) for file in model.checkpoint.files),
        *(("note", note) for note in model.notes),
    ]
    for title, columns, rows in (
        ("source", _VALUES, source),
        (f"hyperparameters given ({given})", _VALUES, list(_given(model.files.given))),
        ("hyperparameters used and derived", _VALUES, _used(model)),
        ("tensors", (*_TENSORS, *(_NAMES_IN_FILES if names else ())), list(_tensors(model))),
        ("sizes", _VALUES, _sizes(model)),
    ):
        console.report_line()
        console.report_heading(title)
        console.report_table(columns, rows)


def _given(params: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the content of a file of hyperparameters; an object's values one by one."""
    for name, value in params.items():
        if isinstance(value, dict) and not prefix:
            yield from _given(value, f"{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:_LONGEST_VALUE]


_OF_FAMILIES = (
    "layers_without_rope", "embedding_multiplier", "residual_multiplier", "attention_multiplier",
    "logits_scaling",
)  # fmt: skip


def _used(model: Model) -> list[tuple[str, str]]:
    """Return the fields of `ModelArgs` and what follows from them."""
    args = model.args
    fields = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    fields["dtype"] = args.dtype.name
    parts = dataclasses.asdict(fields.pop("parts")) | {"biases": ", ".join(args.parts.biases)}
    more = parts | {name: fields.pop(name) for name in _OF_FAMILIES}
    fields |= {k: v for k, v in more.items() if str(v) not in ("()", "False", "1.0")}
    scaling = fields.pop("rope_scaling")
    if scaling is not None:
        fields["rope_scaling"] = _ROPE_SCALINGS[type(scaling)]
        fields |= {
            f"rope_scaling.{k}": str(v)[:_LONGEST_VALUE]
            for k, v in dataclasses.asdict(scaling).items()
        }
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
        ("bytes of tensors", exact_bytes(sum(tensor.nbytes for tensor in model.tensors.values()))),
        *_quantized_sizes(model),
        ("bytes of mapped files", exact_bytes(model.checkpoint.mapped_bytes)),
        ("KV cache bytes per token", exact_bytes(longest_bytes // longest)),
        (f"KV cache bytes for {longest} tokens", exact_bytes(longest_bytes)),
    ]


def _quantized_sizes(model: Model) -> list[tuple[str, str]]:
    """Return the bytes of quantized matrices, and what each of their numbers takes."""
    weights = [w for w in model.tensors.values() if isinstance(w, ml.QuantizedTensor)]
    if not weights:
        return []
    nbytes, size = sum(w.nbytes for w in weights), sum(w.size for w in weights)
    return [
        ("bytes of quantized matrices", exact_bytes(nbytes)),
        ("bits per number in them", f"{8 * nbytes / size:.3f}"),
    ]


def exact_bytes(count: int) -> str:
    """Return a number of bytes, and for people in units too."""
    return f"{count} ({readable_bytes(count)})" if count >= 1024 else str(count)


def check_weights(options: Options, console: Console) -> None:
    """Write a line for each file of the model whose bytes agree with its checksums.

    Raises:
        UsageError: A file holds no checksums, so that nothing can be said of it.
        ModelError, CheckpointError: A checksum differs, or the files cannot be used.
    """
    checkpoint = open_checkpoint(read_model_files(options.model), one_by_one=True)
    try:
        for file in checkpoint.mapped:
            unchecked = file.size
            if file.buffer[: len(_ZIP)] == _ZIP:
                progress = console.timed_progress("checking the weights", "bytes")
                unchecked = check_crcs(file, progress)
            if unchecked:
                raise UsageError(
                    f"{file.label}: --check-weights: expected a CRC-32 of every record, "
                    f"got {unchecked} bytes without one (safetensors and GGUF files have none)"
                )
            size = readable_bytes(file.size)
            console.report_line(f"{file.label}: {size} agree with their CRC-32")
    finally:
        console.clear_progress()
        checkpoint.close()


def report_info(console: Console) -> None:
    """Write what this installation runs on to standard output; load no model."""
    free = available_memory()
    bits = [f"{name} {8 * x.block_bytes / x.block_size:g}" for name, x in QUANTIZATIONS.items()]
    rows = [
        ("llama-bolts", __version__),
        ("Python", f"{platform.python_version()} ({platform.platform()})"),
        *((name, metadata.version(name)) for name in _LIBRARIES),
        *((name.replace("_", " "), _shown(value)) for name, value in ml.build_info().items()),
        ("quantized weights", f"{', '.join(bits)} bits"),
        ("free memory", "unknown" if free is None else readable_bytes(free)),
    ]
    console.report_table((("", "left"), ("", "left")), rows)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def report_stage(console: Console, number: int) -> None:
    """Write the section of a stage, and where its diagram and its code are.

    Args:
        console: Takes the section, rendered for a terminal, as it is for anything else.
        number: Of the stage, from 1.

    Raises:
        UsageError: The chapter is not installed, or has no such section.
    """
    stage = STAGES[number]
    chapter, _, anchor = stage.chapter.partition("#")
    page, diagram = _installed(chapter), _installed(stage.diagram)
    section = section_of(page, stage.heading)
    if not section:
        raise UsageError(f"{page}: --explain: expected a heading {stage.heading!r}, got none")
    console.report_markdown(f"## {stage.heading}\n\n{section}")
    console.report_line()
    for name, place in (
        ("chapter", f"{page}#{anchor}"),
        ("diagram", str(diagram)),
        ("code", f"{PACKAGE.parent / stage.code} {stage.function}"),
    ):
        console.report_line(f"{name + ':':<9}{place}")


def _installed(name: str) -> Path:
    path = find_page(name)
    if path is None:
        places = f"{PACKAGE / name} or {PACKAGE.parent / name}"
        raise UsageError(f"--explain: expected {places}, got neither")
    return path
