import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys, threading, time
from src.inference import InferenceEngine
from src.model import load_model

engine = InferenceEngine(load_model(), sequence_length=512)
started = threading.Event()

def run():
    while True:
        for step in engine.generate([1, 2, 3], max_new_tokens=400):
            started.set()

threading.Thread(target=run, daemon=True).start()
assert started.wait(60)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seconds", ["0", "0.02", "0.05"])
def test_f4_the_interpreter_ends_in_the_middle_of_an_answer(seconds: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, seconds],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
