"""The table of kernels, and the benchmarks from end to end on a tiny model."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from src.model.saving_gguf import save_gguf
from tests.bench.bench_kernels import share_rows
from tests.bench.bench_rank_times import speed_table
from tests.bench.engines import OURS
from tests.bench.shapes import find_checkpoint

ROOT = Path(__file__).parents[2]


def test_a_kernel_is_held_against_the_lower_limit_within_each_round() -> None:
    rates = {
        "llama-bolts": [4.0, 9.0],
        "read roofline": [5.0, 10.0],
        "peak": [8.0, 100.0],
    }
    lines = [
        {"label": "w2", "rows": 1, "rates": rates},
        {
            "label": "w2",
            "rows": 8,
            "rates": rates | {"peak": [float("nan"), float("nan")]},
        },
        {"label": "attention", "rows": 1, "rates": rates | {"peak": [4.0, 9.0]}},
    ]
    assert share_rows(lines) == [
        "| | 1 rows | 8 rows |",
        "|---|---|---|",
        "| w2 | 0.85 | 0.85 |",
        "| attention | 1.00 |  |",
    ]


def test_the_chapter_has_the_simulation_of_the_measured_times() -> None:
    assert speed_table() in (ROOT / "docs" / "PAST-ONE-MACHINE.md").read_text("utf-8")


def record_of(*arguments: str) -> dict[str, Any]:
    """Runs a benchmark for one round; returns the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--pairs", "1"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(record, dict)
    return record


@pytest.mark.slow
def test_every_measure_of_ours_runs_on_a_tiny_model(tmp_path: Path) -> None:
    directory = find_checkpoint("tiny", None, tmp_path)
    gguf = tmp_path / "tiny.gguf"
    save_gguf(directory, gguf)
    results = record_of(
        "tests.bench.bench_model", "--shape", "tiny", "--engines", OURS, "--repeats", "0",
        "--prompts", "22", "--positions", "600", "--directory", str(tmp_path),
        "--beside", str(gguf),
    )["results"]  # fmt: skip
    assert set(results["start to ready"]["rates"]) == {directory.name, gguf.name}
    assert set(results["decode"]["rates"]) == {OURS, "roofline"}
    expected = {"decode", "prefill 22", "steps of rows", "attention at 600", "tiny model"}
    assert expected < set(results)


@pytest.mark.slow
def test_decoding_with_windows_runs_on_a_tiny_model(tmp_path: Path) -> None:
    results = record_of(
        "tests.bench.bench_context", "--shape", "gemma-tiny", "--engines", OURS,
        "--positions", "30", "1500", "--repeats", "0", "--directory", str(tmp_path),
    )["results"]  # fmt: skip
    expected = {f"{OURS} at 30", f"{OURS} at 1500", "roofline"}
    assert set(results["decode"]["rates"]) == expected


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("llama_cpp") is None,
    reason="llama-cpp-python, which makes the file, is absent",
)
def test_every_measure_of_experts_runs_on_a_tiny_model(tmp_path: Path) -> None:
    record = record_of(
        "tests.bench.bench_experts", "--shape", "qwen3-tiny", "--engines", OURS,
        "--pairs", "1", "--repeats", "0", "--directory", str(tmp_path),
    )  # fmt: skip
    results = record["results"]
    assert {OURS, "roofline"} < set(results["decode"]["rates"])
    assert {"prefill 22", "prefill 128", "prefill 512", "step"} < set(results)
    one, several = record["bytes"]
    assert one < several


@pytest.mark.slow
def test_every_kernel_runs_on_a_tiny_model() -> None:
    lines = record_of(
        "tests.bench.bench_kernels",
        "--shapes",
        "tiny",
        "--rows",
        "1",
        "7",
        "--positions",
        "600",
    )["lines"]
    assert {"wq, wo", "w2", "w1 + w3"} <= {line.get("name") for line in lines}


@pytest.mark.slow
def test_every_format_runs_on_a_tiny_model(tmp_path: Path) -> None:
    results = record_of(
        "tests.bench.bench_formats", "--shape", "tiny", "--theirs", "--steps", "3",
        "--prompts", "22", "--directory", str(tmp_path),
    )["results"]  # fmt: skip
    assert set(results) == {"decode", "prefill 22"}
    assert set(results["prefill 22"]["rates"]) == {"bfloat16", "int8", "nf4"}


@pytest.mark.slow
def test_a_model_beside_busy_programs_is_timed(tmp_path: Path) -> None:
    results = record_of(
        "tests.bench.bench_busy", "--shape", "tiny", "--loads", "0", "1", "--steps", "3",
        "--prompts", "22", "--directory", str(tmp_path),
    )["results"]  # fmt: skip
    measures = ("decode", "prompt of 22")
    assert set(results) == {
        f"{measure}, beside {load} busy programs"
        for measure in measures
        for load in (0, 1)
    }
    assert set(results["decode, beside 1 busy programs"]["rates"]) == {
        "default", "1 threads", "2 threads",
    }  # fmt: skip
