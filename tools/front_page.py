"""The tables of README.md: memory by the forecast of the program, speed by PERFORMANCE.md."""

import re
from pathlib import Path

from src.memory import readable_bytes
from src.model import ModelArgs
from src.model.forecast import MemoryForecast

from .pages import ROOT, PageError, table
from .runs import bundled_model
from .simulation import MODELS, llama, weight_bytes

_POSITIONS = 4096
# Published models, whether the output is the embeddings, and how they are quantized.
_ROWS = (
    ("Llama 3.2 1B", llama(2048, 16, 32, 8192, 64), True, None),
    ("Llama 3.2 3B", llama(3072, 28, 24, 8192), True, None),
    ("Llama 3.1 8B", MODELS["8B"], False, None),
    ("Llama 3.1 8B", MODELS["8B"], False, "int8"),
    ("Llama 3.1 8B", MODELS["8B"], False, "nf4"),
    ("Llama 3.3 70B", MODELS["70B"], False, "nf4"),
)
_PROMPTS = ("new tokens", "prompt of 22 tokens", "prompt of 512 tokens")


def memory(_page: Path, _argument: str) -> str:
    """Return the table of models: bytes of the files, and what must be allocated beside them."""
    bundled = bundled_model()
    rows = [
        _row("bundled", bundled.args, bundled.checkpoint.mapped_bytes),
        *(
            _row(name, args, weight_bytes(args, is_tied, quantize), quantize)
            for name, args, is_tied, quantize in _ROWS
        ),
    ]
    together = f"allocated for {_POSITIONS} positions | together"
    return table(f"| model | weights | weight files | {together} |\n|---|---|---|---|---|", rows)


def _row(name: str, args: ModelArgs, nbytes: int, quantize: str | None = None) -> list[str]:
    needed = MemoryForecast(args, _POSITIONS, mapped=nbytes).needed
    sizes = map(readable_bytes, (nbytes, needed, nbytes + needed))
    return [name, quantize or "bfloat16", *sizes]


def speed(_page: Path, _argument: str) -> str:
    """Return the table of speeds against other engines, from the tables of PERFORMANCE.md."""
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    text = text.partition("\n### Zen 4\n")[2].partition("\n### ")[0]
    rows = []
    for what in _PROMPTS:
        run = "decode" if what == "new tokens" else what.removesuffix(" tokens")
        found = (measured(text, f"{run} over {it}") for it in ("llama.cpp", "transformers"))
        rows.append((f"{what}, bfloat16", *found))
    for weights, theirs in (("int8", "Q8_0"), ("nf4", "Q4_0")):
        for column, what in enumerate(_PROMPTS, 1):
            ratio = measured(text, f"{weights} over llama.cpp's {theirs}", column)
            rows.append((f"{what}, {weights} against {theirs}", ratio, ""))
    return table("| speed relative to | llama.cpp | transformers |\n|---|---|---|", rows)


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
