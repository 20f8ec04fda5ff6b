"""The environment and the process around the kernels."""

import mmap
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src import ml
from src.ml import kernels
from src.ml.errors import LlamaBoltsError
from src.ml.kernels import MAX_THREADS

ROOT = Path(__file__).parents[2]

PRODUCT = """
import os
import numpy as np
from src import ml
from src.ml import kernels
def product(threads=None):
    if threads: kernels.set_num_threads(threads)
    x = np.random.default_rng(0).standard_normal((30, 600)).astype(np.float32)
    weight = ml.Tensor.from_numpy(x.copy())
    return ml.linear_transformation(ml.Tensor.from_numpy(x), weight).numpy().tobytes()
"""


def run(
    program: str, prelude: str = PRODUCT, **environment: str | None
) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own; a variable that is None is not there."""
    given = os.environ | environment
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", prelude + program],
        env={name: value for name, value in given.items() if value is not None},
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    "value", ["0", "-3", "text", "1000000", "", "2,1", " 1 ", "9" * 30, "²"]
)
def test_any_omp_num_threads_neither_ends_the_process_nor_prints(value: str) -> None:
    program = "product(); print(kernels.get_num_threads(), os.environ['OMP_NUM_THREADS'])"
    done = run(program, OMP_NUM_THREADS=value)
    assert (done.returncode, done.stderr) == (0, "")
    threads, kept = done.stdout.rstrip("\n").split(" ", 1)
    assert 1 <= int(threads) <= (os.cpu_count() or 1)
    assert kept == value


# Values that end the process or print where OpenMP reads them, and values that it knows.
BAD = [
    {
        "OMP_PROC_BIND": "x",
        "OMP_PLACES": "x",
        "OMP_STACKSIZE": "x",
        "OMP_THREAD_LIMIT": "0",
        "OMP_SCHEDULE": "x",
        "OMP_WAIT_POLICY": "x",
        "OMP_DYNAMIC": "3",
        "OMP_NESTED": "x",
        "OMP_DISPLAY_ENV": "true",
        "OMP_MAX_ACTIVE_LEVELS": "-1",
        "OMP_NUM_TEAMS": "x",
        "GOMP_SPINCOUNT": "x",
        "GOMP_CPU_AFFINITY": "x",
        "GOMP_STACKSIZE": "x",
        "OMP_CANCELLATION": "x",
    },
    {"OMP_STACKSIZE": "100000G"},
]
GOOD = [
    {"OMP_PROC_BIND": "close", "OMP_THREAD_LIMIT": "3", "OMP_WAIT_POLICY": "ACTIVE"},
    {"OMP_DYNAMIC": "TRUE", "GOMP_SPINCOUNT": "infinity"},
]
# Prints the variables as the library sees them, computes, and prints them as Python does.
SEEN = """
import importlib, os
load = importlib.import_module
def given():
    return {name: os.environ[name] for name in NAMES if name in os.environ}
def shown(name, *package):
    if name == "._kernels":
        print(given())
    return load(name, *package)
importlib.import_module = shown
"""


@pytest.mark.parametrize(
    "settings", [*BAD, *GOOD], ids=lambda settings: " ".join([*settings][:3])
)
def test_other_variables_of_openmp_neither_end_the_process_nor_print(
    settings: dict[str, str],
) -> None:
    prelude = SEEN.replace("NAMES", str([*settings])) + PRODUCT
    done = run("product(2); print(given())", prelude, **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{{}}\n{settings}\n", "")


# What is refused once the library is loaded: addresses for a stack, or processes of the
# user.
FEW_ADDRESSES = """
import resource
product(1)  # loads what NumPy imports late
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (12 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""
FEW_PROCESSES = """
import resource
product(1)  # loads what NumPy imports late, from where the new user may not read
os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the system does not tell sizes"
)
@pytest.mark.parametrize(
    "limit", [FEW_ADDRESSES, FEW_PROCESSES], ids=["addresses", "processes"]
)
def test_threads_that_the_system_refuses_are_fewer_threads_and_one_warning(
    limit: str,
) -> None:
    """libgomp said "Thread creation failed" and ended the process."""
    if limit is FEW_PROCESSES and os.geteuid() != 0:
        pytest.skip("only root may become a user without processes")
    program = """
tasks = len(os.listdir("/proc/self/task"))
kernels.set_num_threads(4)
product(); product(8)
print(kernels.get_num_threads(), len(os.listdir("/proc/self/task")) > tasks)
kernels.set_num_threads(4)
print(kernels.get_num_threads())
"""
    done = run(limit + program)
    assert (done.returncode, done.stdout) == (0, "1 False\n1\n")
    assert (
        done.stderr.count("RuntimeWarning: [threads] the system refuses more than 1 of 4")
        == 1
    )
    assert done.stderr.count("Warning") == 1
    twin = run(program)
    assert (twin.returncode, twin.stdout, twin.stderr) == (0, "8 True\n4\n", "")


def test_as_many_threads_as_the_system_gives_are_used() -> None:
    program = """
import _thread
start, given = _thread.start_new_thread, []
def refuse_the_third(*arguments):
    if len(given) == 2:
        raise RuntimeError("can't start new thread")
    given.append(start(*arguments))
_thread.start_new_thread = refuse_the_third
kernels.set_num_threads(6)
product()
print(kernels.get_num_threads())
"""
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert "refuses more than 3 of 6 threads" in done.stderr


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system has no masks"
)
def test_threads_are_as_many_as_the_affinity_mask_has_processors() -> None:
    first = min(os.sched_getaffinity(0))
    program = f"""
import os, sys
os.sched_setaffinity(0, {{{first}}})
from src.ml import kernels
print(kernels.get_num_threads())
"""
    done = run(program, "", OMP_NUM_THREADS=None)
    assert (done.stdout, done.stderr) == ("1\n", "")


WAITING = """
import time
product(2)  # creates the thread, and touches the memory
product()
start = time.process_time()
time.sleep(0.3)
idle = time.process_time() - start
# Other processes may delay a thread that spins, but it goes on until it has used this time.
deadline = time.monotonic() + 20
while idle > 0.05 and time.process_time() - start < 0.4 and time.monotonic() < deadline:
    time.sleep(0.05)
print("spins" if time.process_time() - start >= 0.4 else "sleeps" if idle < 0.05 else idle)
"""


@pytest.mark.skipif(
    kernels.build_info()["threading"] == "serial", reason="one thread only"
)
@pytest.mark.parametrize(
    ("wait_policy", "expected"),
    [
        (None, "sleeps"),
        ("passive", "sleeps"),
        (" Passive", "sleeps"),
        ("active", "spins"),
        ("ACTIVE", "spins"),
        ("wrong", "sleeps"),
        ("", "sleeps"),
    ],
)
def test_a_waiting_thread_spins_as_long_as_the_user_chooses(
    wait_policy: str | None, expected: str
) -> None:
    done = run(WAITING, OMP_WAIT_POLICY=wait_policy)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


@pytest.mark.parametrize(
    ("limit", "expected"), [("1", "1"), ("0", "7"), ("x", "7"), ("9", "7")]
)
def test_the_limit_of_openmp_holds_for_the_default_number_of_threads(
    limit: str, expected: str
) -> None:
    program = """
import os
os.sched_getaffinity = lambda process: set(range(7))
from src.ml import kernels
print(kernels.get_num_threads())
"""
    done = run(program, "", OMP_NUM_THREADS=None, OMP_THREAD_LIMIT=limit)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_the_environment_is_unchanged_after_the_import_of_the_kernels() -> None:
    program = """
import os
before = dict(os.environ)
from src.ml import kernels
print(os.environ == before, kernels.get_num_threads())
"""
    for spin_count in (None, "77", "x"):
        done = run(program, "", OMP_NUM_THREADS="1", GOMP_SPINCOUNT=spin_count)
        assert (done.stdout, done.stderr) == ("True 1\n", "")


def test_fewer_threads_than_asked_for_give_the_same_bits() -> None:
    program = "import hashlib; print(hashlib.sha256(product(4)).hexdigest())"
    settings = (
        {"OMP_THREAD_LIMIT": "1"},
        {"OMP_DYNAMIC": "true"},
        {"OMP_WAIT_POLICY": "passive"},
    )
    outputs = [run(program).stdout, *(run(program, **one).stdout for one in settings)]
    assert len(outputs[0]) == 65
    assert len(set(outputs)) == 1


@pytest.mark.parametrize("name", ["neon\x1b[2J", "AVX2"])
def test_an_unknown_instruction_set_is_refused_at_the_first_kernel(name: str) -> None:
    program = """
for call in (product, kernels.build_info):
    try:
        call()
    except ml.LlamaBoltsError as error:
        print(error)
kernels.set_isa("portable")
product()
"""
    done = run(program, LLAMA_BOLTS_ISA=name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("instruction set must be one of") == 2
    assert "unknown" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_known_set_that_is_missing_here_is_refused() -> None:
    names = {"avx2", "neon"} - set(kernels.available_isas())
    with pytest.raises(LlamaBoltsError, match="not available here"):
        kernels.set_isa(names.pop())


def test_the_environment_chooses_the_instruction_set() -> None:
    program = "product(); print(kernels.build_info()['isa'])"
    for name in kernels.available_isas():
        assert run(program, LLAMA_BOLTS_ISA=name).stdout == f"{name}\n"


def test_the_number_of_threads_is_checked_and_clamped() -> None:
    before = kernels.get_num_threads()
    for wrong in (0, -1, True, 1.5, "2", None):
        with pytest.raises(LlamaBoltsError, match="n must be an integer >= 1"):
            kernels.set_num_threads(wrong)
    kernels.set_num_threads(10**9)
    most = 1 if kernels.build_info()["threading"] == "serial" else MAX_THREADS
    assert kernels.get_num_threads() == most
    kernels.set_num_threads(before)


def test_a_forked_child_computes_the_same_bits_on_one_thread_and_does_not_hang() -> None:
    program = """
expected = product(4)
child = os.fork()
if child == 0:
    same = product() == expected and kernels.get_num_threads() == 1
    kernels.set_num_threads(4)
    os._exit(0 if same and kernels.get_num_threads() == 1 and product() == expected else 9)
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
for name in kernels.available_isas():
    kernels.set_isa(name)
    run_cases(Blocks(), Note(None), "one")
    assert (tiny * np.float32(1))[0] != 0 and (tiny + tiny)[0] > tiny[0]
    half = ml.multiply(ml.Tensor.from_numpy(tiny), ml.full((1,), 0.5)).item()
    assert 0 < half < tiny[0]
print("still there")
"""
    done = run(program)
    assert done.stdout == "still there\n", done.stderr


def test_build_info_says_what_is_in_use() -> None:
    info = kernels.build_info()
    assert info["isa"] in info["available_isas"]
    assert info["available_isas"][-1] == "portable"
    assert (
        info["openmp"] == (info["openmp_version"] > 0) == (info["threading"] == "OpenMP")
    )
    assert info["compiler"].split()[0] in ("gcc", "clang", "test")
    assert info["threads"] == kernels.get_num_threads()


def test_two_python_threads_compute_at_once_without_mixing_their_scratch() -> None:
    generator = np.random.default_rng(3)
    x = [
        ml.Tensor.from_numpy(generator.standard_normal((20, 300)).astype("f4"))
        for _ in range(4)
    ]
    weight = ml.Tensor.from_numpy(generator.standard_normal((90, 300)).astype("f4"))
    expected = [ml.linear_transformation(one, weight).numpy().copy() for one in x]
    wrong: list[int] = []

    def repeat(i: int) -> None:
        for _ in range(30):
            if not np.array_equal(
                ml.linear_transformation(x[i], weight).numpy(), expected[i]
            ):
                wrong.append(i)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, range(4)))
    assert wrong == []


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32, ml.uint8], ids=str)
@given(data=st.data())
def test_only_contiguous_elements_inside_their_storage_have_a_pointer(
    dtype: ml.DType, data: st.DataObject
) -> None:
    x = ml.zeros((3, 4, 5), dtype)
    for _ in range(data.draw(st.integers(1, 4))):
        match data.draw(
            st.sampled_from(["slice", "transpose", "reshape", "index", "contiguous"])
        ):
            case "slice" if x.ndim:
                start = data.draw(st.integers(0, x.shape[0]))
                x = x.slice(start, data.draw(st.integers(start, x.shape[0])))
            case "transpose" if x.ndim:
                x = x.transpose(data.draw(st.integers(0, x.ndim - 1)), -1)
            case "reshape":
                x = x.reshape(-1 if x.size else 0)
            case "index" if x.ndim and x.shape[0]:
                x = x[data.draw(st.integers(0, x.shape[0] - 1)) :: 2]
            case _:
                x = x.contiguous()
        if x._pointer is not None:
            address = kernels.as_address(x._pointer)
            assert address == x.data_pointer
            assert address % dtype.itemsize == 0
            assert x.numpy().flags.c_contiguous
            start = ml.Tensor(x.storage, (len(x.storage),), (1,), ml.uint8).data_pointer
            assert start <= address
            assert address + x.nbytes <= start + len(x.storage)
        assert x.contiguous()._pointer is not None


_FAULTS = """
import resource
from src.ml.kernels import keep_freed_memory
CALL
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        activations = [ml.full((1024, 1024), 1.0) for _ in range(12)]
        del activations
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver()[0], reason="only glibc is told to")
@pytest.mark.parametrize(
    ("call", "is_kept"), [("", False), ("keep_freed_memory()", True)]
)
def test_a_program_may_keep_the_memory_that_tensors_leave(
    call: str, is_kept: bool
) -> None:
    done = run(_FAULTS.replace("CALL", call))
    pages = 4 * 12 * 2**22 // mmap.PAGESIZE
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < pages / 100 if is_kept else int(done.stdout) > pages / 2
