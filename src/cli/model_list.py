"""List the models on this machine for `--list-models`, `/models` and completion."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import ml
from ..catalog.gguf_files import quantization_of
from ..catalog.local_models import LocalModel, local_models
from ..catalog.pip_package import PACKAGED_MODELS
from ..checkpoint.gguf import (
    VOCABULARY,
    GgufArray,
    GgufFile,
    GgufTensor,
    GgufValue,
    read_gguf_beginning,
)
from ..checkpoint.gguf_config import read_gguf_config
from ..memory import readable_bytes
from ..ml.errors import LlamaBoltsError
from ..model.families import ARCHITECTURES
from ..model.sources import find_source
from ..model.sources.gguf import args_from_gguf
from ..tokenizer.gguf_keys import PRE_TOKENIZERS
from ..untrusted import escape_line
from .arguments import Options
from .console import Console, aligned
from .session import Session

_HEADINGS = ("name", "program", "parameters", "format", "size", "loads")
_SIDES = "<<><><"
_YES = "yes"
_LONGEST_NAME = 80
_LONGEST_LABEL = 20
_EMBEDDINGS = "token_embd.weight"
_LONGEST_FAULT = 100
_NONE = "no models; -m smollm2 downloads one"
# Names of the formats of GGUF files, by `general.file_type`. Source: llama.cpp,
# include/llama.h, llama_ftype.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
}
# Prefixes of the names of unsupported formats.
_UNSUPPORTED = ("IQ1", "IQ2", "IQ3", "TQ")


@dataclass(frozen=True)
class _Summary:
    """Metadata from a model's small files or the first keys of a GGUF file."""

    parameters: str
    format: str
    nbytes: int
    fault: str = ""


def model_names() -> list[str]:
    """Return the names that can be completed after `/model`.

    No files are opened except ollama's manifests.
    """
    names = [*PACKAGED_MODELS, *(model.name for model in local_models())]
    return list(dict.fromkeys(names))


def report_models(_options: Options, console: Console) -> None:
    """Write a table row for each model on this machine to standard output."""
    rows = _rows()
    console.report_table(_HEADINGS, rows, _SIDES)
    if not rows:
        console.note(_NONE)


def reply_models(_session: Session, _argument: str) -> str:
    """Return the table of models for a chat."""
    rows = _rows()
    return "\n".join(aligned([_HEADINGS, *rows], _SIDES)) if rows else _NONE


def _rows() -> list[tuple[str, ...]]:
    return [_row(model) for model in local_models()]


def _row(model: LocalModel) -> tuple[str, ...]:
    summary = _Summary("", "", 0, model.fault) if model.fault else _summary(model.path)
    fault = summary.fault.removeprefix(f"{model.path}: ")
    return (
        escape_line(model.name, _LONGEST_NAME),
        model.program,
        summary.parameters,
        summary.format,
        readable_bytes(summary.nbytes) if summary.nbytes else "",
        f"no: {escape_line(fault, _LONGEST_FAULT)}" if fault else _YES,
    )


def _summary(path: Path) -> _Summary:
    try:
        return _directory_summary(path) if path.is_dir() else _gguf_summary(path)
    except (LlamaBoltsError, OSError) as error:
        return _Summary("", "", 0, str(error))


def _directory_summary(path: Path) -> _Summary:
    """Summarize a model directory from its small files."""
    source = find_source(path)
    shapes = source.args.tensor_shapes
    count = sum(math.prod(shape) for shape in shapes.values())
    kind = source.quantization or str(source.args.dtype)
    nbytes = sum(os.stat(file).st_size for file in source.weight_files)
    return _Summary(_readable_count(count), kind, nbytes)


def _gguf_summary(path: Path) -> _Summary:
    """Summarize a GGUF file from the keys that precede its vocabulary.

    Reading up to the tensors, which follow the vocabulary, would take too long.
    """
    file = read_gguf_beginning(path)
    kind = _FILE_TYPES.get(_integer(file.keys, "general.file_type"), "")
    kind = kind or quantization_of(path.name) or "GGUF"
    nbytes = sum(os.stat(part).st_size for part in _parts(path, file))
    label = file.keys.get("general.size_label")
    count = escape_line(label, _LONGEST_LABEL) if isinstance(label, str) else ""
    fault = ""
    try:
        by_keys = _gguf_count(file)  # also checks the keys
        count = count or by_keys
    except LlamaBoltsError as error:
        fault = str(error)
    pre = file.keys.get("tokenizer.ggml.pre", "default")
    if not fault and kind.startswith(_UNSUPPORTED):
        fault = f"format: expected a supported one, got {kind}"
    if (
        not fault
        and file.keys.get("tokenizer.ggml.model") == "gpt2"
        and pre not in PRE_TOKENIZERS
    ):
        fault = f"tokenizer.ggml.pre: expected a supported one, got {pre}"
    return _Summary(count, kind, nbytes, fault)


def _gguf_count(file: GgufFile) -> str:
    """Compute the parameter count from the keys, as if the output were not tied."""
    vocabulary = file.keys.get(VOCABULARY)
    tokens = vocabulary.count if isinstance(vocabulary, GgufArray) else 0
    config = read_gguf_config(file, ARCHITECTURES)
    shape = (config.sizes["vocab_size"] or tokens, config.sizes["dim"])
    embeddings = GgufTensor(_EMBEDDINGS, ml.bfloat16, shape, 0, 0)
    family = ARCHITECTURES[config.architecture]
    args = args_from_gguf(config, {_EMBEDDINGS: embeddings}, family)
    return _readable_count(sum(math.prod(shape) for shape in args.tensor_shapes.values()))


def _parts(path: Path, file: GgufFile) -> list[Path]:
    """Return all files of a split model, which are in the same directory."""
    count = _integer(file.keys, "split.count")
    ending = f"-00001-of-{count:05d}.gguf"
    if count < 2 or not path.name.endswith(ending):
        return [path]
    stem = path.name.removesuffix(ending)
    return [
        path.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)
    ]


def _integer(keys: Mapping[str, GgufValue], key: str) -> int:
    """Return the value of a key if it is an integer, or else -1."""
    value = keys.get(key)
    return value if isinstance(value, int) else -1


def _readable_count(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
