"""The ops, one file per family: functions from tensors to new tensors."""
# ruff: noqa: A004, I001 (names such as `sum` are the field's words; few lines for many names)

# fmt: off
from .attention import attention, read_cache, repeat_heads, rotary_embedding, write_cache
from .compare import allclose, equal, greater, greater_equal, less, less_equal, not_equal, where
from .creation import (
    Generator, arange, eye, full, full_like, ones, ones_like, rand, randn, tensor, zeros,
    zeros_like,
)
from .elementwise import (
    abs, add, clip, div, exp, gelu, log, multiply, neg, outer, polar, pow, relu, rsqrt, sigmoid,
    silu, sqrt, sub, swiglu, tanh,
)
from .linear import linear_transformation, linear_transformations, matmul
from .lookup import gather, get_rows, sort, topk, tril, triu
from .movement import concatenate, expand, flatten, permute, split, squeeze, stack, unsqueeze
from .reduction import (
    argmax, cumsum, layer_norm, log_softmax, max, mean, min, rms_norm, softmax, sum,
)

__all__ = [
    "Generator", "abs", "add", "allclose", "arange", "argmax", "attention", "clip",
    "concatenate", "cumsum", "div", "equal", "exp", "expand", "eye", "flatten", "full",
    "full_like", "gather", "gelu", "get_rows", "greater", "greater_equal", "layer_norm", "less",
    "less_equal", "linear_transformation", "linear_transformations", "log", "log_softmax",
    "matmul", "max", "mean", "min", "multiply", "neg", "not_equal", "ones", "ones_like",
    "outer", "permute", "polar", "pow", "rand", "randn", "read_cache", "relu", "repeat_heads",
    "rms_norm", "rotary_embedding", "rsqrt", "sigmoid", "silu", "softmax", "sort", "split",
    "sqrt", "squeeze", "stack", "sub", "sum", "swiglu", "tanh", "tensor", "topk", "tril",
    "triu", "unsqueeze", "where", "write_cache", "zeros", "zeros_like",
]
