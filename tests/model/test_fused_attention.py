"""Fused attention has the bits of eager attention, without its T x S memory."""

from typing import Any

import numpy as np
import pytest

from src import ml
from src.model import InferenceContext
from tests.model.test_llama import DTYPES, check_bits
from tests.model.tiny import CONFIGS, GROUPED, Tiny, token_ids, transformer
from tests.support.held import NativeBytes


def logits(config: Tiny, dtype: ml.DType, ids: list[int], attention: str) -> Any:
    """Runs a prompt in two chunks and returns the logits of all positions."""
    model = transformer(config, dtype)
    half = len(ids) // 2
    context = InferenceContext(model.args, len(ids), attention)
    parts = [model.forward(context, ids[:half], 0, all_positions=True).numpy()]
    parts.append(model.forward(context, ids[half:], half, all_positions=True).numpy())
    return np.concatenate(parts)


@DTYPES
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_the_logits_of_both_have_the_same_bits(config: Tiny, dtype: ml.DType) -> None:
    ids = token_ids(config, 60)
    fused, eager = (logits(config, dtype, ids, name) for name in ("fused", "eager"))
    check_bits(fused, eager)


@DTYPES
def test_eager_has_the_same_bits_for_any_chunking_too(dtype: ml.DType) -> None:
    ids = token_ids(GROUPED, 40)
    model = transformer(GROUPED, dtype)
    halves = logits(GROUPED, dtype, ids, "eager")
    whole = model.forward(
        InferenceContext(model.args, 40, "eager"), ids, all_positions=True
    )
    check_bits(halves, whole.numpy())


def test_no_memory_of_a_pass_grows_with_the_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = transformer(GROUPED)
    T = 32
    S = 600
    ids = token_ids(GROUPED, S)
    native = NativeBytes(monkeypatch)

    def passes(attention: str) -> tuple[int, int]:
        context = InferenceContext(model.args, S, attention)
        taken = []
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
