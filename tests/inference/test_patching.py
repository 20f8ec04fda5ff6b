"""Scans by patching and by ablation."""

import numpy as np
import pytest

from src import ml
from src.inference import (
    InferenceEngine,
    Message,
    PromptError,
    encode_chat,
    score_chunks,
)
from src.inference.patching import scan_ablations, scan_patches
from src.model import InferenceContext, Model, load_model


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


def prompt(model: Model, name: str) -> list[int]:
    """Returns a question for a name, and the answer up to the name."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    text = f"My name is {name}. What is my name?"
    template = InferenceEngine(model, 1).chat_format
    ids = encode_chat(tokenizer, [Message("user", text)], chat_format=template)
    return [*ids, *tokenizer.encode("Your name is")]


def test_patches_find_the_position_of_the_name_and_the_last_one(model: Model) -> None:
    ids = prompt(model, "Tom")
    other = prompt(model, "Ben")
    runs: list[tuple[int, int]] = []
    scan = scan_patches(model, ids, other, lambda *counts: runs.append(counts))
    L = model.args.n_layers
    H = model.args.n_heads
    assert runs[-1] == (len(runs), L * (len(ids) + H + 1))
    assert scan.residual.shape == (L, len(ids))
    assert scan.heads.shape == (L, H)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode([scan.answer, scan.other_answer]) == " T B"

    def measure(ids: list[int]) -> float:
        logits = model.transformer.forward(InferenceContext(model.args, 64), ids).numpy()
        return float(logits[0, scan.answer]) - float(logits[0, scan.other_answer])

    assert scan.measure == measure(ids)
    assert scan.other_measure == pytest.approx(measure(other), abs=1e-9)
    # The name is at one position until the last layer moves it to the last position.
    [place] = [at for at, token in enumerate(ids) if token != other[at]][:1]
    assert (scan.residual[:3, place] > 0.99).all()
    assert scan.residual[3, -1] == 1.0  # nothing but the last position is read after it
    assert (scan.residual[3, :-1] == 0.0).all()
    elsewhere = np.delete(scan.residual[:3], place, axis=1)
    assert np.abs(elsewhere).max() < 0.05
    # The heads of the last layer share the work.
    assert 0.5 < scan.heads[3].sum() < 1.5
    assert scan.heads[3].max() < 0.5


def test_prompts_that_cannot_be_compared_are_refused(model: Model) -> None:
    ids = prompt(model, "Tom")
    with pytest.raises(PromptError, match=f"same number of tokens: {len(ids)} != 3"):
        scan_patches(model, ids, [1, 2, 3])
    with pytest.raises(PromptError, match="must predict different tokens: both predict"):
        scan_patches(model, ids, ids)


def test_an_ablation_has_the_loss_without_the_columns_of_a_head(model: Model) -> None:
    chunks = [list(range(40, 64)), list(range(100, 124))]
    scan = scan_ablations(model, chunks)

    def loss() -> float:
        scores = [score.losses for score in score_chunks(model.transformer, chunks)]
        return float(np.concatenate(scores).mean())

    assert scan.loss == loss()
    assert scan.tokens == 2 * 11
    assert scan.heads.shape == (model.args.n_layers, model.args.n_heads)
    attention = model.transformer.layers[1].attention
    feed_forward = model.transformer.layers[2].feed_forward
    before = attention.wo, feed_forward.w2
    h = model.args.head_dim
    weights = attention.wo.numpy().copy()
    weights[:, 2 * h : 3 * h] = 0
    try:
        attention.wo = ml.Tensor.from_numpy(weights)
        assert scan.heads[1, 2] == loss() != scan.loss
        attention.wo = before[0]
        feed_forward.w2 = ml.zeros_like(before[1])
        assert scan.feed_forward[2] == loss() != scan.loss
    finally:
        attention.wo = before[0]
        feed_forward.w2 = before[1]
