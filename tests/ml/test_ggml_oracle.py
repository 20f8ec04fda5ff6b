"""The formats of GGUF files compared with the gguf package, element by element."""

from typing import Any

import numpy as np
import pytest

from src import ml
from tests.support import llama_cpp

pytestmark = pytest.mark.oracle

gguf = pytest.importorskip("gguf", reason="needs the oracle extra")

# One half of each sign: 0, the least and the largest subnormal, the least normal, the
# largest.
EXTREMES = np.array([0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF], np.uint16)
formats = pytest.mark.parametrize(
    "number", ml.GGML_DTYPES, ids=lambda n: str(ml.GGML_DTYPES[n])
)


def check_equal(number: int, blocks: Any) -> None:
    """Dequantize blocks, uint8 [n, bytes], and compare bits; any NaN is like another."""
    kind = gguf.GGMLQuantizationType(number)
    dtype = ml.GGML_DTYPES[number]
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(blocks, kind)
    weight = ml.QuantizedTensor(dtype, theirs.shape, ml.Tensor.from_numpy(blocks))
    mine = weight.dequantize().numpy()
    same = (mine.view(np.uint32) == theirs.view(np.uint32)) | (
        np.isnan(mine) & np.isnan(theirs)
    )
    assert same.all(), np.argwhere(~same)[:3]


@formats
def test_the_table_has_the_name_and_the_sizes_of_ggml(number: int) -> None:
    kind = gguf.GGMLQuantizationType(number)
    dtype = ml.GGML_DTYPES[number]
    assert (kind.name.lower(), gguf.GGML_QUANT_SIZES[kind]) == (
        dtype.name, (dtype.block_size, dtype.block_bytes),
    )  # fmt: skip


@formats
def test_blocks_of_any_bytes_have_the_same_elements(number: int) -> None:
    size = ml.GGML_DTYPES[number].block_bytes
    check_equal(
        number, np.random.default_rng(number).integers(0, 256, (20_000, size), np.uint8)
    )
    for byte in (0x00, 0x55, 0xAA, 0xFF):
        check_equal(number, np.full((7, size), byte, np.uint8))


@formats
def test_extreme_scales_have_the_same_elements(number: int) -> None:
    """Each pair of bytes of a block in turn is one of the extremes, in either sign."""
    size = ml.GGML_DTYPES[number].block_bytes
    for half in (*EXTREMES, *(EXTREMES | 0x8000)):
        blocks = np.random.default_rng(int(half)).integers(
            0, 256, (size - 1, size), np.uint8
        )
        for place in range(size - 1):
            blocks[place, place : place + 2] = np.array([half]).view(np.uint8)
        check_equal(number, blocks)


def rows_to_quantize() -> Any:
    """Give rows of every kind: normal ones of many sizes, ties, zeros, signs,
    extremes.
    """
    random = np.random.default_rng(3)
    rows = random.standard_normal((4_000, 64), np.float32)
    rows *= np.exp2(random.integers(-30, 11, (4_000, 1))).astype(np.float32)
    ties = random.integers(-16, 17, (2_000, 64)).astype(np.float32) / 2
    single = np.zeros((64, 64), np.float32)
    np.fill_diagonal(single, np.where(np.arange(64) % 2, 3.5, -3.5))
    least = np.full((1, 64), 1e-30, np.float32)
    return np.concatenate([rows, ties, -ties, single, least, least * 0])


quantized = pytest.mark.parametrize("number", [2, 8], ids=["q4_0", "q8_0"])


@quantized
@pytest.mark.parametrize("dtype", [ml.float32, ml.bfloat16, ml.float16], ids=str)
def test_quantized_blocks_are_those_of_the_package_and_of_llama_cpp(
    number: int, dtype: ml.DType
) -> None:
    x = ml.Tensor.from_numpy(rows_to_quantize()).to(dtype)
    wide = x.to(ml.float32).numpy()
    found = ml.quantize(x, ml.GGML_DTYPES[number]).codes.numpy()
    expected = gguf.quants.quantize(wide, gguf.GGMLQuantizationType(number))
    np.testing.assert_array_equal(found, expected.reshape(-1))
    if (
        dtype is not ml.float16
    ):  # of whose subnormal numbers llama.cpp makes a scale of -0
        llama_cpp.needed()
        np.testing.assert_array_equal(found, llama_cpp.quantize(wide, number, found.size))


@quantized
def test_what_a_scale_cannot_hold_is_refused(number: int) -> None:
    values = np.ones((3, 64), np.float32)
    dtype = ml.GGML_DTYPES[number]
    for values[1, 40] in (np.nan, np.inf, -np.inf, 3e38):
        with pytest.raises(
            ml.TensorError, match="elements must be finite: 1 of 192 are not"
        ):
            ml.quantize(ml.Tensor.from_numpy(values), dtype)
    values[1, 40] = 5e5
    assert (
        ml.quantize(ml.Tensor.from_numpy(values), dtype).dequantize().numpy().max()
        > 4.9e5
    )
