"""Error texts for names that other tensor libraries have and this one lacks.

Each row names the call to use instead.
"""

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


def missing_name(kind: str, name: str) -> str:
    """Return the text of an AttributeError, with the call to use instead if known.

    Args:
        kind: The kind of object that lacks the name: "Tensor" or "ml".
        name: The missing name.
    """
    rows = _OF_MODULE if kind == "ml" else _OF_TENSORS
    hint = rows.get(name)
    text = f"{kind!r} object has no attribute {name!r}"
    if kind == "ml":
        text = f"module 'ml' has no attribute {name!r}"
    if hint is None and name.endswith("_") and not name.startswith("_"):
        plain = name.removesuffix("_")
        hint = f"x = x.{plain}(...), which leaves the old tensor unchanged"
    if hint is None:
        return text
    return f"{text}; {hint}" if hint.startswith("leave") else f"{text}; use {hint}"
