"""Put small faults into the loaders: `python -m tests.hardening.mutation.run`.

A sample of the mutants of `src/checkpoint` and of the readers of tokenizers is run, each
in a process of its own in which the mutated module takes the place of the true one, on
the tests of that module alone. One that passes them all has survived. The tools for this
that are known, mutmut among them, want no package called `src`.
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
SECONDS = 120  # of processor time; a mutant that loops is noticed
# Which tests are to notice the mutants of a module, beside those of its name.
ALSO = {
    "checkpoint/adapters": "model/adapters",
    "checkpoint/checkpoint": "model/loader",
    "checkpoint/gguf": "checkpoint/gguf_config",
    "checkpoint/gguf_config": "model/gguf",
    "checkpoint/gguf_writer": "model/saving_gguf",
    "checkpoint/hugging_face_config": "checkpoint/packed_weights model/families",
    "checkpoint/mapped_file": "checkpoint/torch_pth",
    "checkpoint/model_directory": "checkpoint/checkpoint",
    "checkpoint/names": "checkpoint/shards checkpoint/checkpoint",
    "checkpoint/packed_weights": "checkpoint/hugging_face_config model/saving",
    "checkpoint/params": (
        "checkpoint/hugging_face_config checkpoint/gguf_config model/args"
    ),
    "checkpoint/pickle_machine": "checkpoint/torch_pth",
    "checkpoint/safetensors": "checkpoint/checkpoint",
    "checkpoint/safetensors_writer": "model/saving model/saving_gguf",
    "checkpoint/sampling_values": "",
    "checkpoint/shards": "",
    "checkpoint/torch_pth": "checkpoint/pickle_machine",
    "checkpoint/zip_directory": "checkpoint/torch_pth",
    "tokenizer/config_files": "tokenizer/load_tokenizer tokenizer/tokenizer_json",
    "tokenizer/gguf_keys": "tokenizer/gguf_export",
    "tokenizer/json_pipeline": (
        "tokenizer/added_tokens tokenizer/encoders tokenizer/tokenizer_json"
    ),
    "tokenizer/sentencepiece_model": "",
    "tokenizer/tiktoken_file": "tokenizer/tokenizer",
    "tokenizer/tokenizer_json": "tokenizer/added_tokens tokenizer/encoders",
}


def files_of_tests(module: str) -> list[str]:
    """Give the tests that are to notice the mutants of a module."""
    names = (module, *ALSO[module].split())
    own, *others = (f"tests/{name.replace('/', '/test_')}.py" for name in names)
    return [own] * Path(own).exists() + others


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import a mutant in the place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = ".".join(mutant.path.with_suffix("").parts)
        self._path = mutant.path
        self._source = mutant.source

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


def main() -> int:
    """Run a sample; return 1 if fewer than nine of ten were killed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hardening.mutation.run", description=__doc__
    )
    parser.add_argument(
        "modules", nargs="*", help="such as checkpoint/params; default: all"
    )
    parser.add_argument("--mutants", type=int, default=400, help="how many; default 400")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    arguments = parser.parse_args()
    modules = arguments.modules or sorted(ALSO)
    every = [mutant for name in modules for mutant in mutants_of(Path(f"src/{name}.py"))]
    sample = random.Random(arguments.seed).sample(
        every, min(len(every), arguments.mutants)
    )
    failed = run_tests([file for name in modules for file in files_of_tests(name)], None)
    if failed:  # else every mutant would seem killed
        sys.exit(f"without a mutant fails: {failed}")
    survivors = []
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        results = zip(sample, pool.imap(judge, sample), strict=True)
        for number, (mutant, killer) in enumerate(results, 1):
            survivors += [] if killer else [mutant]
            outcome = f"killed by {killer}" if killer else "SURVIVED"
            print(f"{number}/{len(sample)} {mutant.label}: {outcome}", flush=True)
    killed = len(sample) - len(survivors)
    print(f"{len(sample)} of {len(every)} mutants: {killed} killed, survivors:")
    print(*(mutant.label for mutant in survivors), sep="\n")
    return 1 if len(survivors) > 0.1 * len(sample) else 0


def judge(mutant: Mutant) -> str:
    """Run the tests that should notice a mutant; return what killed it,
    "" for nothing.
    """
    return run_tests(
        files_of_tests(str(mutant.path.relative_to("src").with_suffix(""))), mutant
    )


class Witness:
    """Write down the first test that fails, and how."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def pytest_runtest_logreport(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> None:
        if report.failed:
            lines = [
                line for line in report.longreprtext.splitlines() if line.startswith("E ")
            ]
            reason = lines[0][1:].strip()[:80] if lines else "no reason given"
            self._stream.write(f"{report.nodeid.rpartition('/')[2]} ({reason})".encode())
            self._stream.flush()

    pytest_collectreport = pytest_runtest_logreport


def run_tests(files: list[str], mutant: Mutant | None) -> str:
    """Run tests in a process of their own; return what failed first, "" for nothing."""
    with tempfile.TemporaryFile() as stream:
        process = os.fork()
        if not process:
            _be_the_process(files, mutant, stream)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        stream.seek(0)
        return stream.read().decode() or (f"exit code {code}" if code else "")


def _be_the_process(
    files: list[str], mutant: Mutant | None, stream: BinaryIO
) -> NoReturn:
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if mutant:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            sys.meta_path.insert(0, MutantFinder(mutant))
        with tempfile.TemporaryDirectory() as folder:
            switches = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider"]
            switches += [f"--basetemp={folder}/tests", *dict.fromkeys(files)]
            for names in (f"not ({LONG})", LONG):
                code = pytest.main([*switches, "-k", names], [Witness(stream)])
                if code == pytest.ExitCode.NO_TESTS_COLLECTED:
                    code = 0
                if code:
                    break
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
