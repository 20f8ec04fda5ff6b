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

DTYPES = [
    (torch.float32, ml.float32),
    (torch.bfloat16, ml.bfloat16),
    (torch.float16, ml.float16),
]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda pair: str(pair[1]))
# Rows of whole blocks and not, a short block at the end, one that is a block itself. Left
# out are rows of whole 16 but not of whole blocks: there the AVX-512 code of bitsandbytes
# 0.50.2 takes the scales of other blocks, and is off by more than any quantization could
# be.
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
    """Hold codes, scales, and the elements in each dtype,
    against those of bitsandbytes.
    """
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
    np.testing.assert_array_equal(
        ml.dynamic_map().numpy(), functional.create_dynamic_map().numpy()
    )


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ways_give_their_bits(
    dtype: tuple[Any, ml.DType], shape: tuple[int, int]
) -> None:
    x = weights(shape, dtype[0])
    packed, state = functional.quantize_4bit(x, quant_type="nf4")
    check_elements(ml.quantize(tensor(x), ml.nf4), packed, state)


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_double_quantizing_gives_their_bits_for_their_offset(
    dtype: tuple[Any, ml.DType], shape: tuple[int, int]
) -> None:
    x = weights(shape, dtype[0])
    packed, state = functional.quantize_4bit(
        x, compress_statistics=True, quant_type="nf4"
    )
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
    # Multiples of 2^-12, and a number of blocks that is a power of two: no sum of them
    # rounds.
    x = torch.round(x * 4096) / 4096
    packed, state = functional.quantize_4bit(
        x, compress_statistics=True, quant_type="nf4"
    )
    mine = ml.quantize(tensor(x), ml.nf4, double=True)
    assert mine.nested is not None
    assert mine.nested.offset == state.offset.item()
    check_elements(mine, packed, state)
