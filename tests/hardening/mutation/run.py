"""Put small faults into the loaders: `python -m tests.hardening.mutation.run`.

A sample of the mutants of `src/checkpoint` and of the readers of tokenizers is run, each in a
process of its own in which the mutated module takes the place of the true one, on the tests of
that module alone. One that passes them all has survived. The tools for this that are known, mutmut
among them, want no package called `src`.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NoReturn

# What every process needs and no mutant is in; forked processes have it at once.
import hypothesis  # noqa: F401
import ml_dtypes  # noqa: F401
import pytest

import src.ml
import src.untrusted  # noqa: F401
from tests.hardening.mutation.mutants import Mutant, mutants_of

# What takes longer than all other tests together, and is run where these notice nothing.
LONG = "limited or within or 1_mib or 100_000 or any_byte or prose"
WORKERS = 2
SECONDS = 60  # of processor time; a mutant that loops is noticed
CHECKPOINT, TOKENIZER = "tests/checkpoint/test_{}.py", "tests/tokenizer/test_{}.py"
HUGGING_FACE = [CHECKPOINT.format(name) for name in ("hugging_face_config", "packed_weights")]
TORCH = [CHECKPOINT.format(name) for name in ("pickle_machine", "torch_pth")]
JSON = [TOKENIZER.format(name) for name in ("tokenizer_json", "added_tokens", "encoders")]
BESIDE = [*JSON, *(TOKENIZER.format(name) for name in ("config_files", "load_tokenizer"))]
TESTS = {
    "checkpoint/checkpoint": [CHECKPOINT.format("checkpoint"), "tests/model/test_loader.py"],
    "checkpoint/gguf": [CHECKPOINT.format("gguf"), CHECKPOINT.format("gguf_config")],
    "checkpoint/gguf_config": [CHECKPOINT.format("gguf_config"), "tests/model/test_gguf.py"],
    "checkpoint/gguf_writer": ["tests/model/test_saving_gguf.py"],
    "checkpoint/hugging_face_config": HUGGING_FACE,
    "checkpoint/mapped_file": [CHECKPOINT.format("mapped_file"), TORCH[1]],
    "checkpoint/model_directory": [
        CHECKPOINT.format(name) for name in ("model_directory", "checkpoint")
    ],
    "checkpoint/names": [CHECKPOINT.format(name) for name in ("names", "shards", "checkpoint")],
    "checkpoint/packed_weights": [*HUGGING_FACE, "tests/model/test_saving.py"],
    "checkpoint/params": [CHECKPOINT.format("params"), HUGGING_FACE[0]],
    "checkpoint/pickle_machine": TORCH,
    "checkpoint/safetensors": [CHECKPOINT.format(name) for name in ("safetensors", "checkpoint")],
    "checkpoint/safetensors_writer": [
        "tests/model/test_saving.py",
        "tests/model/test_saving_gguf.py",
    ],
    "checkpoint/shards": [CHECKPOINT.format("shards")],
    "checkpoint/torch_pth": TORCH,
    "checkpoint/zip_directory": [CHECKPOINT.format("zip_directory"), TORCH[1]],
    "tokenizer/tiktoken_file": [TOKENIZER.format("tiktoken_file"), TOKENIZER.format("tokenizer")],
    "tokenizer/sentencepiece_model": [TOKENIZER.format("sentencepiece_model")],
    **{f"tokenizer/{name}": JSON for name in ("tokenizer_json", "json_pipeline")},
    "tokenizer/config_files": BESIDE,
    "tokenizer/gguf_keys": [TOKENIZER.format("gguf_keys"), TOKENIZER.format("gguf_export")],
}


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import a mutant in the place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = ".".join(mutant.path.with_suffix("").parts)
        self._path, self._source = mutant.path, mutant.source

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the one module."""
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        """Execute the mutant."""
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


def main() -> int:
    """Run a sample; return 1 if fewer than nine of ten were killed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hardening.mutation.run", description=__doc__
    )
    parser.add_argument("modules", nargs="*", help="such as checkpoint/params; default: all")
    parser.add_argument("--mutants", type=int, default=400, help="how many; default 400")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    arguments = parser.parse_args()
    modules = arguments.modules or sorted(TESTS)
    every = [mutant for name in modules for mutant in mutants_of(Path(f"src/{name}.py"))]
    sample = random.Random(arguments.seed).sample(every, min(len(every), arguments.mutants))
    check_tests_pass(modules)
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        survivors = sweep(pool, sample, f"not ({LONG})")
        print(f"{len(survivors)} of {len(sample)} go on to the long tests")
        survivors = sweep(pool, survivors, LONG)
    killed = len(sample) - len(survivors)
    print(f"{len(sample)} of {len(every)} mutants: {killed} killed, survivors:")
    print(*(mutant.label for mutant in survivors), sep="\n")
    return 1 if len(survivors) > 0.1 * len(sample) else 0


def sweep(pool: Pool, mutants: list[Mutant], names: str) -> list[Mutant]:
    """Run each mutant on those of its tests that have these names; give those that pass."""
    survivors = []
    results = pool.imap(partial(judge, names=names), mutants)
    for number, (mutant, (killer, seconds)) in enumerate(zip(mutants, results, strict=True), 1):
        survivors += [] if killer else [mutant]
        outcome = f"killed by {killer}" if killer else "SURVIVED"
        place = f"{number}/{len(mutants)}"
        print(f"{place} ({seconds:.1f} s) {mutant.label}: {outcome}", flush=True)
    return survivors


def judge(mutant: Mutant, names: str) -> tuple[str, float]:
    """Run the tests that should notice a mutant; return what killed it and the seconds."""
    started = time.monotonic()
    files = TESTS[str(mutant.path.relative_to("src").with_suffix(""))]
    return run_tests(files, mutant, names), time.monotonic() - started


def check_tests_pass(modules: list[str]) -> None:
    """Check that without a mutant all tests pass, else every mutant would seem killed."""
    files = sorted({file for name in modules for file in TESTS[name]})
    failed = run_tests(files, None, f"not ({LONG})") or run_tests(files, None, LONG)
    if failed:
        sys.exit(f"without a mutant fails: {failed}")


class Witness:
    """Write down the first test that fails, and how."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at one phase of one test."""
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Look at the collection of one file."""
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            reason = lines[0][1:].strip()[:80] if lines else "no reason given"
            self._stream.write(f"{report.nodeid.rpartition('/')[2]} ({reason})".encode())
            self._stream.flush()


def run_tests(files: list[str], mutant: Mutant | None, names: str) -> str:
    """Run tests of these names in a process of their own; return what failed, "" for nothing."""
    with tempfile.TemporaryFile() as stream:
        process = os.fork()
        if not process:
            _be_the_process(files, mutant, names, stream)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        stream.seek(0)
        return stream.read().decode() or f"exit code {code}"


def _be_the_process(
    files: list[str], mutant: Mutant | None, names: str, stream: BinaryIO
) -> NoReturn:
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        seconds = SECONDS if mutant else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        if mutant:
            sys.meta_path.insert(0, MutantFinder(mutant))
        with tempfile.TemporaryDirectory() as folder:
            switches = [
                "-x", "-q", "--assert=plain", "-p", "no:cacheprovider",
                f"--basetemp={folder}/tests",
            ]  # fmt: skip
            code = pytest.main([*switches, "-k", names, *files], [Witness(stream)])
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
