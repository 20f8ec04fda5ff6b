"""One small valid file per format, cut at any byte and with any bit flipped: right or
refused.
"""

import pytest

from tests.hardening.fuzz.bed import Bed
from tests.hardening.fuzz.targets import TARGETS

# Text is no file: whatever is left of it after a cut is text too.
FORMATS = {
    name: target
    for name, target in TARGETS.items()
    if name not in ("escape", "chat_template.jinja")
}
# What is left of a list of tokens may be a shorter list, which no file says the length
# of.
LISTS = ("tokenizer.ranks", "tokenizer.model")
# What may be missing from the end: of a GGUF file without tensors the padding before
# them.
ENDS = {"vocabulary.gguf": b"\0"}

every_format = pytest.mark.parametrize(
    "bed", FORMATS.values(), ids=FORMATS, indirect=True
)
some_or_all = pytest.mark.parametrize(
    "most", [60, pytest.param(1 << 60, marks=pytest.mark.slow)], ids=["some", "all"]
)


@some_or_all
@every_format
def test_a_file_cut_at_any_byte_is_refused(bed: Bed, most: int) -> None:
    name = bed.target.name
    for content in bed.valid:
        for length in range(0, len(content), max(1, len(content) // most)):
            accepted = bed.read(content[:length])
            end = ENDS.get(name)
            whole = content[:length].rstrip(end) == content.rstrip(end)
            assert not accepted or whole or name in LISTS, f"cut at byte {length}"
        assert bed.read(content)  # the valid twin


@some_or_all
@every_format
def test_any_flipped_bit_is_refused_or_read(bed: Bed, most: int) -> None:
    for content in bed.valid:
        bits = len(content) * 8
        for position in range(0, bits, max(1, bits // (most + 1))):
            flipped = bytearray(content)
            flipped[position // 8] ^= 1 << position % 8
            bed.read(bytes(flipped))
