"""The network against transformers' Llama (float32, eager), on random tiny models."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from src import ml
from src.model import InferenceContext
from tests.model.test_llama import run
from tests.model.tiny import CONFIGS, Tiny, rounded, token_ids, transformer, weights

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")

from tests.model import oracle

pytestmark = pytest.mark.oracle

FLOAT32_BOUND = 1e-4
SHARE_OF_THEIR_ERROR = 1.0  # the float32 residual stream leaves room: 0.5 to 0.8 in practice
GREEDY_TOKENS = 1000


def errors(found: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Returns the largest and the root mean square difference."""
    difference = found.astype(np.float64) - exact
    return float(np.abs(difference).max()), float(np.sqrt((difference**2).mean()))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_float32_logits_are_those_of_transformers(config: Tiny) -> None:
    ids = token_ids(config, 300)
    theirs = oracle.logits(oracle.build(config, weights(config)), ids)
    assert theirs.std() > 0.5
    assert errors(run(transformer(config), ids), theirs)[0] < FLOAT32_BOUND


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_bfloat16_logits_are_no_further_off_than_those_of_transformers(config: Tiny) -> None:
    values, ids = rounded(weights(config)), token_ids(config, 400)
    exact = oracle.logits(oracle.build(config, values), ids)
    theirs = errors(oracle.logits(oracle.build(config, values, "bfloat16"), ids), exact)
    ours = errors(run(transformer(config, ml.bfloat16), ids), exact)
    assert ours[0] <= SHARE_OF_THEIR_ERROR * theirs[0]
    assert ours[1] <= SHARE_OF_THEIR_ERROR * theirs[1]


def greedy(model: Any, ids: list[int], count: int) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Returns what transformers continues with, and the logits [count, V] behind each choice."""
    with oracle.torch.no_grad():
        result = model.generate(
            oracle.torch.tensor([ids]), max_new_tokens=count, do_sample=False,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
    chosen = result.sequences[0, len(ids) :].tolist()
    return chosen, oracle.torch.stack(result.logits)[:, 0].float().numpy()


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
def test_a_thousand_greedy_tokens_are_equal_where_the_choice_is_clear(
    name: str, dtype: ml.DType
) -> None:
    config = next(config for config in CONFIGS if config.name == name)
    values = weights(config) if dtype is ml.float32 else rounded(weights(config))
    reference = oracle.build(config, values)
    prompt = token_ids(config, 12)
    chosen, exact = greedy(reference, prompt, GREEDY_TOKENS)
    # What the difference of two logits may be off by.
    if dtype is ml.float32:
        bound = FLOAT32_BOUND
    else:
        ids = (prompt + chosen)[:-1]
        low = oracle.logits(oracle.build(config, values, "bfloat16"), ids)[len(prompt) - 1 :]
        bound = 2 * errors(low, exact)[0]

    # Fed with the same tokens step by step: after an unclear choice both go on from one text.
    model = transformer(config, dtype)
    context = InferenceContext(model.args, len(prompt) + GREEDY_TOKENS)
    logits = [model.forward(context, prompt).numpy()[0]]
    for token in chosen[:-1]:
        logits.append(model.forward(context, [token], context.length).numpy()[0])
    best = np.sort(exact, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > bound
    assert clear.mean() > (0.99 if dtype is ml.float32 else 0.3)
    ours = np.argmax(np.stack(logits), axis=1)
    np.testing.assert_array_equal(ours[clear], np.array(chosen)[clear])
