"""Record the greedy answer of Gemma 3 270M: `python -m tests.golden.make_gemma`.

The packages have Gemma's terms of use: only ids are recorded, no weights.
"""

import json
import platform

from src import ml
from src.inference import InferenceEngine, SamplingArgs
from src.model import load_model
from tests.real.gemma import (
    FILE,
    GREEDY_TOKENS,
    PACKAGE,
    PROMPT,
    RESULTS,
    SHA256,
    VERSION,
    gemma_file,
)


def main() -> None:
    """Run the model and write the file."""
    model = load_model(gemma_file())
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT, bos=True, eos=False)
    engine = InferenceEngine(model, len(ids) + GREEDY_TOKENS)
    steps = engine.generate(ids, GREEDY_TOKENS, SamplingArgs(temperature=0.0))
    results = {
        "script": "tests/golden/make_gemma.py",
        "package": f"{PACKAGE}=={VERSION}",
        "file": FILE,
        "file_sha256": SHA256,
        "processor": platform.machine(),
        "instruction_set": ml.build_info()["isa"],
        "prompt": PROMPT,
        "prompt_ids": ids,
        "greedy_ids": [step.token_id for step in steps],
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
