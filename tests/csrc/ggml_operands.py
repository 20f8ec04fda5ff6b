"""Blocks of the formats of GGUF files: random ones, and what they consist of, by NumPy
alone.
"""

from collections.abc import Callable

import numpy as np

from src.ml import BlockDType

from .operands import Array, f32

HALF = 16
# Where a block has float16 numbers.
HALVES: dict[str, tuple[int, ...]] = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "mxfp4": (),
}
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
_EIGHT = np.arange(8)


def blocks_of(dtype: BlockDType, size: int, values: Array, seed: int = 0) -> Array:
    """Make blocks of any bytes, uint8 [blocks, bytes], with these as float16, over and
    over.
    """
    generator = np.random.default_rng([seed, size])
    blocks = size // dtype.block_size
    data = generator.integers(0, 256, (blocks, dtype.block_bytes), np.uint8)
    for i, place in enumerate(HALVES[dtype.name]):
        given = np.resize(np.roll(values, i).astype(np.float16), blocks)
        data[:, place : place + 2] = given[:, None].view(np.uint8)
    if dtype.name == "mxfp4":
        data[:, 0] = 116 + data[:, 0] % 16
    return data


# ---- blocks: codes, scales [blocks, 1 or groups or halves], minima ---------------------

Read = tuple[Array, Array, Array | None]


def _half(blocks: Array, place: int) -> Array:
    both = np.ascontiguousarray(blocks[:, place : place + 2])
    return both.view(np.float16).astype(np.float32)


def _nibbles(bytes_: Array) -> Array:
    """Split bytes [.., n]: all lower halves, then all upper ones."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1)


def _fifth(blocks: Array, place: int) -> Array:
    bits = np.unpackbits(blocks[:, place : place + 4], axis=1, bitorder="little")
    return _nibbles(blocks[:, place + 4 :]) + 16 * bits.astype(np.int64)


def _fields(bytes_: Array, bits: int) -> Array:
    """Cut bytes [blocks, n] into runs of 32 bytes, and give the fields of each, lowest
    first.
    """
    runs = bytes_.reshape(len(bytes_), -1, 1, 32)
    shifts = np.arange(0, 8, bits)[:, None]
    return ((runs >> shifts) & (2**bits - 1)).reshape(len(bytes_), -1).astype(np.int64)


def _six_bits(bytes_: Array) -> tuple[Array, Array]:
    """Unpack the 8 scales and 8 minima of q4_k."""
    s = bytes_[:, :4]
    n = bytes_[:, 4:8]
    rest = bytes_[:, 8:]
    scales = np.concatenate([s & 63, rest & 15 | s >> 6 << 4], axis=1)
    return scales, np.concatenate([n & 63, rest >> 4 | n >> 6 << 4], axis=1)


def _q2_k(b: Array) -> Read:
    scales = (b[:, :16] & 15).astype(f32)
    mins = (b[:, :16] >> 4).astype(f32)
    return _fields(b[:, 16:80], 2), _half(b, 80) * scales, -_half(b, 82) * mins


def _q3_k(b: Array) -> Read:
    low = _nibbles(b[:, 96:104])
    high = np.concatenate([b[:, 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    steps = (low | high << 4).astype(f32) - f32.type(32)
    return (
        _fields(b[:, 32:96], 2) + 4 * _fields(b[:, :32], 1) - 4,
        _half(b, 108) * steps,
        None,
    )


def _q4_k(b: Array) -> Read:
    scales, mins = _six_bits(b[:, 4:16])
    return (
        _fields(b[:, 16:], 4),
        _half(b, 0) * scales.astype(f32),
        -_half(b, 2) * mins.astype(f32),
    )


def _q5_k(b: Array) -> Read:
    _, scales, mins = _q4_k(b)
    return _fields(b[:, 48:], 4) + 16 * _fields(b[:, 16:48], 1), scales, mins


def _q6_k(b: Array) -> Read:
    low = b[:, :128].reshape(-1, 2, 1, 64) >> np.array([[0], [4]]) & 15
    codes = low.reshape(len(b), 256) + 16 * _fields(b[:, 128:192], 2) - 32
    return codes, _half(b, 208) * b[:, 192:208].view(np.int8).astype(f32), None


def _iq4_xs(b: Array) -> Read:
    upper = np.ascontiguousarray(b[:, 2:4]).view(np.uint16).astype(np.int64)
    steps = (np.repeat(b[:, 4:8], 2, 1) >> 4 * (_EIGHT % 2) & 15) | (
        upper >> 2 * _EIGHT & 3
    ) << 4
    codes = IQ4[_nibbles(b[:, 8:].reshape(-1, 8, 16))]
    return codes, _half(b, 0) * (steps - 32).astype(f32), None


def _mxfp4(b: Array) -> Read:
    scales = np.ldexp(f32.type(1), b[:, :1].astype(np.int64) - 128)
    return MXFP4[_nibbles(b[:, 1:])], scales.astype(f32), None


READERS: dict[str, Callable[[Array], Read]] = {
    "q4_0": lambda b: (_nibbles(b[:, 2:]).astype(np.int64) - 8, _half(b, 0), None),
    "q4_1": lambda b: (_nibbles(b[:, 4:]), _half(b, 0), _half(b, 2)),
    "q5_0": lambda b: (_fifth(b, 2) - 16, _half(b, 0), None),
    "q5_1": lambda b: (_fifth(b, 4), _half(b, 0), _half(b, 2)),
    "q8_0": lambda b: (b[:, 2:].view(np.int8), _half(b, 0), None),
    "iq4_nl": lambda b: (IQ4[_nibbles(b[:, 2:])], _half(b, 0), None),
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
}
