"""Makes the golden numbers of the tier `real`: what this project computes with SmolLM2.

    python -m tests.golden.make_real

Writes `real.json`: hashes of the logits after the first 1 000 tokens of `real.txt`, and
the ids of a greedy answer. That these logits are right is another matter:
`tests/real/test_logits.py` compares them with transformers in float32.
"""

import json
import platform

from src import ml
from src.catalog.pip_package import SMOLLM2
from src.inference import InferenceEngine, SamplingArgs
from src.model import load_model
from tests.real.recorded import (
    GREEDY_TOKENS,
    PROMPT,
    RESULTS,
    ROWS,
    all_logits,
    hashes_of,
    prompt_ids,
    text_ids,
)


def main() -> None:
    model = load_model("smollm2")
    ids = text_ids(model)
    engine = InferenceEngine(model, 512, speculation=False)
    greedy = SamplingArgs(temperature=0.0)
    steps = list(engine.generate(prompt_ids(model), GREEDY_TOKENS, greedy))
    results = {
        "script": "tests/golden/make_real.py",
        "package": SMOLLM2.requirement,
        "file": SMOLLM2.file_name,
        "file_sha256": SMOLLM2.sha256,
        "processor": platform.machine(),
        "instruction_set": ml.build_info()["isa"],
        "text": "tests/golden/real.txt",
        "tokens": len(ids),
        "rows_of_a_hash": ROWS,
        "logits_sha256": hashes_of(all_logits(model.transformer, ids)),
        "prompt": PROMPT,
        "greedy_ids": [step.token_id for step in steps],
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
