"""The network against transformers' Llama (float32, eager), on random tiny models."""

import pytest

from src import ml
from tests.model.test_llama import run
from tests.model.tiny import CONFIGS, Tiny, rounded, token_ids, transformer, weights

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")

from tests.model import oracle

pytestmark = pytest.mark.oracle

FLOAT32_BOUND = 1e-4
SHARE_OF_THEIR_ERROR = 1.0  # the float32 residual stream leaves room: 0.5 to 0.8 in practice
GREEDY_TOKENS = 400


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_float32_logits_are_those_of_transformers(config: Tiny) -> None:
    ids = token_ids(config, 300)
    theirs = oracle.logits(oracle.build(config, weights(config)), ids)
    assert theirs.std() > 0.5
    assert oracle.errors(run(transformer(config), ids), theirs)[0] < FLOAT32_BOUND


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_bfloat16_logits_are_no_further_off_than_those_of_transformers(config: Tiny) -> None:
    values, ids = rounded(weights(config)), token_ids(config, 400)
    exact = oracle.logits(oracle.build(config, values), ids)
    theirs = oracle.errors(oracle.logits(oracle.build(config, values, "bfloat16"), ids), exact)
    ours = oracle.errors(run(transformer(config, ml.bfloat16), ids), exact)
    assert ours[0] <= SHARE_OF_THEIR_ERROR * theirs[0]
    assert ours[1] <= SHARE_OF_THEIR_ERROR * theirs[1]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("grouped", ml.float32),
        ("scaled_by_8", ml.bfloat16),
        pytest.param("deep", ml.float32, marks=pytest.mark.slow),
        pytest.param("head_dim_10", ml.bfloat16, marks=pytest.mark.slow),
        pytest.param("head_dim_128", ml.float32, marks=pytest.mark.slow),
    ],
)
def test_greedy_tokens_are_equal_where_the_choice_is_clear(name: str, dtype: ml.DType) -> None:
    config = next(config for config in CONFIGS if config.name == name)
    values = weights(config) if dtype is ml.float32 else rounded(weights(config))
    reference = oracle.build(config, values)
    prompt = token_ids(config, 12)
    chosen, exact = oracle.greedy(reference, prompt, GREEDY_TOKENS)
    # What the difference of two logits may be off by.
    if dtype is ml.float32:
        bound = FLOAT32_BOUND
    else:
        ids = (prompt + chosen)[:-1]
        low = oracle.logits(oracle.build(config, values, "bfloat16"), ids)[len(prompt) - 1 :]
        bound = 2 * oracle.errors(low, exact)[0]

    least_clear = 0.99 if dtype is ml.float32 else 0.3
    oracle.assert_same_choices(
        transformer(config, dtype), prompt, chosen, exact, bound, least_clear
    )
