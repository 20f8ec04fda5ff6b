"""A smoke run of every fuzz target, and every finding again."""

from pathlib import Path

import pytest

from tests.fuzz.bounds import run_bounded, time_limit
from tests.fuzz.findings import FINDINGS
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, Target, prepare, run, seeds

INPUTS = 200
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@every_target
def test_valid_inputs_are_read(target: Target, tmp_path: Path) -> None:
    prepare(target, tmp_path)
    assert all(run(target, data, tmp_path) for data in seeds(target, tmp_path))


@every_target
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_changed_inputs_are_read_or_refused_in_one_line(target: Target, tmp_path: Path) -> None:
    prepare(target, tmp_path)
    mutator = Mutator(target.name, seeds(target, tmp_path), seed=1)
    for _ in range(INPUTS):
        run_bounded(target, mutator.next(), tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [(name, data) for name, found in FINDINGS.items() for data in found.values()],
    ids=[f"{name}: {what}" for name, found in FINDINGS.items() for what in found],
)
def test_what_was_found_is_refused(name: str, data: bytes, tmp_path: Path) -> None:
    prepare(TARGETS[name], tmp_path)
    assert not run_bounded(TARGETS[name], data, tmp_path)


def test_the_same_seed_makes_the_same_inputs() -> None:
    first, again, other = (Mutator("data.pkl", [b"seed", b"words"], seed) for seed in (1, 1, 2))
    made = [[mutator.next() for _ in range(50)] for mutator in (first, again, other)]
    assert made[0] == made[1] != made[2]


def faulty(data: bytes, path: Path) -> None:
    if data == b"loop":
        while True:
            pass
    if data == b"text":
        raise ValueError("a\nb")
    raise KeyError(data)


@pytest.mark.parametrize(
    ("data", "error"), [(b"", KeyError), (b"text", AssertionError), (b"loop", TimeoutError)]
)
def test_a_fault_a_text_of_two_lines_and_a_loop_are_noticed(
    data: bytes, error: type[Exception], tmp_path: Path
) -> None:
    target = Target("x", faulty, ValueError, lambda _: [], on_disk=False)
    with pytest.raises(error), time_limit(0.2):
        run(target, data, tmp_path)
