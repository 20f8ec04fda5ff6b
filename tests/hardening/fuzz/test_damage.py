"""One small valid file per format, cut at any byte and with any bit flipped: right or refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hardening.fuzz.targets import TARGETS, Bed, Target, hangs_are_noticed

# Text is no file: whatever is left of it after a cut is text too.
FORMATS = {
    name: target
    for name, target in TARGETS.items()
    if name not in ("escape", "chat_template.jinja")
}
# What is left of a list of tokens may be a shorter list, which no file says the length of.
LISTS = ("tokenizer.ranks", "tokenizer.model")
# What may be missing from the end: of a GGUF file without tensors the padding before them.
ENDS = {"vocabulary.gguf": b"\0"}
SAMPLES = 60

every_format = pytest.mark.parametrize("target", FORMATS.values(), ids=FORMATS)


def cuts(content: bytes, most: int) -> Iterator[int]:
    """Give lengths below that of the content: all of them, or as many spread over it."""
    yield from range(0, len(content), max(1, len(content) // most))


def check_cuts(target: Target, folder: Path, most: int) -> None:
    bed = Bed(target, folder)
    with hangs_are_noticed(bed):
        for content in bed.valid:
            for length in cuts(content, most):
                accepted = bed.read(content[:length])
                end = ENDS.get(target.name)
                whole = content[:length].rstrip(end) == content.rstrip(end)
                assert not accepted or whole or target.name in LISTS, f"cut at byte {length}"
            assert bed.read(content)  # the valid twin
    bed.close()


def check_flips(target: Target, folder: Path, most: int) -> None:
    bed = Bed(target, folder)
    with hangs_are_noticed(bed):
        for content in bed.valid:
            bits = len(content) * 8
            for position in range(0, bits, max(1, bits // most)):
                flipped = bytearray(content)
                flipped[position // 8] ^= 1 << position % 8
                bed.read(bytes(flipped))
    bed.close()


@every_format
def test_a_file_cut_somewhere_is_refused(target: Target, tmp_path: Path) -> None:
    check_cuts(target, tmp_path, SAMPLES)


@every_format
def test_a_flipped_bit_is_refused_or_read(target: Target, tmp_path: Path) -> None:
    check_flips(target, tmp_path, SAMPLES + 1)


@pytest.mark.slow
@every_format
def test_a_file_cut_at_any_byte_is_refused(target: Target, tmp_path: Path) -> None:
    check_cuts(target, tmp_path, 1 << 60)


@pytest.mark.slow
@every_format
def test_any_flipped_bit_is_refused_or_read(target: Target, tmp_path: Path) -> None:
    check_flips(target, tmp_path, 1 << 60)
