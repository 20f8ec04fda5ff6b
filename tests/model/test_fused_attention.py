"""Fused attention against eager attention: as near as promised, and without their T x S memory."""

from typing import Any

import numpy as np
import pytest

from src import ml
from src.model import InferenceContext
from tests.model.test_llama import DTYPES, check_bits, reference_logits
from tests.model.tiny import CONFIGS, GROUPED, Tiny, rounded, token_ids, transformer, weights
from tests.support.held import NativeBytes


def logits(config: Tiny, dtype: ml.DType, ids: list[int], attention: str) -> Any:
    """Runs a prompt in two chunks and returns the logits of all positions."""
    model, half = transformer(config, dtype), len(ids) // 2
    context = InferenceContext(model.args, len(ids), attention)
    parts = [model.forward(context, ids[:half], 0, all_positions=True).numpy()]
    parts.append(model.forward(context, ids[half:], half, all_positions=True).numpy())
    return np.concatenate(parts)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_float32_logits_of_both_differ_by_roundings_only(config: Tiny) -> None:
    ids = token_ids(config, 60)
    fused, eager = (logits(config, ml.float32, ids, name) for name in ("fused", "eager"))
    assert 0 < np.abs(fused - eager).max() < 1e-4 * eager.std()


def test_bfloat16_logits_of_fused_are_no_further_from_the_formula() -> None:
    ids = token_ids(GROUPED, 300)
    exact = reference_logits(GROUPED, rounded(weights(GROUPED)), ids)

    def error(attention: str) -> float:
        found = logits(GROUPED, ml.bfloat16, ids, attention)
        return float(np.sqrt(((found - exact) ** 2).mean()))

    assert error("fused") <= 1.02 * error("eager")


@DTYPES
def test_eager_has_the_same_bits_for_any_chunking_too(dtype: ml.DType) -> None:
    ids, model = token_ids(GROUPED, 40), transformer(GROUPED, dtype)
    halves = logits(GROUPED, dtype, ids, "eager")
    whole = model.forward(InferenceContext(model.args, 40, "eager"), ids, all_positions=True)
    check_bits(halves, whole.numpy())


def test_no_memory_of_a_pass_grows_with_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    model, T, S = transformer(GROUPED), 32, 600
    ids, native = token_ids(GROUPED, S), NativeBytes(monkeypatch)

    def passes(attention: str) -> tuple[int, int]:
        context, taken = InferenceContext(model.args, S, attention), []
        for start, stop in ((0, T), (T, 2 * T), (2 * T, S - T), (S - T, S)):
            native.peak = before = native.alive
            model.forward(context, ids[start:stop], start)
            taken.append(native.peak - before)
        return taken[1], taken[3]

    early, late = passes("fused")
    assert late == early
    early, late = passes("eager")
    assert late >= GROUPED.heads * T * S * 4
    assert late > 4 * early
