"""The network against numbers that transformers gave once; needs no PyTorch.

`tests/golden/make_golden.py` made them; their provenance is in `tests/golden/llama.json`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.model import InferenceContext
from tests.model.test_llama import reference_logits, run
from tests.model.tiny import CONFIGS, Tiny, rounded, transformer, weights

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
DESCRIBED = json.loads((GOLDEN / "llama.json").read_text(encoding="ascii"))
MODELS = [config for config in CONFIGS if config.name in DESCRIBED["models"]]


def test_golden_numbers_say_where_they_come_from_and_are_small() -> None:
    assert len(MODELS) == len(DESCRIBED["models"]) == 3
    assert {"script", "torch", "transformers", "weights"} <= set(DESCRIBED["provenance"])
    assert sum(path.stat().st_size for path in GOLDEN.glob("llama.*")) < 200_000


@pytest.mark.parametrize("config", MODELS, ids=lambda c: c.name)
def test_float32_logits_are_golden(config: Tiny) -> None:
    ids = DESCRIBED["models"][config.name]["ids"]
    expected = np.load(GOLDEN / "llama.npz")[config.name]
    found = run(transformer(config), ids)[DESCRIBED["positions"]]
    assert expected.shape == found.shape
    assert expected.std() > 1
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("config", MODELS, ids=lambda c: c.name)
def test_bfloat16_errs_no_more_than_transformers_did(config: Tiny) -> None:
    described = DESCRIBED["models"][config.name]
    exact = reference_logits(config, rounded(weights(config)), described["ids"])
    error = run(transformer(config, ml.bfloat16), described["ids"]) - exact
    assert np.abs(error).max() <= 1.1 * described["bfloat16_max_error"]
    assert np.sqrt((error**2).mean()) <= 1.1 * described["bfloat16_rms_error"]


@pytest.mark.parametrize("config", MODELS, ids=lambda c: c.name)
def test_greedy_tokens_are_golden(config: Tiny) -> None:
    described = DESCRIBED["models"][config.name]
    model = transformer(config)
    context = InferenceContext(model.args, 10 + len(described["greedy"]))
    tokens, found = described["ids"][:10], []
    for _ in described["greedy"]:
        logits = model.forward(context, tokens, context.length)
        tokens = [int(ml.argmax(logits).item())]
        found += tokens
    assert found == described["greedy"]
