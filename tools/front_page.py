"""The tables of README.md: memory by the forecast of the program, speed by PERFORMANCE.md."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from src.memory import readable_bytes
from src.model import ModelArgs
from src.model.args import EMBEDDINGS, args_from_params
from src.model.forecast import MemoryForecast
from src.model.quantization import OUTPUT, quantization_of, quantized_model_bytes

from .pages import ROOT, PageError
from .runs import bundled_model

_POSITIONS = 4096
_LLAMA_3 = {
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
}
_SMALL = _LLAMA_3 | {"multiple_of": 256}
_LARGE = _LLAMA_3 | {"ffn_dim_multiplier": 1.3}
# From the `params.json` files of the published models, and whether the output is the embeddings.
_MODELS: Mapping[str, tuple[Mapping[str, object], bool]] = {
    "Llama 3.2 1B": (
        _SMALL | {"dim": 2048, "n_layers": 16, "n_heads": 32, "ffn_dim_multiplier": 1.5}, True,
    ),
    "Llama 3.2 3B": (
        _SMALL | {"dim": 3072, "n_layers": 28, "n_heads": 24, "ffn_dim_multiplier": 1.0}, True,
    ),
    "Llama 3.1 8B": (
        _LARGE | {"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 1024}, False,
    ),
    "Llama 3.3 70B": (
        _LARGE | {"dim": 8192, "n_layers": 80, "n_heads": 64, "multiple_of": 4096}, False,
    ),
}  # fmt: skip
_ROWS = (
    ("Llama 3.2 1B", None),
    ("Llama 3.2 3B", None),
    ("Llama 3.1 8B", None),
    ("Llama 3.1 8B", "int8"),
    ("Llama 3.1 8B", "nf4"),
    ("Llama 3.3 70B", "nf4"),
)


def memory(_page: Path, _argument: str) -> str:
    """Return the table of models: bytes of the files, and what must be allocated beside them."""
    rows = [
        f"| model | weights | weight files | allocated for {_POSITIONS} positions | together |",
        "|---|---|---|---|---|",
        _row("bundled", "bfloat16", bundled_model().args, bundled_model().mapped_bytes),
    ]
    for name, quantize in _ROWS:
        params, is_tied = _MODELS[name]
        args = args_from_params(params)
        rows.append(_row(name, quantize or "bfloat16", args, weight_bytes(args, is_tied, quantize)))
    return "\n".join(rows)


def weight_bytes(args: ModelArgs, is_tied: bool, quantize: str | None) -> int:
    """Return the bytes of a model's weights; those of a quantized one as it is saved."""
    counts = {name: math.prod(shape) for name, shape in args.tensor_shapes.items()}
    if quantize is not None:
        embeddings = counts[EMBEDDINGS] * args.dtype.itemsize
        return embeddings + quantized_model_bytes(args, quantization_of(quantize))
    return args.dtype.itemsize * (sum(counts.values()) - (counts[OUTPUT] if is_tied else 0))


def _row(name: str, weights: str, args: ModelArgs, nbytes: int) -> str:
    needed = MemoryForecast(args, _POSITIONS, mapped=nbytes).needed
    sizes = " | ".join(readable_bytes(count) for count in (nbytes, needed, nbytes + needed))
    return f"| {name} | {weights} | {sizes} |"


def speed(_page: Path, _argument: str) -> str:
    """Return the table of speeds against other engines, from the tables of PERFORMANCE.md."""
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    text = text.partition("\n### Zen 4\n")[2].partition("\n### ")[0]
    rows = ["| speed relative to | llama.cpp | transformers |", "|---|---|---|"]
    for what, run in (
        ("new tokens", "decode"),
        ("prompt of 22 tokens", "prompt of 22"),
        ("prompt of 512 tokens", "prompt of 512"),
    ):
        cpp, hub = (measured(text, f"{run} over {it}") for it in ("llama.cpp", "transformers"))
        rows.append(f"| {what}, bfloat16 | {cpp} | {hub} |")
    for weights, theirs in (("int8", "Q8_0"), ("nf4", "Q4_0")):
        for column, what in enumerate(
            ("new tokens", "prompt of 22 tokens", "prompt of 512 tokens"), start=1
        ):
            found = measured(text, f"{weights} over llama.cpp's {theirs}", column)
            rows.append(f"| {what}, {weights} against {theirs} | {found} |  |")
    return "\n".join(rows)


def measured(text: str, row: str, column: int = 0) -> str:
    """Return the median and the range of a row, as they are written in a page.

    Args:
        text: The page.
        row: The first column.
        column: Which of the others has both, as `1.41 (1.39 - 1.49)`; with 0 the second one has
            the median and the third one the range.

    Raises:
        PageError: No table has such a row.
    """
    number = r"([\d.]+)"
    if column:
        both = rf"{number} \({number} - {number}\)"
        pattern = r"\|[^|]*" * (column - 1) + rf"\| {both} \|"
    else:
        pattern = rf"\|[^|]*\| {number} \| {number} - {number} \|"
    found = re.search(rf"^\| {re.escape(row)} {pattern}", text, flags=re.MULTILINE)
    if found is None:
        raise PageError(f"docs/PERFORMANCE.md: expected a row {row!r} with a median and a range")
    return f"{found[1]} ({found[2]} - {found[3]})"
