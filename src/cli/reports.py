"""Reports: `--metadata`, `--info` and `--explain`."""

import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from .. import __version__, ml
from ..memory import available_memory, readable_bytes
from ..model import (
    QUANTIZATIONS,
    LinearRopeScaling,
    Model,
    RopeFactors,
    RopeScaling,
    YarnRopeScaling,
    kv_cache_bytes,
)
from ..trace.code import PACKAGE, find_page, section_of
from ..trace.events import STAGES
from .arguments import Options
from .console import Console, UsageError
from .loading import open_model

_VALUES = ("name", "value")
_TENSORS = ("name", "shape", "dtype", "bytes", "name in the file")
_LONGEST_VALUE = 80
_ROPE_SCALINGS = {
    RopeScaling: "llama3",
    LinearRopeScaling: "linear",
    RopeFactors: "rope_freqs.weight",
    YarnRopeScaling: "yarn",
}
_LIKE_LLAMA = ("", "None", "()", "False", "1.0")  # default values of Llama, as strings
_LIBRARIES = ("numpy", "ml_dtypes", "regex", "structlog", "rich", "prompt_toolkit")


def report_metadata(options: Options, console: Console) -> None:
    """Print a model's hyperparameters, tensors, counts and sizes; read no weights."""
    model = open_model(options, console)
    console.report_heading(str(model.source_directory))
    checkpoint = model.checkpoint
    source = model.source

    names = checkpoint.names_in_files
    columns = _TENSORS if names else _TENSORS[:-1]
    tensors = [
        (
            name,
            str(list(tensor.shape)),
            tensor.dtype.name,
            str(tensor.nbytes),
            names.get(name, ""),
        )
        for name, tensor in model.tensors.items()
    ]
    source_rows = [
        ("format", checkpoint.source_format),
        *(("file", file.name) for file in checkpoint.files),
        *(("note", note) for note in model.notes),
    ]
    for title, headings, rows in (
        ("source", _VALUES, source_rows),
        (
            f"hyperparameters given ({source.given_label})",
            _VALUES,
            _flat_rows(source.given),
        ),
        ("hyperparameters used and derived", _VALUES, _used_rows(model)),
        ("tensors", columns, [row[: len(columns)] for row in tensors]),
        ("sizes", _VALUES, _size_rows(model)),
    ):
        console.report("")
        console.report_heading(title)
        console.report_table(headings, rows, "<<<><")


def _flat_rows(params: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the entries of a hyperparameter file, with nested objects flattened."""
    flat: dict[str, object] = {}
    for name, value in params.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return [(name, str(value)[:_LONGEST_VALUE]) for name, value in flat.items()]


def _used_rows(model: Model) -> list[tuple[str, str]]:
    """Return the fields of `ModelArgs` and values derived from them."""
    args = model.args
    fields = vars(args) | {"dtype": args.dtype.name, "biases": ", ".join(args.biases)}
    del fields["layer_rows"]
    fields = {
        name: value for name, value in fields.items() if str(value) not in _LIKE_LLAMA
    }
    scaling = fields.pop("rope_scaling", None)
    if scaling is not None:
        fields["rope_scaling"] = _ROPE_SCALINGS.get(type(scaling), type(scaling).__name__)
        fields |= dict(_flat_rows({"rope_scaling": vars(scaling)}))
    fields["group_size (n_heads / n_kv_heads)"] = args.group_size
    fields["RoPE pairs per head (head_dim / 2)"] = args.head_dim // 2
    if model.tokenizer is not None:
        fields["special tokens"] = len(model.tokenizer.special_tokens)
    fields["tokens that end an answer"] = (
        ", ".join(map(str, sorted(model.stop_ids))) or "none"
    )
    return [(name, str(value)) for name, value in fields.items()]


def _size_rows(model: Model) -> list[tuple[str, str]]:
    longest = model.args.max_context_length
    longest_bytes = kv_cache_bytes(model.args, longest)
    rows = [
        ("tensors", str(len(model.tensors))),
        ("parameters", str(model.parameter_count)),
        (
            "bytes of tensors",
            exact_bytes(sum(tensor.nbytes for tensor in model.tensors.values())),
        ),
    ]
    weights = [w for w in model.tensors.values() if isinstance(w, ml.QuantizedTensor)]
    if weights:
        nbytes = sum(w.nbytes for w in weights)
        size = sum(w.size for w in weights)
        rows.append(("bytes of quantized matrices", exact_bytes(nbytes)))
        rows.append(("bits per value in them", f"{8 * nbytes / size:.3f}"))
    return [
        *rows,
        ("bytes of mapped files", exact_bytes(model.checkpoint.mapped_bytes)),
        ("KV cache bytes per token", exact_bytes(longest_bytes // longest)),
        (f"KV cache bytes for {longest} tokens", exact_bytes(longest_bytes)),
    ]


def exact_bytes(count: int) -> str:
    """Format a byte count exactly, followed by a human-readable size."""
    return f"{count} ({readable_bytes(count)})" if count >= 1024 else str(count)


def report_info(_options: Options, console: Console) -> None:
    """Print versions, machine and kernels; load no model."""
    free = available_memory()
    info = ml.build_info()
    info["available_isas"] = ", ".join(info["available_isas"])
    bits = [
        f"{name} {8 * x.block_bytes / x.block_size:g}"
        for name, x in QUANTIZATIONS.items()
    ]
    rows = [
        ("llama-bolts", __version__),
        ("Python", f"{platform.python_version()} ({platform.platform()})"),
        *((name, metadata.version(name)) for name in _LIBRARIES),
        *((name.replace("_", " "), str(value)) for name, value in info.items()),
        ("quantized weights", f"{', '.join(bits)} bits"),
        ("free memory", "unknown" if free is None else readable_bytes(free)),
    ]
    console.report_table(("", ""), rows)


def report_stage(options: Options, console: Console) -> None:
    """Print the section about a stage and the locations of its diagram and code."""
    assert options.explain is not None
    stage = STAGES[options.explain]
    chapter, _, anchor = stage.chapter.partition("#")
    page = _page_path(chapter)
    diagram = _page_path(stage.diagram)
    section = section_of(page, stage.heading)
    if not section:
        raise UsageError(f"{page}: heading: expected {stage.heading!r}, got none")
    console.report_markdown(f"## {stage.heading}\n\n{_unfolded(section)}")
    code = f"code:    {PACKAGE.parent / stage.code} {stage.function}"
    console.report("", f"chapter: {page}#{anchor}", f"diagram: {diagram}", code)


def _unfolded(section: str) -> str:
    """Return a section whose answers are plain text: a terminal cannot hide text."""
    shown = re.sub(r"<details>\n<summary>(.*?)</summary>\n\n", r"**\1.** ", section)
    return shown.replace("\n\n</details>", "")


def _page_path(name: str) -> Path:
    path = find_page(name)
    if path is None:
        paths = f"{PACKAGE / name} or {PACKAGE.parent / name}"
        raise UsageError(f"--explain: expected {paths}, got neither")
    return path
