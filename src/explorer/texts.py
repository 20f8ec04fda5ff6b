"""Texts of the page: lines of code, sections of chapter 14, tokens, the machine."""

import platform
from pathlib import Path
from typing import Any

from .. import ml
from ..ml import roofline
from ..model import Model
from ..model.loader import stored_quantization
from ..tokenizer import Tokenizer
from ..trace.code import PACKAGE, find_page, section_of, symbols_of
from ..trace.events import HOLDS, STAGES
from ..untrusted import label_of

_ROUNDS = 1_000_000  # multiply-adds per measurement
_LONGEST_TEXT = 20_000  # characters of a token; longer texts are cut, with a note


def stages() -> list[dict[str, Any]]:
    """Return the 21 stages with name, code and section (empty without the chapter)."""
    return [
        {
            "number": number,
            "name": stage.name,
            "holds": HOLDS.get(number, ""),
            "function": stage.function,
            "code": stage.code,
            "chapter": stage.chapter,
            "section": section_of(
                find_page(stage.chapter.partition("#")[0]), stage.heading
            ),
        }
        for number, stage in STAGES.items()
    ]


def sources() -> dict[str, dict[str, Any]]:
    """Return the functions of the stages: `file function` -> first line and text."""
    functions: dict[str, dict[str, Any]] = {}
    for stage in STAGES.values():
        name = stage.code.partition(":")[0]
        if source := symbols_of(PACKAGE.parent / name).get(stage.function):
            line, text = source
            functions[f"{name} {stage.function}"] = {
                "file": name,
                "line": line,
                "text": text,
            }
    return functions


def token_text(tokenizer: Tokenizer | None, token: int) -> tuple[str, bool]:
    """Return the text of a token, and whether it is special.

    Bytes that are not a whole character become `\\xe2`.
    """
    if tokenizer is None:
        return f"token {token}", False
    is_special = tokenizer.is_special(token)
    if is_special:
        text = tokenizer.decode([token])
    else:
        text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} and {len(text) - _LONGEST_TEXT} more characters"
    return text, is_special


def facts_of(model: Model) -> dict[str, Any]:
    """Return facts about the model and the machine."""
    info = ml.build_info()
    weights = [
        w for w in model.tensors.values() if isinstance(w, ml.Tensor) and w.is_contiguous
    ]
    isa, streams = roofline.fastest_reading(weights)
    layer = model.transformer.layers[0]
    # The page may be shared, so it does not contain the path of the model.
    path = model.source_directory
    where = label_of(path)
    name = label_of(Path(path.name))
    return {
        "name": f"{model.source.name}, {layer.attention.wq.dtype}",
        "model": model.description.replace(where, name, 1),
        "weights": str(layer.attention.wq.dtype),
        "beside": _format_beside(model),
        "eps": model.args.norm_eps,
        "machine": {
            "instruction set": info["isa"],
            "threads": info["threads"],
            "python": platform.python_version(),
            "readRate": roofline.read_rate(weights, isa, streams),
            "operationRate": roofline.multiply_add_rate(
                layer.feed_forward_dtype.name, _ROUNDS, 3
            ),
        },
    }


def _format_beside(model: Model) -> str | None:
    """Return another format of the model for `--explore-with`, or None."""
    if stored_quantization(model.source, model.checkpoint) is not None:
        return None
    is_nf4 = model.transformer.layers[0].attention.wq.dtype is ml.nf4
    return "int8" if is_nf4 else "nf4"
