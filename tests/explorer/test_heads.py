"""The names of heads follow from what their attention weights do."""

import numpy as np
import pytest

from src.explorer import Store, run_traced
from src.explorer.heads import KINDS, LEAST, HeadScores, name_heads
from src.inference import SamplingArgs
from src.model import load_model

TOKENS = [5, 9, 7, 5, 9, 7, 5, 9]
S = len(TOKENS)


def weights_of(kind: str) -> np.ndarray:
    """Return weights [S, S] of a head that does one thing and else attends to itself."""
    weights = np.eye(S, dtype=np.float32)
    for row in range(1, S):
        match kind:
            case "previous token":
                columns = [row - 1]
            case "first token":
                columns = [0]
            case "induction":
                copies = [j for j in range(row - 1) if TOKENS[j] == TOKENS[row]]
                columns = [j + 1 for j in copies] or [0]
            case "same token":
                columns = [j for j in range(row + 1) if TOKENS[j] == TOKENS[row]]
            case "uniform":
                columns = list(range(row + 1))
        weights[row] = 0.0
        weights[row, columns] = 1.0 / len(columns)
    return weights


def scores_of(weights: np.ndarray, tokens: list[int] = TOKENS) -> HeadScores:
    scores = HeadScores(1, len(weights))
    scores.add(0, weights, tokens)
    return scores


def test_a_head_that_does_one_thing_is_named_by_it():
    weights = np.stack([weights_of(kind) for kind in KINDS])
    means = scores_of(weights).means()
    assert name_heads(means).tolist() == [[0, 1, 2, 3, 4]]
    assert means[0, range(5), range(5)] == pytest.approx(1.0)


def test_scores_are_the_means_of_their_definitions():
    rng = np.random.default_rng(0)
    weights = np.tril(rng.random((2, S, S), np.float32)) + 0.01
    weights = np.tril(weights / np.tril(weights).sum(-1, keepdims=True))
    found = scores_of(weights)
    rows = range(1, S)
    for head, w in enumerate(weights):
        expected = [
            np.mean([w[i, i - 1] for i in rows]),
            np.mean([w[i, 0] for i in rows]),
            np.mean(
                [
                    sum(w[i, j + 1] for j in range(i - 1) if TOKENS[j] == TOKENS[i])
                    for i in range(3, S)
                ]
            ),
            np.mean(
                [
                    sum(w[i, j] for j in range(i + 1) if TOKENS[j] == TOKENS[i])
                    for i in rows
                ]
            ),
            np.mean([np.minimum(w[i, : i + 1], 1 / (i + 1)).sum() for i in rows]),
        ]
        assert found.means()[0, head] == pytest.approx(expected, rel=1e-5)
    assert found.repeated_rows == 5


def test_passes_add_up_to_the_whole():
    weights = np.stack([weights_of(kind) for kind in KINDS])
    whole = scores_of(weights)
    parts = HeadScores(1, len(weights))
    parts.add(0, weights[:, :3, :3], TOKENS)
    parts.add(0, weights[:, 3:7, :7], TOKENS)
    parts.add(0, weights[:, 7:], TOKENS)
    assert parts.means() == pytest.approx(whole.means(), rel=1e-6)
    assert parts.repeated_rows == whole.repeated_rows


def test_too_few_copies_give_no_induction():
    """Two rows are chance."""
    weights = np.stack([weights_of("induction")])
    assert scores_of(weights, [5, 9, 7, 5, 9, 1, 2, 3]).means()[0, 0, 2] == 0.0
    assert scores_of(weights, [5, 9, 7, 5, 9, 7, 2, 3]).means()[0, 0, 2] > 0.0


def test_names_require_the_least_score():
    least = np.array(LEAST, np.float32)
    scores = np.where(np.eye(5, dtype=bool), least, 0.0).astype(np.float32)[None]
    assert name_heads(scores).tolist() == [[0, 1, 2, 3, 4]]
    assert name_heads(scores - 1e-3).tolist() == [[-1] * 5]
    # An induction head rests on the first token in other rows.
    mixed = np.array([[[0.1, 0.6, 0.45, 0.1, 0.2], [0.45, 0.0, 0.0, 0.0, 0.9]]])
    assert name_heads(mixed.astype(np.float32)).tolist() == [[2, 4]]


def test_the_document_names_the_heads_of_the_run():
    model = load_model()
    ids = model.tokenizer.encode("one two three one two three one two", bos=True)
    store = Store()
    found = run_traced(model, ids, 3, SamplingArgs(temperature=0.0), store)["heads"]
    args = model.args
    assert np.shape(found["scores"]) == (args.n_layers, args.n_heads, len(KINDS))
    assert found["names"][1][2] == KINDS.index("previous token")
    assert found["repeated"] >= 4
