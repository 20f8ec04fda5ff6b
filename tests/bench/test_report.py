"""Rows for docs/PERFORMANCE.md, and the benchmark from end to end on a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_kernels import share_rows
from tests.bench.engines import OURS
from tests.bench.measures import Value
from tests.bench.processes import Rounds
from tests.bench.report import FORCED_GOALS, GOALS, goal_rows

ROOT = Path(__file__).parents[2]
HEADING = 2


def test_a_goal_is_met_or_not_by_the_median_of_its_ratios_within_each_round() -> None:
    results = {
        "decode": Rounds({OURS: [9.0, 22.0, 10.0], "roofline": [10.0, 20.0, 5.0]}),
        "start to ready": Value(0.9, 0.7, 1.0, "s"),
        "sampling": Value(0.5, 0.4, 0.6, "ms"),
    }
    assert goal_rows(results)[HEADING:] == [
        "| decode over the memory bandwidth | >= 0.95 | 1.1 | 0.9 - 2 | met |",
        "| sampling over the vocabulary | <= 1 ms | 0.5 ms | 0.4 - 0.6 | met |",
        "| process start to ready | <= 0.8 s | 0.9 s | 0.7 - 1 | not met |",
    ]


def test_a_step_of_rows_is_compared_by_its_time_not_its_rate() -> None:
    results = {"steps of rows": Rounds({"1 rows": [10.0], "4 rows": [8.0], "8 rows": [10.0]})}
    assert goal_rows(results)[HEADING:] == [
        "| a step of 4 rows over 1 | <= 1.05 | 1.25 | 1.25 - 1.25 | not met |",
        "| a step of 8 rows over 1 | <= 1.15 | 1 | 1 - 1 | met |",
    ]


def test_the_page_has_a_row_for_every_goal() -> None:
    page = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    for goal in (*GOALS, *FORCED_GOALS):
        sign = ">=" if goal.at_least else "<="
        assert f"| {goal.what} | {sign} {goal.bound:g}" in page


def test_a_kernel_is_held_against_the_lower_limit_within_each_round() -> None:
    rates = {"llama-bolts": [4.0, 9.0], "read roofline": [5.0, 10.0], "peak": [8.0, 100.0]}
    lines = [
        {"label": "w2", "rows": 1, "rates": rates},
        {"label": "w2", "rows": 8, "rates": rates | {"peak": [float("nan"), float("nan")]}},
        {"label": "attention", "rows": 1, "rates": rates | {"peak": [4.0, 9.0]}},
    ]
    assert share_rows(lines) == [
        "| | 1 rows | 8 rows |",
        "|---|---|---|",
        "| w2 | 0.85 | 0.85 |",
        "| attention | 1.00 |  |",
    ]


def record_of(*arguments: str) -> dict[str, Any]:
    """Runs a benchmark for one round; returns the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--pairs", "1"],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(record, dict)
    return record


@pytest.mark.slow
def test_every_measure_of_ours_runs_on_a_tiny_model(tmp_path: Path) -> None:
    results = record_of(
        "tests.bench.bench_model", "--shape", "tiny", "--engines", OURS, "--repeats", "0",
        "--prompts", "22", "--positions", "600", "--directory", str(tmp_path),
    )["results"]  # fmt: skip
    assert set(results["decode"]["rates"]) == {OURS, "roofline"}
    expected = {"decode", "prefill 22", "steps of rows", "attention at 600", "tiny model"}
    assert expected < set(results)


@pytest.mark.slow
def test_every_kernel_runs_on_a_tiny_model() -> None:
    lines = record_of(
        "tests.bench.bench_kernels", "--shapes", "tiny", "--rows", "1", "7", "--positions", "600"
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
