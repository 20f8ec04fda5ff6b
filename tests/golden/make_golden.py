"""Makes the golden numbers: what transformers computes for three tiny models.

    python -m tests.golden.make_golden

Writes `llama.npz` (logits) and `llama.json` (provenance, token ids, bounds) beside this
file. The weights are not stored: `tests.model.tiny` makes them from a seed by integer
arithmetic alone.
"""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from tests.model import oracle
from tests.model.tiny import CONFIGS, rounded, token_ids, weights

HERE = Path(__file__).resolve().parent
NAMES = ("grouped", "scaled_by_8", "head_dim_10")
POSITIONS = 300
# Stored are these positions; all others only count for the errors of bfloat16.
STORED = (0, 1, 2, 3, 7, 8, 63, 64, 65, 127, 254, 255, 256, 257, 258, 298, 299)
GREEDY_TOKENS = 60
SEED = 1


def main() -> None:
    provenance = {
        "script": "tests/golden/make_golden.py",
        "torch": oracle.torch.__version__,
        "transformers": oracle.transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "attention": "eager",
        "weights": f"tests/model/tiny.py, seed {SEED}",
    }
    described: dict[str, Any] = {
        "provenance": provenance,
        "positions": list(STORED),
        "models": {},
    }
    arrays = {}
    for name in NAMES:
        arrays[name], described["models"][name] = golden(name)
    np.savez_compressed(HERE / "llama.npz", **arrays)
    (HERE / "llama.json").write_text(
        json.dumps(described, indent=1) + "\n", encoding="ascii"
    )
    print(json.dumps(provenance, indent=1))


def golden(name: str) -> tuple[Any, dict[str, Any]]:
    """Returns logits float32 [stored positions, V], and ids, greedy tokens and errors."""
    config = next(config for config in CONFIGS if config.name == name)
    ids = token_ids(config, POSITIONS)
    full = oracle.build(config, weights(config, SEED))
    logits = oracle.logits(full, ids)
    values = rounded(weights(config, SEED))
    exact = oracle.logits(oracle.build(config, values), ids)
    difference = oracle.logits(oracle.build(config, values, "bfloat16"), ids) - exact
    sequence = ids[:10]
    for _ in range(GREEDY_TOKENS):
        sequence.append(int(np.argmax(oracle.logits(full, sequence)[-1])))
    return logits[list(STORED)], {
        "ids": ids,
        "greedy": sequence[10:],
        "bfloat16_max_error": float(np.abs(difference).max()),
        "bfloat16_rms_error": float(np.sqrt((difference.astype(np.float64) ** 2).mean())),
    }


if __name__ == "__main__":
    main()
