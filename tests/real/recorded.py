"""The recorded results of SmolLM2, and the passes that have to give them again."""

import hashlib
import json
from pathlib import Path
from typing import Any

from src.model import InferenceContext, LlamaTransformer, Model

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TEXT = GOLDEN / "real.txt"
RESULTS = GOLDEN / "real.json"
TOKENS = 1000
ROWS = 50  # of the logits that one hash is of
PROMPT = "Once upon a time, in a small town by the sea,"
GREEDY_TOKENS = 200


def recorded() -> dict[str, Any]:
    """Return what `tests.golden.make_real` wrote."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="ascii"))
    return results


def text_ids(model: Model) -> list[int]:
    """Return the first ids of the frozen text."""
    assert model.tokenizer is not None
    return model.tokenizer.encode(TEXT.read_text("utf-8"), bos=False, eos=False)[:TOKENS]


def prompt_ids(model: Model) -> list[int]:
    """Return the ids of the prompt of the recorded answer."""
    assert model.tokenizer is not None
    return model.tokenizer.encode(PROMPT, bos=False, eos=False)


def all_logits(transformer: LlamaTransformer, ids: list[int]) -> Any:
    """Return the logits after each token of one pass, float32 [T, V]."""
    context = InferenceContext(transformer.args, len(ids))
    return transformer.forward(context, ids, 0, all_positions=True).numpy()


def hashes_of(logits: Any) -> list[str]:
    """Return the sha256 of each `ROWS` rows of logits."""
    parts = (logits[start : start + ROWS] for start in range(0, len(logits), ROWS))
    return [hashlib.sha256(part.tobytes()).hexdigest() for part in parts]
