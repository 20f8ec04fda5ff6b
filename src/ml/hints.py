"""Error texts for names that other tensor libraries have and this one lacks.

Each row names the call to use instead.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import NoReturn

_NO_GRADIENTS = "leave it out: there are no gradients here"
_NO_DEVICES = "leave it out: tensors are in the memory of the processor"

# Calls to use instead of an attribute of a tensor, and of a name in the module.
_OF_TENSORS = {
    "H": "x.T",
    "add": "x + y",
    "backward": _NO_GRADIENTS,
    "byte": "x.to('uint8')",
    "char": "x.to('int8')",
    "chunk": "x.split(size, dim)",
    "clamp": "x.clip(min, max)",
    "clone": "x.copy()",
    "cpu": _NO_DEVICES,
    "cuda": _NO_DEVICES,
    "data": "x",
    "detach": _NO_GRADIENTS,
    "device": _NO_DEVICES,
    "div": "x / y",
    "dot": "ml.matmul(x, y)",
    "double": "x.float()",
    "eq": "x == y",
    "ge": "x >= y",
    "grad": _NO_GRADIENTS,
    "gt": "x > y",
    "index_select": "x[ids] or ml.get_rows(x, ids)",
    "le": "x <= y",
    "lt": "x < y",
    "mm": "ml.matmul(x, y)",
    "mul": "x * y",
    "ne": "x != y",
    "nelement": "x.numel()",
    "new_zeros": "ml.zeros_like(x)",
    "nonzero": "x.numpy().nonzero()",
    "prod": "x.log().sum().exp()",
    "repeat": "ml.cat([x, x], dim), x.expand(sizes) or x.repeat_interleave(n, dim)",
    "requires_grad": _NO_GRADIENTS,
    "scatter": "x[index] = value",
    "sub": "x - y",
    "swapaxes": "x.transpose(a, b)",
    "t": "x.T",
    "type": "x.to(dtype) or x.dtype",
    "type_as": "x.to(y.dtype)",
    "unbind": "list(x)",
    "view_as": "x.reshape(y.shape)",
    "where": "ml.where(condition, a, b)",
}
_OF_MODULE = {
    "Size": "tuple",
    "bmm": "ml.matmul(a, b)",
    "chunk": "ml.split(x, size, dim)",
    "clamp": "ml.clip(x, min, max)",
    "concat": "ml.cat(tensors, dim)",
    "cuda": _NO_DEVICES,
    "device": _NO_DEVICES,
    "dot": "ml.matmul(a, b)",
    "double": "ml.float32",
    "einsum": "ml.matmul with transpose or permute",
    "embedding": "ml.get_rows(table, ids) or table[ids]",
    "empty": "ml.Tensor.empty(shape, dtype)",
    "eq": "a == b",
    "float": "ml.float32",
    "from_numpy": "ml.Tensor.from_numpy(array)",
    "half": "ml.float16",
    "index_select": "x[ids] or ml.get_rows(x, ids)",
    "inf": "math.inf",
    "int": "ml.int32",
    "isnan": "x != x",
    "linear": "ml.linear_transformation(x, weight)",
    "load": "src.model.load_model(path).tensors",
    "long": "ml.int64",
    "manual_seed": "generator=ml.Generator(seed)",
    "mm": "ml.matmul(a, b)",
    "mul": "ml.multiply(a, b)",
    "nan": "math.nan",
    "nn": "functions of ml, such as ml.softmax and ml.silu",
    "no_grad": _NO_GRADIENTS,
    "pi": "math.pi",
    "randint": "(ml.rand(shape) * n).to('int64')",
    "reshape": "x.reshape(shape)",
    "scaled_dot_product_attention": "ml.attention, or ml.matmul and ml.softmax",
    "subtract": "ml.sub(a, b)",
    "transpose": "x.transpose(a, b)",
    "view_as_complex": "x.view_as_complex()",
    "view_as_real": "x.view_as_real()",
}

# Texts for operators that tensors lack.
MISSING_OPERATORS = {
    "floordiv": "// is not an operator of tensors: use (a / b).to('int32') for a, b >= 0",
    "mod": "% is not an operator of tensors: use a - (a / b).to('int32') * b",
    "divmod": "divmod is not a function of tensors: use (a / b).to('int32')",
    "lshift": "<< is not an operator of tensors: use a * 2 ** n",
    "rshift": ">> is not an operator of tensors: use (a / 2 ** n).to('int32')",
}


class MissingName:
    """A name that a class lacks; reading it raises AttributeError with a hint.

    It is an attribute of the class. `__getattr__` would not need a list of names, but in
    a class that has it, CPython reads every attribute more slowly: an op that adds two
    tensors took 1.25 times as long.

    Args:
        name: The missing name.
        hint: What to use instead.
    """

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}; {self._hint}"
        )


def add_missing_names(owner: type, hints: Mapping[str, str]) -> None:
    """Let a class raise AttributeError with a hint for names that it does not have.

    `dir` of an instance does not list these names.
    """
    existing = {*dir(owner)}
    for name, hint in hints.items():
        if name not in existing:
            setattr(owner, name, MissingName(name, hint))
    setattr(owner, "__dir__", _existing_names)  # noqa: B010 (mypy rejects an assignment)


def _existing_names(instance: object) -> list[str]:
    """Return the names that an object has, without those of `MissingName`."""
    owner = type(instance)
    return [
        name
        for name in object.__dir__(instance)
        if not isinstance(inspect.getattr_static(owner, name, None), MissingName)
    ]


def tensor_hints(names: Iterable[str]) -> dict[str, str]:
    """Return the hints for tensors; the argument is the names that tensors have."""
    hints = {name: _as_sentence(hint) for name, hint in _OF_TENSORS.items()}
    calls = {name: hint for name, hint in _OF_TENSORS.items() if hint.startswith("x")}
    calls |= {name: f"x.{name}(...)" for name in names}
    for name, call in calls.items():
        hints[f"{name}_"] = f"use x = {call}, which leaves the old tensor unchanged"
    return hints


def _as_sentence(hint: str) -> str:
    return hint if hint.startswith("leave") else f"use {hint}"


def missing_name(name: str) -> str:
    """Return the text of the AttributeError for a name that the module `ml` lacks, with
    the call to use instead if it is known.
    """
    hint = _OF_MODULE.get(name)
    text = f"module 'ml' has no attribute {name!r}"
    return text if hint is None else f"{text}; {_as_sentence(hint)}"
