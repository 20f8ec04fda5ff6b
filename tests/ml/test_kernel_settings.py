"""The environment and the process around the kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.ml import native
from src.ml.errors import LlamaBoltsError
from src.ml.kernel_settings import MAX_THREADS

ROOT = Path(__file__).parents[2]

PRODUCT = """
import numpy as np
from src.ml import native
from src.ml.tensor import Tensor
def product(threads=None):
    if threads: native.set_num_threads(threads)
    x = np.random.default_rng(0).standard_normal((30, 600)).astype(np.float32)
    out = np.empty((30, 30), np.float32)
    native.linear(Tensor.from_numpy(x), [Tensor.from_numpy(x.copy())], [Tensor.from_numpy(out)])
    return out.tobytes()
"""


def run(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRODUCT + program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "value", ["0", "-3", "text", "1000000", "", "2,1", " 1 ", "9" * 30, "1;2", "²"]
)
def test_any_omp_num_threads_neither_ends_the_process_nor_prints(value: str) -> None:
    program = (
        "product(); print(native.get_num_threads(), __import__('os').environ['OMP_NUM_THREADS'])"
    )
    done = run(program, OMP_NUM_THREADS=value)
    assert (done.returncode, done.stderr) == (0, "")
    threads, kept = done.stdout.rstrip("\n").split(" ", 1)
    assert 1 <= int(threads) <= (os.cpu_count() or 1)
    assert kept == value


def test_omp_num_threads_is_honoured_when_it_is_a_number() -> None:
    assert run("print(native.get_num_threads())", OMP_NUM_THREADS="1").stdout == "1\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no masks")
def test_threads_are_as_many_as_the_affinity_mask_has_processors() -> None:
    first = min(os.sched_getaffinity(0))
    program = f"""
import os, sys
os.sched_setaffinity(0, {{{first}}})
from src.ml import native
print(native.get_num_threads())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_waiting_threads_spin_for_a_bounded_time_unless_the_user_says_otherwise() -> None:
    shown = "print(__import__('os').environ['GOMP_SPINCOUNT'])"
    assert run(shown, GOMP_SPINCOUNT="77").stdout == "77\n"
    without = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run(
        [sys.executable, "-c", f"from src.ml import native; {shown}"],
        cwd=ROOT, env=without, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert 0 < int(done.stdout) <= 10_000


@pytest.mark.parametrize(
    "environment",
    [{"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}, {"OMP_WAIT_POLICY": "passive"}],
    ids=str,
)
def test_fewer_threads_than_asked_for_give_the_same_bits(environment: dict[str, str]) -> None:
    program = "import hashlib; print(hashlib.sha256(product(4)).hexdigest())"
    assert run(program, **environment).stdout == run(program).stdout != ""


@pytest.mark.parametrize(
    ("name", "reason"), [("sse9", "unknown"), ("neon\x1b[2J", "unknown"), ("AVX2", "unknown")]
)
def test_an_unknown_instruction_set_is_refused_at_the_first_kernel(name: str, reason: str) -> None:
    program = """
from src.ml.errors import LlamaBoltsError
for call in (product, native.build_info):
    try:
        call()
    except LlamaBoltsError as error:
        print(error)
native.set_isa("portable")
product()
"""
    done = run(program, LLAMA_BOLTS_ISA=name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("instruction set must be one of") == 2
    assert reason in done.stdout
    assert "\x1b" not in done.stdout


def test_a_known_set_that_is_missing_here_is_refused() -> None:
    names = {"avx512bf16", "avx512", "avx2", "neon"} - set(native.available_isas())
    with pytest.raises(LlamaBoltsError, match="not available here"):
        native.set_isa(names.pop())


def test_the_environment_chooses_the_instruction_set() -> None:
    program = "product(); print(native.build_info()['isa'])"
    for name in native.available_isas():
        assert run(program, LLAMA_BOLTS_ISA=name).stdout == f"{name}\n"


def test_the_number_of_threads_is_checked_and_clamped() -> None:
    before = native.get_num_threads()
    for wrong in (0, -1, True, 1.5, "2", None):
        with pytest.raises(LlamaBoltsError, match="n must be an integer >= 1"):
            native.set_num_threads(wrong)  # type: ignore[arg-type]
    native.set_num_threads(10**9)
    most = MAX_THREADS if native.build_info()["openmp"] else 1
    assert native.get_num_threads() == most
    native.set_num_threads(before)


def test_a_forked_child_computes_the_same_bits_on_one_thread_and_does_not_hang() -> None:
    program = """
import os, sys
expected = product(4)
child = os.fork()
if child == 0:
    same = product() == expected and native.get_num_threads() == 1
    native.set_num_threads(4)
    os._exit(0 if same and native.get_num_threads() == 1 and product() == expected else 9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), product() == expected)
"""
    assert run(program).stdout == "0 True\n"


def test_subnormal_numbers_survive_the_import_and_every_kernel() -> None:
    program = """
try:
    import torch
except ImportError:
    pass
from tests.csrc.guard_pages import Blocks, Note
from tests.csrc.run_guard_pages import run_cases
tiny = np.array([1e-40], np.float32)
for name in native.available_isas():
    native.set_isa(name)
    run_cases(Blocks(), Note(None), "few")
    assert (tiny * np.float32(1))[0] != 0 and (tiny + tiny)[0] > tiny[0]
    factor, half = np.float32([0.5]), np.empty(1, np.float32)
    native.multiply(*map(Tensor.from_numpy, (tiny, factor, half)))
    assert 0 < half[0] < tiny[0]
print("still there")
"""
    done = run(program)
    assert done.stdout == "still there\n", done.stderr


def test_build_info_says_what_is_in_use() -> None:
    info = native.build_info()
    assert info["isa"] in info["available_isas"]
    assert info["available_isas"][-1] == "portable"
    assert info["openmp"] == (info["openmp_version"] > 0)
    assert info["compiler"].split()[0] in ("gcc", "clang", "test")
    assert info["threads"] == native.get_num_threads()
