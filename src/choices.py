"""The choices for four flags, shared by the command line and the engine.

This module imports nothing from the package, so that `--help` need not load NumPy.
"""

from collections.abc import Mapping

ATTENTIONS = ("fused", "eager")
"""Attention runs as one op or as one op per stage. The first choice is the default."""

ACTIVATIONS = ("int16", "int8")
"""How products with block-quantized weights round bfloat16 activations: to integers of 16
or 8 bits. The first choice is the default."""

CACHE_TYPES = ("plain", "q8_0")
"""How the cache stores keys and values: in the dtype of the activations, or as codes of 8
bits with a scale per 32 elements of a head. The first choice is the default."""

QUANTIZED_TYPES: Mapping[str, str] = {
    "nf4": "nf4",
    "int8": "int8_block",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
}
"""A mapping from each choice for `--quantize` to the name of the dtype."""
