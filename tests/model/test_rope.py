import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from src import ml
from src.model import (
    LinearRopeScaling,
    ModelConfigError,
    RopeFactors,
    RopeScaling,
    YarnRopeScaling,
)
from src.model.args import with_rope_factor
from src.model.forecast import MemoryForecast
from src.model.rope import pair_frequencies, rotary_table
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
    found = pair_frequencies(config.head_dim, config.theta, scaling).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference_frequencies(config), rtol=2.0**-23)


def test_scaling_has_all_three_cases_in_a_llama_3_1_head() -> None:
    plain = pair_frequencies(128, 500000.0).numpy()
    scaled = pair_frequencies(128, 500000.0, RopeScaling(8.0)).numpy()
    ratio = plain / scaled
    assert np.count_nonzero(ratio == 1.0) == 29
    assert np.count_nonzero(ratio == 8.0) == 29
    assert np.count_nonzero((ratio > 1.0) & (ratio < 8.0)) == 6


def test_other_scalings_divide_all_frequencies_by_one_factor_or_each_by_one() -> None:
    plain = pair_frequencies(4, 10000.0).numpy()
    for scaling, by in ((LinearRopeScaling(4.0), 4), (RopeFactors((1.0, 8.0)), [1, 8])):
        scaled = pair_frequencies(4, 10000.0, scaling).numpy()
        np.testing.assert_array_equal(scaled, plain / by)


# A few indices of the transition, with the middle of two of them at a whole index.
YARN_CASES: dict[str, tuple[int, float, YarnRopeScaling]] = {
    "Qwen2.5": (128, 1e6, YarnRopeScaling(4.0, 32768)),
    "OLMo 3": (128, 5e5, YarnRopeScaling(8.0, 8192, attention_factor=1.2079)),
    "Ministral 3": (
        128, 1e6, YarnRopeScaling(16.0, 16384, mscale=1.0, mscale_all_dim=1.0),
    ),
    "gpt-oss": (64, 150000.0, YarnRopeScaling(32.0, 4096, truncate=False)),
    "no width": (20, 1e4, YarnRopeScaling(4.0, 16, beta_fast=1.0, beta_slow=1.0)),
    "coefficients": (8, 1e4, YarnRopeScaling(2.0, 64, mscale=0.7, mscale_all_dim=0.5)),
    "one coefficient": (8, 1e4, YarnRopeScaling(2.0, 64, mscale=0.7)),
}  # fmt: skip


def reference_yarn(
    head_dim: int, theta: float, scaling: YarnRopeScaling
) -> tuple[list[float], float]:
    """Follow the paper index by index: the frequencies, and the attention factor."""
    ends = [
        head_dim
        * math.log(scaling.original_context_length / (rotations * 2 * math.pi))
        / (2 * math.log(theta))
        for rotations in (scaling.beta_fast, scaling.beta_slow)
    ]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if scaling.truncate else ends
    low, high = max(low, 0), min(high, head_dim - 1)
    high += 0.001 if high == low else 0
    frequencies = []
    for index in range(head_dim // 2):
        frequency = theta ** (-2 * index / head_dim)
        divided = min(max((index - low) / (high - low), 0), 1)
        frequencies.append(frequency * (divided / scaling.factor + 1 - divided))
    if scaling.attention_factor:
        return frequencies, scaling.attention_factor
    lengths = [
        0.1 * (coefficient or 0) * math.log(scaling.factor) + 1
        for coefficient in (scaling.mscale, scaling.mscale_all_dim)
    ]
    if scaling.mscale and scaling.mscale_all_dim:
        return frequencies, lengths[0] / lengths[1]
    return frequencies, 0.1 * math.log(scaling.factor) + 1


@pytest.mark.parametrize(
    ("head_dim", "theta", "scaling"), YARN_CASES.values(), ids=YARN_CASES
)
def test_yarn_is_the_formula_of_the_paper(
    head_dim: int, theta: float, scaling: YarnRopeScaling
) -> None:
    expected, length = reference_yarn(head_dim, theta, scaling)
    found = pair_frequencies(head_dim, theta, scaling).numpy()
    np.testing.assert_allclose(found, expected, rtol=2.0**-23)
    assert scaling.magnitude == pytest.approx(length, rel=1e-12)
    config = CONFIGS[1]
    args = replace(
        config.args(), head_dim=head_dim, rope_theta=theta, rope_scaling=scaling
    )
    table = rotary_table(args, 40).numpy()
    np.testing.assert_allclose(np.abs(table), length, rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("head_dim", "theta", "scaling"), YARN_CASES.values(), ids=YARN_CASES
)
def test_yarn_agrees_with_transformers(
    head_dim: int, theta: float, scaling: YarnRopeScaling
) -> None:
    pytest.importorskip("torch", reason="needs the oracle extra")
    transformers = pytest.importorskip("transformers", reason="needs the oracle extra")
    from transformers.modeling_rope_utils import _compute_yarn_parameters

    given = {key: value for key, value in vars(scaling).items() if value is not None}
    original = given.pop("original_context_length")
    config = transformers.Qwen2Config(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=int(scaling.factor * original),
        rope_parameters=given
        | {
            "rope_type": "yarn",
            "rope_theta": theta,
            "original_max_position_embeddings": original,
        },
    )
    theirs, length = _compute_yarn_parameters(config)
    found = pair_frequencies(head_dim, theta, scaling).numpy()
    np.testing.assert_allclose(found, theirs.numpy(), rtol=2.0**-21)
    assert scaling.magnitude == pytest.approx(length, rel=1e-12)


def test_yarn_checks_its_values_and_its_factor_may_be_overridden() -> None:
    with pytest.raises(ModelConfigError, match="beta_fast: expected at least beta_slow"):
        YarnRopeScaling(4.0, 64, beta_fast=1.0, beta_slow=2.0)
    args = replace(CONFIGS[1].args(), rope_scaling=YarnRopeScaling(4.0, 1 << 14))
    with pytest.raises(ModelConfigError, match="rope_theta: expected more than 1"):
        replace(args, rope_theta=1.0)
    longer = with_rope_factor(args, 8.0)
    assert longer.rope_scaling == YarnRopeScaling(8.0, 1 << 14)
    assert longer.max_context_length == 1 << 17
    assert YarnRopeScaling(1.0, 64).magnitude == 1.0


@pytest.mark.parametrize(
    ("config", "length"),
    [*((c, 3000) for c in CONFIGS), (CONFIGS[-1], 131072)],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_table_is_within_float32_of_the_formula_at_every_position(
    config: Tiny, length: int
) -> None:
    table = rotary_table(config.args(max_context_length=length), length).numpy()
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
    ours = rotary_table(config.args(max_context_length=length), length).numpy()
    ours = ours[positions[0].numpy()]
    # Both round frequency and angle to float32; each may err by half an ulp of the angle.
    allowed = positions[0].numpy()[:, None] * 2.0**-22 + 2.0**-21
    assert np.all(np.abs(ours - theirs) <= allowed)


def test_the_table_is_made_without_more_memory_than_reading_a_prompt_takes() -> None:
    args = replace(CONFIGS[-1].args(max_context_length=1 << 16), n_layers=1)
    length = 1 << 15
    rotary_table(args, 16)
    tracemalloc.start()
    table = rotary_table(args, length)
    numbers = tracemalloc.get_traced_memory()[1]  # NumPy's, those of float64 among them
    tracemalloc.stop()
    # Lengths, angles, and what becomes of them.
    tensors = 512 * args.head_dim // 2 * (4 + 4 + 8)
    assert numbers + tensors <= MemoryForecast(args, length).parts["intermediate results"]
    assert 10 * (numbers + tensors) < table.nbytes


def test_the_chunks_of_the_table_give_the_bits_of_the_whole() -> None:
    args = CONFIGS[4].args()
    frequencies = pair_frequencies(args.head_dim, args.rope_theta, args.rope_scaling)
    for length in (1, 2, 511, 512, 513, 1500):
        angles = ml.outer(ml.arange(0, length, dtype=ml.float32), frequencies)
        whole = ml.polar(ml.ones_like(angles), angles)
        assert rotary_table(args, length).numpy().tobytes() == whole.numpy().tobytes()
