"""No weight is copied: what a process allocates to load and run a model of real size."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint.test_hugging_face_config import LLAMA_2_7B, LLAMA_3_2_1B
from tests.support.hugging_face_writer import write_hugging_face_directory, zero_arrays

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from src.model import InferenceContext, load_model

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

before = anonymous()
model = load_model(sys.argv[1])
loaded = anonymous()
context = InferenceContext(model.args, 64)
for start in range(3):
    model.transformer.forward(context, [start], start)
mapped = model.checkpoint.mapped_bytes
print(json.dumps([loaded - before, anonymous() - loaded - context.nbytes, mapped]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "dtype", "layers"),
    [(LLAMA_3_2_1B, "bfloat16", 16), (LLAMA_2_7B, "float16", 6)],
    ids=["Llama 3.2 1B", "Llama 2 7B, six layers of it"],
)
def test_loading_and_running_a_large_model_copies_no_weight(
    tmp_path: Path, config: dict[str, Any], dtype: str, layers: int
) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell the anonymous memory of a process")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    config = config | {"num_hidden_layers": layers}
    write_hugging_face_directory(tmp_path, config, zero_arrays(config, kind), shards=2)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loading, running, mapped = json.loads(done.stdout)
    assert mapped > 2 << 30
    assert loading < 32 << 20
    assert running < 118 << 20
