"""The choices of two flags, which the engine knows too.

It imports no other module, because `--help` does not load NumPy.
"""

from collections.abc import Mapping

ATTENTIONS = ("fused", "eager")
"""The forms of attention: one op, or an op for each stage. The first is the default."""

QUANTIZED_TYPES: Mapping[str, str] = {
    "nf4": "nf4",
    "int8": "int8_block",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
}
"""The names of `--quantize`, with the names of their dtypes."""
