"""The functions that csrc/kernels.h declares, with their parameters."""

import re
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).parents[2] / "csrc" / "kernels.h"


@dataclass(frozen=True)
class Parameter:
    type: str
    name: str

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def functions() -> dict[str, tuple[Parameter, ...]]:
    """Return the parameters of each function that Python may call."""
    surface = HEADER.read_text(encoding="utf-8").partition("/* cffi: begin */")[2]
    surface = surface.partition("/* cffi: end */")[0]
    found = re.findall(
        r"^(?:\w+ )+\*?(\w+)\(([^;]*?)\);", without_comments(surface), flags=re.M | re.S
    )
    return {name: _parameters(text) for name, text in found}


def _parameters(text: str) -> tuple[Parameter, ...]:
    if text.strip() == "void":
        return ()
    parts = (
        re.fullmatch(r"(.*?)(\w+)", " ".join(part.split())) for part in text.split(",")
    )
    return tuple(Parameter(part[1].strip(), part[2]) for part in parts if part)


def kernels() -> dict[str, tuple[Parameter, ...]]:
    """Return those that read or write memory: that take a pointer."""
    return {
        name: parameters
        for name, parameters in functions().items()
        if any(parameter.is_pointer for parameter in parameters)
    }
