"""What holds for every test, in a shell of any kind and on a machine however busy."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell without job control lets what it runs in the background ignore Ctrl-C, which
# tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, which may take their time.
slow = [HealthCheck.too_slow]
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=slow
)
settings.load_profile("steady")

_QUICK = "not slow and not real"  # as in pyproject.toml
MOST_WORKERS = 8  # each of them imports all tests
IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IN_WORKER:
    # The workers share the processors, and what their tests start does. A thread of a
    # kernel that waits leaves its processor to the others soon.
    threads = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    os.environ.setdefault("GOMP_SPINCOUNT", "200")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Runs the quick tests with a worker for each processor, where pytest-xdist is
    installed.

    A run of some of them, one with a debugger and one that says how many workers there
    are stay as they are.
    """
    options = config.option
    named = (
        config.args_source is pytest.Config.ArgsSource.ARGS or options.markexpr != _QUICK
    )
    some = named or options.keyword or options.lf or options.stepwise
    watched = options.usepdb or options.trace or options.capture == "no"
    # None: there is the plugin, and nothing was said.
    workers = getattr(options, "numprocesses", 0)
    if workers is None and not (some or watched or IN_WORKER):
        options.numprocesses = "auto"
        options.maxprocesses = options.maxprocesses or MOST_WORKERS
        if options.dist == "no":
            options.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from looking at tests while they are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _modules_are_compiled_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Programs that tests start share compiled modules, also if PYTHONDONTWRITEBYTECODE
    is set.
    """
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            shared = folder.parent if IN_WORKER else folder  # by all workers
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "bytecode"))
        yield
