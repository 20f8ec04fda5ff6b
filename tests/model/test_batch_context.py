"""Passes over several sequences: each row has the bits of a pass of its own."""

from collections.abc import Sequence

import numpy as np
import pytest

from src import ml
from src.model import (
    BatchContext,
    InferenceContext,
    LlamaTransformer,
    ModelError,
    NotEnoughMemoryError,
    PositionError,
    SharedContext,
)
from tests.model.tiny import CONFIGS, GROUPED, Tiny, token_ids, transformer


def run(
    model: LlamaTransformer,
    shared: SharedContext,
    spans: Sequence[tuple[int, int, list[int]]],
    tokens: list[int],
    wanted: list[int],
) -> np.ndarray:
    placed = ml.Spans(spans)
    return model.forward(BatchContext(shared, placed, wanted), tokens, placed).numpy()


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_rows_of_several_sequences_have_the_bits_of_one(config: Tiny, dtype: ml.DType) -> None:
    model = transformer(config, dtype)
    texts = [token_ids(config, count, seed=count) for count in (1, 9, 33)]
    alone = [
        model.forward(InferenceContext(model.args, 40), ids, all_positions=True).numpy()
        for ids in texts
    ]
    shared = SharedContext(model.args, 40, 5)
    places = [[3], [0], [4]]
    first = [(0, len(ids) - 1, place) for ids, place in zip(texts[1:], places[1:], strict=True)]
    rows = run(model, shared, first, texts[1][:-1] + texts[2][:-1], [0, 3])
    np.testing.assert_array_equal(rows, alone[2][-4:-1])
    newest = [(len(ids) - 1, 1, place) for ids, place in zip(texts, places, strict=True)]
    rows = run(model, shared, newest, [ids[-1] for ids in texts], [1, 1, 1])
    np.testing.assert_array_equal(rows, np.concatenate([logits[-1:] for logits in alone]))


def test_what_does_not_fit_is_refused() -> None:
    model = transformer(GROUPED, ml.bfloat16)
    shared = SharedContext(model.args, 40, 2)
    spans = ml.Spans([(0, 2, [0])])
    context = BatchContext(shared, spans, [1])
    with pytest.raises(PositionError, match=r"tokens must be those of the spans: 3 != 2"):
        model.forward(context, [1, 2, 3], spans)
    assert model.forward(context, [1, 2], spans).shape == (1, model.args.vocab_size)
    for length in (0, 1 << 40, 2.0):
        with pytest.raises(ModelError, match="sequence_length must be a whole number from 1"):
            SharedContext(model.args, length, 2)  # type: ignore[arg-type]
    with pytest.raises(NotEnoughMemoryError, match="keys and values"):
        SharedContext(model.args, 40, 1 << 40)
