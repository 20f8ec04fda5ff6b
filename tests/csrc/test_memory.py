"""The kernels stay within their tensors."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_kernel_touches_a_byte_beyond_the_end_of_its_tensors(isa: str) -> None:
    command = [sys.executable, "-m", "tests.csrc.guard_pages", isa]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr
