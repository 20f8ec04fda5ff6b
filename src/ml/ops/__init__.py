"""The ops, one file per family: functions from tensors to new tensors."""

from .attention import attention, read_cache, repeat_heads, rotary_embedding, write_cache
from .creation import arange, full, full_like, ones, ones_like, triu, zeros, zeros_like
from .elementwise import (
    add,
    add_scalar,
    div_scalar,
    multiply,
    outer,
    polar,
    pow,  # noqa: A004 (the field's word)
    rsqrt,
    silu,
    swiglu,
)
from .linear import linear_transformation, linear_transformations, matmul
from .lookup import get_rows
from .movement import concatenate
from .reduction import argmax, mean, rms_norm, softmax

__all__ = [
    "add",
    "add_scalar",
    "arange",
    "argmax",
    "attention",
    "concatenate",
    "div_scalar",
    "full",
    "full_like",
    "get_rows",
    "linear_transformation",
    "linear_transformations",
    "matmul",
    "mean",
    "multiply",
    "ones",
    "ones_like",
    "outer",
    "polar",
    "pow",
    "read_cache",
    "repeat_heads",
    "rms_norm",
    "rotary_embedding",
    "rsqrt",
    "silu",
    "softmax",
    "swiglu",
    "triu",
    "write_cache",
    "zeros",
    "zeros_like",
]
