"""The inert values that stand for classes and functions while a pickle is read."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Global", "GlobalFunction", "OrderedDictValue"]


class OrderedDictValue(dict[str, object]):
    """What `collections.OrderedDict` stands for: a dict whose attributes (BUILD) are dropped."""

    __slots__ = ()


class Global:
    """A global that is only ever passed around, for example a storage class."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class GlobalFunction(Global):
    """A global that REDUCE may call: `build` checks the arguments and returns an inert value.

    Args:
        name: dotted name, as shown in errors.
        build: takes the tuple of arguments; raises ValueError with `rule: got ...` on bad ones.
    """

    __slots__ = ("build",)

    def __init__(self, name: str, build: Callable[[tuple[object, ...]], object]) -> None:
        super().__init__(name)
        self.build = build
