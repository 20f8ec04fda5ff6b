"""The base class of the parts of a network: how they are printed and called."""

from collections.abc import Iterator
from typing import Any

from .. import ml
from ..ml.hints import add_missing_names

_BY_NAME = "model.tensors has the weights by name"
# Hints for names that modules of PyTorch have.
_HINTS = {
    "eval": "leave it out: models have no training mode",
    "named_parameters": _BY_NAME,
    "parameters": _BY_NAME,
    "state_dict": _BY_NAME,
}


class Module:
    """A part of a network, with weights and other parts as attributes.

    `part(x)` calls `part.forward(x)`, and `print(part)` shows a tree of its parts with
    the shapes and dtypes of the weights.
    """

    def __call__(self, x: ml.Tensor) -> ml.Tensor:
        """Return the result of `forward`."""
        forward: Any = getattr(self, "forward")  # noqa: B009 (subclasses define it)
        result: ml.Tensor = forward(x)
        return result

    def __repr__(self) -> str:
        lines = [
            f"  {line}"
            for name, text in _parts(self)
            for line in f"({name}): {text}".split("\n")
        ]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


add_missing_names(Module, _HINTS)


def _parts(module: Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each weight and part, once each."""
    shown: set[int] = set()
    for name, value in vars(module).items():
        if name.startswith("_") or id(value) in shown:
            continue
        shown.add(id(value))
        if isinstance(value, ml.Tensor | ml.QuantizedTensor):
            yield name, f"{list(value.shape)} {value.dtype}"
        elif isinstance(value, Module):
            yield name, repr(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Module):
            yield from _sequence(name, value)


def _sequence(name: str, modules: tuple[Module, ...]) -> Iterator[tuple[str, str]]:
    """Yield a line for each run of modules with the same text."""
    texts = [repr(module) for module in modules]
    first = 0
    for end in range(1, len(texts) + 1):
        if end == len(texts) or texts[end] != texts[first]:
            label = f"{first}" if end == first + 1 else f"{first}-{end - 1}"
            yield f"{name}[{label}]", f"{end - first} x {texts[first]}"
            first = end
