"""Quantizing: the op, and double quantization. test_quantization_oracle.py has bitsandbytes."""

import numpy as np
import pytest

from src import ml
from src.ml.quantized import quantize_scales
from tests.ml.op_checks import FLOAT_DTYPES, check_same, sample, strided

EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(), (7,), (0,), (3, 64), (2, 3, 40)], ids=str)
def test_the_result_has_the_shape_and_the_name(dtype, shape):
    for block_dtype in ml.BLOCK_DTYPES:
        x = ml.quantize(sample(shape, dtype).with_name("w"), block_dtype)
        assert (x.shape, x.name, x.dtype) == (shape, "w", block_dtype)


def test_a_view_is_quantized_as_its_elements_are():
    view = strided((5, 40), ml.bfloat16)
    whole = ml.quantize(view.copy(), ml.nf4)
    check_same(ml.quantize(view, ml.nf4).codes, whole.codes.numpy())


def test_nf4_is_off_by_half_the_widest_gap_at_most():
    x = sample((100, 128))
    blocks = np.abs(x.numpy()).reshape(-1, 64).max(axis=1)
    error = np.abs(ml.quantize(x, ml.nf4).dequantize().numpy() - x.numpy()).reshape(-1, 64)
    assert (error.max(axis=1) <= 0.1520 * blocks).all()  # (1 - 0.6962) / 2


def test_int8_is_off_by_seven_thousandths_of_normal_weights_at_most():
    x = sample((512, 512))
    error = ml.quantize(x, ml.int8_block).dequantize().numpy() - x.numpy()
    assert np.sqrt((error**2).mean()) <= 0.007


def test_double_quantization_keeps_codes_and_moves_scales_a_little():
    x = sample((512, 128))
    single, double = ml.quantize(x, ml.nf4), ml.quantize(x, ml.nf4, double=True)
    check_same(double.codes, single.codes.numpy())
    assert double.nested is not None
    spread = np.abs(single.scales.numpy() - double.nested.offset).max()
    scales = ml.QuantizedTensor(  # codes of 1: the scales themselves
        ml.nf4,
        x.shape,
        ml.Tensor.from_numpy(np.full(x.size // 2, 0xFF, np.uint8)),
        double.scales,
        double.nested,
    ).dequantize()
    error = np.abs(scales.numpy().reshape(-1, 64)[:, 0] - single.scales.numpy())
    assert error.max() <= spread * 0.0080
    assert double.nbytes == x.size // 2 + 1024 + 4 * 1024 // 256 + 4 * 256


def test_the_offset_is_the_mean_rounded_once():
    x = sample((640, 64))
    single, double = ml.quantize(x, ml.nf4), ml.quantize(x, ml.nf4, double=True)
    assert double.nested is not None
    assert double.nested.offset == np.float32(single.scales.numpy().mean(dtype=np.float64))


def test_scales_that_are_all_equal_come_back_exactly():
    absmax = np.full(300, 0.75, np.float32)
    codes, nested = quantize_scales(absmax, np.float32(0.75))
    assert not codes.numpy().any()
    assert not nested.absmax.numpy().any()
    assert ml.quantize(ml.zeros((0,)), ml.nf4, double=True).scales.size == 0


def test_the_dynamic_map_rises_from_below_to_one_and_has_a_zero():
    values = ml.dynamic_map().numpy()
    assert (np.diff(values) > 0).all()
    assert (values.size, values[-1], 0 in values) == (256, 1, True)
    assert values[0] == np.float32(-0.99296875)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (sample((4, 64)), ml.bfloat16),
            "[quantize] dtype= must be nf4 or int8_block: bfloat16",
        ),
        (
            (sample((4, 64), ml.int32), ml.nf4),
            "[quantize] dtype must be a real floating-point dtype: int32 (shape [4, 64])",
        ),
        (
            (sample((4, 64)), ml.int8_block, True),
            "[quantize] dtype= of double quantization must equal nf4: int8_block",
        ),
    ],
)
def test_dtypes_that_do_not_fit_are_refused(arguments, text):
    with pytest.raises(ml.DTypeError) as caught:
        ml.quantize(*arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("dtype", ml.BLOCK_DTYPES, ids=str)
def test_elements_that_are_not_finite_are_refused(dtype):
    x = sample((4, 64), ml.bfloat16)
    ml.quantize(x, dtype)
    x.set_slice(1, 2, float("nan"))
    with pytest.raises(ml.TensorError) as caught:
        ml.quantize(x, dtype)
    assert str(caught.value) == (
        "[quantize] elements must be finite: 64 of 256 are not (shape [4, 64])"
    )
