"""The readable twins of kernels have the bits of the kernels, on every instruction set."""

import numpy as np
import pytest

from src import ml

from . import calls
from .operands import Array, bf16, bits, empty, f32, normal, run_linear, tensor

Q4_K = ml.GGML_DTYPES[12]
SIZES = (1, 2, 15, 16, 17, 100, 255, 256, 257, 700)


@pytest.mark.parametrize("D", SIZES)
def test_rms_norm_has_the_bits_of_its_reference(isa: str, D: int) -> None:
    x, weight = normal((5, D), f32), normal((D,), f32, seed=1)
    out, expected = empty((5, D), f32), empty((5, D), f32)
    calls.rms_norm(x, weight, 1e-5, out)
    calls.rms_norm_reference(x, weight, 1e-5, expected)
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("h", [2, 6, 64, 258])
def test_rotary_has_the_bits_of_its_reference(isa: str, h: int, halves: bool) -> None:
    x = normal((7, 3, h), f32)
    angles = normal((7, h // 2), f32, seed=1)
    frequencies = (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)
    out, expected = empty(x.shape, f32), empty(x.shape, f32)
    calls.rotary(x, frequencies, out, halves)
    calls.rotary_reference(x, frequencies, expected, halves)
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("T", [1, 3])
def test_attention_in_q8_0_has_the_bits_of_its_reference(isa: str, T: int) -> None:
    K, G, h, S = 2, 3, 96, 520
    xq = normal((T, K * G, h), f32)
    keys, values = (normal((S, K, h), f32, seed=seed) for seed in (1, 2))
    cache = ml.KeyValueCache(S, K, h, ml.CACHE_Q8_0)
    ml.write_cache(cache, 0, *map(ml.Tensor.from_numpy, (keys, values)))
    keys, values = (x.numpy() for x in ml.read_cache(cache, 0, S))
    expected, weights = empty(xq.shape, f32), empty((S,), f32)
    calls.attention_reference(xq, keys, values, S - T, weights, expected)
    out = ml.attention(ml.Tensor.from_numpy(xq), cache, S - T).numpy()
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("is_capped", [False, True])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 5, 255, 300])
@pytest.mark.parametrize(
    ("T", "start_pos", "h"),
    [(1, 0, 2), (3, 14, 6), (2, 255, 64), (9, 600, 32), (1, 1030, 258)],
)
def test_attention_has_the_bits_of_its_reference(
    isa: str,
    T: int,
    start_pos: int,
    h: int,
    window: int,
    has_sinks: bool,
    is_capped: bool,
) -> None:
    K, G, S = 2, 3, start_pos + T
    xq, keys, values = (
        normal((count, heads, h), f32, seed=seed)
        for seed, (count, heads) in enumerate(((T, K * G), (S, K), (S, K)))
    )
    shapes = calls.cache_shapes(S, K, h, 4)
    cache = calls.Cache(*(np.zeros(shape, f32) for shape in shapes))
    calls.write_cache(cache, 0, keys, values)
    out, expected, weights = (empty(shape, f32) for shape in (xq.shape, xq.shape, (S,)))
    limits = calls.Limits(
        window,
        normal((K * G,), f32, seed=3) if has_sinks else None,
        1.5 if is_capped else 0.0,
    )
    calls.attention(xq, cache, start_pos, out, limits)
    calls.attention_reference(xq, keys, values, start_pos, weights, expected, limits)
    assert bits(out) == bits(expected)


def q4_k_blocks(rows: int, blocks: int) -> Array:
    """Return any codes, steps and minima, with scales that are finite."""
    random = np.random.default_rng(2)
    codes = random.integers(0, 256, (rows, blocks, Q4_K.block_bytes)).astype(np.uint8)
    factors = random.normal(size=(rows, blocks, 2)).astype(np.float16)
    codes[:, :, :4] = factors.view(np.uint8).reshape(rows, blocks, 4)
    return codes.reshape(rows, -1)


@pytest.mark.parametrize("activations", calls.ACTIVATIONS)
@pytest.mark.parametrize("T", [1, 3, 4, 5, 7, 13])
@pytest.mark.parametrize("blocks", [1, 2, 3, 9])
def test_a_q4_k_product_has_the_bits_of_its_reference(
    isa: str, T: int, blocks: int, activations: str
) -> None:
    rows, columns = 37, blocks * Q4_K.block_size
    codes = q4_k_blocks(rows, blocks)
    exponents = np.random.default_rng(3).integers(-130, 20, (T, columns))
    x = np.ldexp(normal((T, columns), f32), exponents // 4).astype(bf16)
    x[0, : min(columns, 40)] = 0
    weight = ml.QuantizedTensor(
        Q4_K, (rows, columns), tensor(codes.reshape(-1)), activations=activations
    )
    expected = empty((T, rows), f32)
    calls.q4_k_reference(x, codes, expected, activations)
    assert bits(run_linear(x, weight, f32)) == bits(expected)
