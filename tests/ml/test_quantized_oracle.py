"""nf4 compared with bitsandbytes on a processor, element by element."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml.quantized import quantize_scales

pytestmark = [
    pytest.mark.oracle,
    # PyTorch compiles a function that was asked for by an old name.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

torch = pytest.importorskip("torch", reason="needs the oracle extra")
functional = pytest.importorskip(
    "bitsandbytes.functional", reason="needs the oracle extra", exc_type=ImportError
)

DTYPES = [(torch.float32, ml.float32), (torch.bfloat16, ml.bfloat16), (torch.float16, ml.float16)]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda pair: str(pair[1]))
# Rows of whole blocks and not, a short block at the end, one that is a block itself. Left out are
# rows of whole 16 but not of whole blocks: there the AVX-512 code of bitsandbytes 0.50.2 takes the
# scales of other blocks, and is off by more than any quantization could be.
SHAPES = [(256, 512), (3, 98), (50, 2), (1, 64), (7, 100)]


def tensor(x: Any) -> ml.Tensor:
    x = x.contiguous()
    if x.dtype is torch.bfloat16:
        return ml.Tensor.from_numpy(x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16))
    return ml.Tensor.from_numpy(x.numpy())


def check_equal(mine: ml.Tensor, theirs: Any) -> None:
    """Hold elements against those of a PyTorch tensor, bit for bit."""
    other = tensor(theirs)
    assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
    np.testing.assert_array_equal(mine.bits(), other.bits())


def dequantized(packed: Any, state: Any, dtype: Any) -> Any:
    state.dtype = dtype
    return functional.dequantize_4bit(packed, state)


def check_elements(mine: ml.QuantizedTensor, packed: Any, state: Any) -> None:
    """Hold codes, scales, and the elements in each dtype, against those of bitsandbytes."""
    np.testing.assert_array_equal(mine.codes.numpy(), packed.numpy().reshape(-1))
    np.testing.assert_array_equal(mine.scales.numpy(), state.absmax.numpy())
    for theirs, ours in DTYPES:
        check_equal(mine.dequantize(ours), dequantized(packed, state, theirs))


def weights(shape: tuple[int, int], dtype: Any) -> Any:
    """Draw weights; some blocks are zeros, some have outliers."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])) * 0.03
    x.view(-1)[64:128] = 0
    x.view(-1)[200:202] = 7
    return x.to(dtype)


def test_the_codes_are_theirs() -> None:
    theirs = functional.get_4bit_type("nf4", device="cpu")
    np.testing.assert_array_equal(ml.nf4_code().numpy(), theirs.numpy())
    np.testing.assert_array_equal(ml.dynamic_map().numpy(), functional.create_dynamic_map().numpy())


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ways_give_their_bits(dtype: tuple[Any, ml.DType], shape: tuple[int, int]) -> None:
    x = weights(shape, dtype[0])
    packed, state = functional.quantize_4bit(x, quant_type="nf4")
    check_elements(ml.quantize(tensor(x), ml.nf4), packed, state)


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_double_quantizing_gives_their_bits_for_their_offset(
    dtype: tuple[Any, ml.DType], shape: tuple[int, int]
) -> None:
    x = weights(shape, dtype[0])
    packed, state = functional.quantize_4bit(x, compress_statistics=True, quant_type="nf4")
    single = ml.quantize(tensor(x), ml.nf4)
    offset = np.float32(state.offset.item())
    scales, nested = quantize_scales(single.scales.numpy(), offset)
    np.testing.assert_array_equal(nested.absmax.numpy(), state.state2.absmax.numpy())
    mine = ml.QuantizedTensor(ml.nf4, shape, single.codes, scales, nested)
    check_elements(mine, packed, state)
    double = ml.quantize(tensor(x), ml.nf4, double=True)
    assert double.nested is not None
    assert abs(double.nested.offset - offset) <= 4 * np.spacing(offset)


def test_double_quantizing_gives_all_their_bits_where_the_mean_is_exact() -> None:
    x = weights((512, 512), torch.float32)
    # Multiples of 2^-12, and a number of blocks that is a power of two: no sum of them rounds.
    x = torch.round(x * 4096) / 4096
    packed, state = functional.quantize_4bit(x, compress_statistics=True, quant_type="nf4")
    mine = ml.quantize(tensor(x), ml.nf4, double=True)
    assert mine.nested is not None
    assert mine.nested.offset == state.offset.item()
    check_elements(mine, packed, state)


def test_a_product_is_near_that_of_their_float32_weight() -> None:
    """Hold products against theirs in float64, within what integers cost.

    A level becomes a whole number of steps of 2^-11 of the scale: w' is off by at most half a step,
    2^-12 scale. An x becomes a whole number of steps xs. The largest of 32 is m * 2^e with m < 2,
    and m * 2^14 steps: a step is 2^(e - 14), and x' is off by at most 2^(e - 15) <= 2^-15 largest.

        |w' x' - w x| <= |w' - w| |x'| + |w| |x' - x|
                      <= 2^-12 scale (|x| + 2^-15 largest) + |w| 2^-15 largest

    The sum of 32 products is exact. It is rounded to float32 and added to a lane, once for a row of
    512, and then the 16 lanes are added in 4 steps: 6 roundings of at most 2^-24 of all magnitudes.
    """
    x, weight = weights((5, 512), torch.bfloat16), weights((64, 512), torch.bfloat16)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4")
    wide_x, wide = x.double(), dequantized(packed, state, torch.float32).double()
    largest = wide_x.abs().reshape(5, -1, 32).amax(-1).repeat_interleave(32, -1) * 2.0**-15
    scales = state.absmax.double().reshape(64, -1).repeat_interleave(64, -1) * 2.0**-12
    bound = (wide_x.abs() + largest) @ scales.T + largest @ wide.abs().T
    bound = (bound + 6 * 2.0**-24 * (wide_x.abs() @ wide.abs().T)).numpy()

    operands = tensor(x), ml.quantize(tensor(weight), ml.nf4)
    mine = ml.linear_transformation(*operands, ml.float32)
    error = np.abs(mine.numpy() - (wide_x @ wide.T).numpy())
    assert (error <= bound).all()
    assert (error > bound / 100).any()
    check_equal(mine.to(ml.bfloat16), torch.from_numpy(mine.numpy()).bfloat16())
    np.testing.assert_array_equal(
        ml.linear_transformation(*operands).bits(), mine.to(ml.bfloat16).bits()
    )
