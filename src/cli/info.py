"""`--info`: versions, kernels, threads and memory of this machine."""

import platform
from importlib import metadata

from .. import __version__, ml
from ..memory import available_memory, readable_bytes
from ..model import QUANTIZATIONS
from .console import Console

_LIBRARIES = ("numpy", "ml_dtypes", "regex", "structlog", "rich", "prompt_toolkit")


def report_info(console: Console) -> None:
    """Write what this installation runs on to standard output; load no model."""
    free = available_memory()
    rows = [
        ("llama-bolts", __version__),
        ("Python", f"{platform.python_version()} ({platform.platform()})"),
        *((name, metadata.version(name)) for name in _LIBRARIES),
        *((name.replace("_", " "), _shown(value)) for name, value in ml.build_info().items()),
        (
            "quantized weights",
            ", ".join(f"{name} ({_bits(d):g} bits)" for name, d in QUANTIZATIONS.items()),
        ),
        ("free memory", "unknown" if free is None else readable_bytes(free)),
    ]
    console.report_table((("", "left"), ("", "left")), rows)


def _bits(dtype: ml.BlockDType) -> float:
    """Return the bits that a number takes, its share of a scale included."""
    codes = 8 * dtype.codes.itemsize / dtype.codes_per_item
    return codes + 8 * dtype.scales.itemsize / dtype.block_size


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
