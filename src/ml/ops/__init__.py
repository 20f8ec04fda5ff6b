"""The ops, one file per family: functions from tensors to new tensors."""

# Names such as `sum` and `pow` are the field's words.
from .attention import attention, read_cache, repeat_heads, rotary_embedding, write_cache
from .compare import allclose, equal, greater, greater_equal, less, less_equal, not_equal, where
from .creation import arange, eye, full, full_like, ones, ones_like, tensor, zeros, zeros_like
from .elementwise import add, div, multiply, outer, polar, pow, silu, sub, swiglu  # noqa: A004
from .functions import abs, clip, exp, gelu, log, neg, relu, rsqrt, sigmoid, sqrt, tanh  # noqa: A004
from .linear import linear_transformation, linear_transformations, matmul
from .lookup import gather, get_rows, sort, topk, tril, triu
from .movement import concatenate, expand, flatten, permute, split, squeeze, stack, unsqueeze
from .random import Generator, rand, randn
from .reduction import (
    argmax,
    cumsum,
    layer_norm,
    log_softmax,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    rms_norm,
    softmax,
    sum,  # noqa: A004
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
]  # fmt: skip
