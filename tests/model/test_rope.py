import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from src import ml
from src.model import LinearRopeScaling, RopeFactors, RopeScaling
from src.model.forecast import MemoryForecast
from src.model.rope import inverse_frequencies, rotary_frequencies
from tests.model.tiny import CONFIGS, Tiny


def reference_frequencies(config: Tiny) -> list[float]:
    """Follows Meta's `apply_scaling`, branch by branch, in float64."""
    frequencies = []
    for index in range(0, config.head_dim, 2):
        frequency = 1.0 / config.theta ** (index / config.head_dim)
        if config.scaling:
            wavelength = 2 * math.pi / frequency
            if wavelength > 8192 / 1.0:
                frequency /= config.scaling
            elif wavelength >= 8192 / 4.0:
                smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
                frequency = (1 - smooth) * frequency / config.scaling + smooth * frequency
        frequencies.append(frequency)
    return frequencies


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_frequencies_are_the_formula_rounded_once_to_float32(config: Tiny) -> None:
    scaling = RopeScaling(config.scaling) if config.scaling else None
    found = inverse_frequencies(config.head_dim, config.theta, scaling).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference_frequencies(config), rtol=2.0**-23)


def test_scaling_has_all_three_cases_in_a_llama_3_1_head() -> None:
    plain = inverse_frequencies(128, 500000.0).numpy()
    scaled = inverse_frequencies(128, 500000.0, RopeScaling(8.0)).numpy()
    ratio = plain / scaled
    assert np.count_nonzero(ratio == 1.0) == 29
    assert np.count_nonzero(ratio == 8.0) == 29
    assert np.count_nonzero((ratio > 1.0) & (ratio < 8.0)) == 6


def test_other_scalings_divide_all_frequencies_by_one_factor_or_each_by_one() -> None:
    plain = inverse_frequencies(4, 10000.0).numpy()
    for scaling, by in ((LinearRopeScaling(4.0), 4), (RopeFactors((1.0, 8.0)), [1, 8])):
        scaled = inverse_frequencies(4, 10000.0, scaling).numpy()
        np.testing.assert_array_equal(scaled, plain / by)


@pytest.mark.parametrize(
    ("config", "length"),
    [*((c, 3000) for c in CONFIGS), (CONFIGS[-1], 131072)],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_table_is_within_float32_of_the_formula_at_every_position(
    config: Tiny, length: int
) -> None:
    table = rotary_frequencies(config.args(max_context_length=length), length).numpy()
    positions = np.arange(length, dtype=np.float64)[:, None]
    exact = np.exp(1j * positions * np.array(reference_frequencies(config)))
    assert table.shape == (length, config.head_dim // 2)
    assert table.dtype == np.complex64
    # One rounding of the frequency, one of the product, and one ulp of sine and cosine.
    allowed = positions * np.array(reference_frequencies(config)) * 2.0**-23 + 2.0**-22
    assert np.all(np.abs(table - exact) <= allowed)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "config", [CONFIGS[1], CONFIGS[4], CONFIGS[-1]], ids=lambda c: c.name
)
def test_angles_agree_with_transformers_up_to_the_longest_context(config: Tiny) -> None:
    torch = pytest.importorskip("torch", reason="needs the oracle extra")
    pytest.importorskip("transformers", reason="needs the oracle extra")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tests.model.oracle import llama_config

    length = 131072
    rotary = LlamaRotaryEmbedding(llama_config(config, length))
    positions = torch.tensor(
        [[0, 1, 255, 256, 257, 1000, 4095, 8191, 8192, 50000, length - 1]]
    )
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32), positions)
    half = config.head_dim // 2
    theirs = (cos[0, :, :half] + 1j * sin[0, :, :half]).numpy()
    ours = rotary_frequencies(config.args(max_context_length=length), length).numpy()
    ours = ours[positions[0].numpy()]
    # Both round frequency and angle to float32; each may err by half an ulp of the angle.
    allowed = positions[0].numpy()[:, None] * 2.0**-22 + 2.0**-21
    assert np.all(np.abs(ours - theirs) <= allowed)


def test_the_table_is_made_without_more_memory_than_reading_a_prompt_takes() -> None:
    args = replace(CONFIGS[-1].args(max_context_length=1 << 16), n_layers=1)
    length = 1 << 15
    rotary_frequencies(args, 16)
    tracemalloc.start()
    table = rotary_frequencies(args, length)
    numbers = tracemalloc.get_traced_memory()[1]  # NumPy's, those of float64 among them
    tracemalloc.stop()
    # Lengths, angles, and what becomes of them.
    tensors = 512 * args.head_dim // 2 * (4 + 4 + 8)
    assert numbers + tensors <= MemoryForecast(args, length).parts["intermediate results"]
    assert 10 * (numbers + tensors) < table.nbytes


def test_the_chunks_of_the_table_give_the_bits_of_the_whole() -> None:
    args = CONFIGS[4].args()
    frequencies = inverse_frequencies(args.head_dim, args.rope_theta, args.rope_scaling)
    for length in (1, 2, 511, 512, 513, 1500):
        angles = ml.outer(ml.arange(0, length, dtype=ml.float32), frequencies)
        whole = ml.polar(ml.ones_like(angles), angles)
        assert (
            rotary_frequencies(args, length).numpy().tobytes() == whole.numpy().tobytes()
        )
