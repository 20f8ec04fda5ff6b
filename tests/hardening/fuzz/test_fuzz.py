"""A smoke run of every fuzz target, and every finding again."""

import json
from pathlib import Path

import pytest

from tests.hardening.fuzz.bed import Bed, Target, hangs_are_noticed
from tests.hardening.fuzz.inputs import INDEX, TOKENIZER_CONFIG
from tests.hardening.fuzz.mutation import Mutator
from tests.hardening.fuzz.targets import TARGETS

INPUTS = 200
# Inputs that once ended in an undeclared exception, by target.
FINDINGS: dict[str, dict[str, bytes]] = {
    "model.safetensors.index.json": {
        "a name that the system calls too long": json.dumps(
            INDEX | {"weight_map": {"a": "x" * 300 + ".safetensors"}}
        ).encode()
    },
    "tokenizer_config.json": {
        "an id of more digits than Python reads": json.dumps(
            TOKENIZER_CONFIG | {"added_tokens_decoder": {"9" * 5000: {"content": "<x>"}}}
        ).encode()
    },
}
every_target = pytest.mark.parametrize(
    "bed", TARGETS.values(), ids=TARGETS, indirect=True
)


@every_target
def test_valid_inputs_are_read_and_changed_ones_too_or_refused_in_one_line(
    bed: Bed,
) -> None:
    assert all(bed.read(data) for data in bed.valid)
    mutator = Mutator(bed.target.name, bed.starts, seed=1)
    for _ in range(INPUTS):
        bed.read(mutator.next())


@pytest.mark.parametrize(
    ("bed", "data"),
    [
        (TARGETS[name], data)
        for name, found in FINDINGS.items()
        for data in found.values()
    ],
    ids=[f"{name}: {what}" for name, found in FINDINGS.items() for what in found],
    indirect=["bed"],
)
def test_what_was_found_is_refused(bed: Bed, data: bytes) -> None:
    assert not bed.read(data)


def test_the_same_seed_makes_the_same_inputs() -> None:
    first, again, other = (
        Mutator("data.pkl", [b"seed", b"words"], seed) for seed in (1, 1, 2)
    )
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
    ("data", "error"),
    [(b"", KeyError), (b"text", AssertionError), (b"loop", TimeoutError)],
)
def test_a_fault_a_text_of_two_lines_and_a_loop_are_noticed(
    data: bytes, error: type[Exception], tmp_path: Path
) -> None:
    bed = Bed(
        Target("x", faulty, lambda _: [], refusals=ValueError, on_disk=False), tmp_path
    )
    with pytest.raises(error), hangs_are_noticed(bed, seconds=0.1):
        bed.read(data)
