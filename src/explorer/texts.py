"""Text for the page: source code, sections of chapter 14, tokens, and run metadata."""

import platform
from pathlib import Path
from typing import Any

from .. import ml
from ..ml import roofline
from ..model import Interventions, Model
from ..model.loader import stored_quantization
from ..tokenizer import Tokenizer
from ..trace.code import PACKAGE, find_page, section_of, symbols_of
from ..trace.events import HOLDS, STAGES
from ..untrusted import label_of

_ROUNDS = 1_000_000  # number of multiply-adds per measurement
_LONGEST_TEXT = 20_000  # maximum length of a token's text before it is truncated


def stages() -> list[dict[str, Any]]:
    """Return the 21 stages, each with its name, source location and chapter section.

    Sections are empty if the chapter is not installed.
    """
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
    """Return the source of each function that implements a stage.

    Returns:
        A mapping from `file function` to the file, the first line number and the source.
    """
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

    Bytes that do not form a whole character are escaped, such as `\\xe2`.
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


# The value of `--explore-with` for the model without its adapters and interventions.
BASE = "base"


def facts_of(
    model: Model, adapters: ml.ScaledAdapters = (), interventions: Interventions = ()
) -> dict[str, Any]:
    """Return metadata about the model, its adapters and changes, and the machine."""
    info = ml.build_info()
    weights = [
        w for w in model.tensors.values() if isinstance(w, ml.Tensor) and w.is_contiguous
    ]
    isa, streams = roofline.fastest_reading(weights)
    layer = model.transformer.layers[0]
    # The page may be shared, so it must not contain the model's full path.
    path = model.source_directory
    where = label_of(path)
    name = label_of(Path(path.name))
    title = "+".join([model.source.name, *(adapter.name for adapter, _ in adapters)])
    scaled = [f"adapter {adapter.name}, scale {x:g}" for adapter, x in adapters]
    changes = [f"changed {each.text}" for each in interventions if each.kind != "record"]
    has_base = bool(adapters or changes)
    return {
        "name": "; ".join([f"{title}, {layer.attention.wq.dtype}", *changes]),
        "model": "; ".join(
            [model.description.replace(where, name, 1), *scaled, *changes]
        ),
        "weights": str(layer.attention.wq.dtype),
        "beside": BASE if has_base else _format_beside(model),
        "options": {
            "model": None if model.source.is_bundled else model.source.name,
            "quantize": _quantize_option(model),
        },
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
    """Return the format that the page suggests for `--explore-with`, or None."""
    if stored_quantization(model.source, model.checkpoint) is not None:
        return None
    is_nf4 = model.transformer.layers[0].attention.wq.dtype is ml.nf4
    return "int8" if is_nf4 else "nf4"


def _quantize_option(model: Model) -> str | None:
    """Return the format to which loading quantized the weights, or None."""
    weight = model.transformer.layers[0].attention.wq
    if stored_quantization(model.source, model.checkpoint) is not None:
        return None
    return weight.dtype.name if isinstance(weight.dtype, ml.BlockDType) else None
