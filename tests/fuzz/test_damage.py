"""One small valid file per format, cut at any byte and with any bit flipped: right or refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.bounds import run_bounded
from tests.fuzz.targets import TARGETS, Target, prepare, seeds

# Text is no file: whatever is left of it after a cut is text too.
FORMATS = {name: target for name, target in TARGETS.items() if name != "escape"}
# What is left of a list of tokens may be a shorter list, which no file says the length of.
LISTS = ("tokenizer.ranks", "tokenizer.model")
SAMPLES = 60

every_format = pytest.mark.parametrize("target", FORMATS.values(), ids=FORMATS)
ignore_overflow = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")


def cuts(content: bytes, most: int) -> Iterator[int]:
    """Give lengths below that of the content: all of them, or as many spread over it."""
    yield from range(0, len(content), max(1, len(content) // most))


def check_cuts(target: Target, folder: Path, most: int) -> None:
    prepare(target, folder)
    for content in seeds(target, folder):
        for length in cuts(content, most):
            accepted = run_bounded(target, content[:length], folder)
            whole = content[:length] == content.rstrip()
            assert not accepted or whole or target.name in LISTS, f"cut at byte {length}"
        assert run_bounded(target, content, folder)  # the valid twin


def check_flips(target: Target, folder: Path, most: int) -> None:
    prepare(target, folder)
    for content in seeds(target, folder):
        bits = len(content) * 8
        for position in range(0, bits, max(1, bits // most)):
            flipped = bytearray(content)
            flipped[position // 8] ^= 1 << position % 8
            run_bounded(target, bytes(flipped), folder)


@every_format
@ignore_overflow
def test_a_file_cut_somewhere_is_refused(target: Target, tmp_path: Path) -> None:
    check_cuts(target, tmp_path, SAMPLES)


@every_format
@ignore_overflow
def test_a_flipped_bit_is_refused_or_read(target: Target, tmp_path: Path) -> None:
    check_flips(target, tmp_path, SAMPLES + 1)


@pytest.mark.slow
@every_format
@ignore_overflow
def test_a_file_cut_at_any_byte_is_refused(target: Target, tmp_path: Path) -> None:
    check_cuts(target, tmp_path, 1 << 60)


@pytest.mark.slow
@every_format
@ignore_overflow
def test_any_flipped_bit_is_refused_or_read(target: Target, tmp_path: Path) -> None:
    check_flips(target, tmp_path, 1 << 60)
