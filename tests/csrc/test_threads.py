"""The pool of threads: its bits, and what happens when threads are missing, added or held
up.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from src.ml import kernels

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    kernels.build_info()["threading"] == "serial",
    reason="the kernels are built for one thread",
)

# Products of several shapes: one row and many, spans and groups, and the ops of single
# units.
PRODUCTS = """
import os, signal, sys, threading, time
import numpy as np
from src import ml

generator = np.random.default_rng(0)
def tensor(*shape):
    return ml.Tensor.from_numpy(generator.standard_normal(shape).astype("f4"))
CASES = [(tensor(rows, size), tensor(out, size))
         for rows, out, size in ((1, 900, 576), (7, 333, 1100), (200, 310, 400))]
def compute():
    results = []
    for x, weight in CASES:
        product = ml.linear_transformation(x, weight)
        results.append(product.numpy().tobytes())
        results.append(ml.softmax(product).numpy().tobytes())
        results.append(ml.silu(product).numpy().tobytes())
    return results
def tasks():
    return len(os.listdir("/proc/self/task"))
ml.set_num_threads(1)
expected = compute()
"""


def run(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    warnings = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    return subprocess.run(
        [sys.executable, *warnings, "-c", PRODUCTS + program],
        env=os.environ | environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def printed(program: str, **environment: str) -> str:
    done = run(program, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("policy", ["", "active", "passive"])
def test_any_number_of_threads_in_any_order_gives_the_same_bits(policy):
    program = """
for threads in (2, 5, 3, 1, 9, 2, 1, 5):
    ml.set_num_threads(threads)
    assert all(compute() == expected for _ in range(20)), threads
print("equal")
"""
    assert printed(program, OMP_WAIT_POLICY=policy) == "equal\n"


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="the system lists no threads"
)
def test_workers_are_started_once_and_only_as_many_as_are_used():
    program = """
before = tasks()
counts = []
for threads in (2, 2, 4, 3, 1, 4):
    ml.set_num_threads(threads)
    for _ in range(5):
        compute()
    counts.append(tasks() - before)
print(counts)
"""
    assert printed(program) == "[1, 1, 3, 3, 3, 3]\n"


def test_workers_that_never_run_hold_nobody_up():
    """The workers may use only a processor that another program keeps, with the lowest
    priority.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs masks and two processors")
    program = """
ml.set_num_threads(3)
compute()
own = threading.get_native_id()
processors = sorted(os.sched_getaffinity(0))
others = [int(name) for name in os.listdir("/proc/self/task") if int(name) != own]
for task in others:
    os.sched_setaffinity(task, processors[:1])
    os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(own, processors[1:])
child = os.fork()
if child == 0:
    os.sched_setaffinity(0, processors[:1])
    while True:
        pass
try:
    start = time.monotonic()
    assert all(compute() == expected for _ in range(30))
    print("equal" if time.monotonic() - start < 60 else "held up")
finally:
    os.kill(child, signal.SIGKILL)
"""
    assert printed(program) == "equal\n"


def test_a_forked_child_computes_alone_and_the_parent_goes_on():
    program = """
ml.set_num_threads(4)
assert compute() == expected
codes = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        same = compute() == expected and ml.get_num_threads() == 1
        ml.set_num_threads(4)
        same = same and compute() == expected and ml.get_num_threads() == 1 and tasks() == 1
        os._exit(0 if same else 9)
    assert compute() == expected
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes)
"""
    assert printed(program) == "[0, 0, 0, 0, 0]\n"


def test_a_child_that_is_forked_while_another_thread_computes_does_not_hang():
    program = """
ml.set_num_threads(3)
ends = threading.Event()
def repeat():
    while not ends.is_set():
        compute()
other = threading.Thread(target=repeat)
other.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if compute() == expected else 9)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ends.set()
other.join()
print(set(codes), compute() == expected)
"""
    assert printed(program) == "{0} True\n"


def test_fewer_threads_than_before_use_no_scratch_of_others():
    """A worker that comes late to a region takes no units of a later one with fewer
    threads.
    """
    program = """
for _ in range(300):
    ml.set_num_threads(6)
    compute()
    ml.set_num_threads(2)
    assert compute() == expected
print("equal")
"""
    assert printed(program) == "equal\n"


def test_two_python_threads_at_once_get_the_same_bits():
    program = """
ml.set_num_threads(3)
wrong = []
def repeat():
    for _ in range(15):
        if compute() != expected:
            wrong.append(1)
others = [threading.Thread(target=repeat) for _ in range(4)]
for other in others:
    other.start()
for other in others:
    other.join()
print(wrong)
"""
    assert printed(program) == "[]\n"


def test_the_process_ends_at_once_while_workers_wait_or_work():
    program = """
ml.set_num_threads(4)
def repeat():
    while True:
        compute()
if WORKS:
    threading.Thread(target=repeat, daemon=True).start()
    time.sleep(0.05)
compute()
print("ends")
"""
    for policy in ("", "active", "passive"):
        for works in ("True", "False"):
            text = program.replace("WORKS", works)
            assert printed(text, OMP_WAIT_POLICY=policy) == "ends\n"


def test_a_signal_reaches_the_thread_of_python_and_no_worker():
    program = """
ml.set_num_threads(4)
compute()
seen = []
def note(*_):
    seen.append(threading.current_thread() is threading.main_thread())
signal.signal(signal.SIGALRM, note)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while len(seen) < 50:
    assert compute() == expected
signal.setitimer(signal.ITIMER_REAL, 0)
print(set(seen))
"""
    assert printed(program) == "{True}\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("flag", ["-fopenmp", "-DLLAMA_BOLTS_PTHREADS"])
def test_workers_that_come_while_a_region_is_opened_run_no_unit_twice(tmp_path, flag):
    program = tmp_path / "pool_trial"
    build = ["gcc", "-O1", "-std=gnu11", flag, "-pthread", "-DLLAMA_BOLTS_ALL_THREADS"]
    build += ["-Dsched_yield=sleep_for_some_time", "-Icsrc", "-o", str(program)]
    sources = ["tests/csrc/pool_trial.c", "csrc/threads.c"]
    subprocess.run([*build, *sources], cwd=REPOSITORY, check=True)
    for seed in range(25):
        trial = [str(program), str(seed)]
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "0 units were not run once\n"), seed
