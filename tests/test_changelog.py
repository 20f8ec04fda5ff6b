"""The changelog has the form of Keep a Changelog; its newest release is the version."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from src import __version__

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
MOST_LETTERS = 118
# First words that are not verbs in the imperative, such as "Added", "Adds" or "Adding".
NO_VERB = re.compile(
    r"\w+(?<!Embe)(?<!Fee)(?<!Spee)ed|\w+(?<!Br)ing|\w+[^s]s|"
    r"The|An?|It|If|In|On|Of|With|All|One|Each|No"
)
RELEASE = re.compile(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)")


def versions(text: str) -> dict[str, list[str]]:
    """Return the lines of each version, by its heading."""
    heads = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {head.split("\n")[0]: head.split("\n")[1:] for head in heads}


def faults(text: str) -> list[str]:
    """Return the lines of a changelog that are no heading and no entry of the form."""
    wrong = []
    first, *others = versions(text)
    if first != "[Unreleased]":
        wrong.append(first)
    releases = [RELEASE.fullmatch(heading) for heading in others]
    wrong += [heading for heading in others if RELEASE.fullmatch(heading) is None]
    numbers = [tuple(map(int, match.groups()[:3])) for match in releases if match]
    dates = [match.group(4) for match in releases if match]
    for newer, older in pairwise(numbers):
        if newer <= older:
            wrong.append(f"{newer} above {older}")
    if dates != sorted(dates, reverse=True):
        wrong.append(" above ".join(dates))
    for lines in versions(text).values():
        sections = [line[4:] for line in lines if line.startswith("### ")]
        if sections != [each for each in SECTIONS if each in sections]:
            wrong.append(", ".join(sections))
        for line in lines:
            if not line or line.startswith(("### ", "#### ")):
                continue
            entry = re.fullmatch(r"- ([A-Z][a-z]+)[ ,].*\.", line)
            is_imperative = entry is not None and NO_VERB.fullmatch(entry[1]) is None
            if not is_imperative or len(line) > MOST_LETTERS:
                wrong.append(line)
    return wrong


def test_the_changelog_has_short_entries_in_the_imperative_and_the_newest_version_first():
    assert faults(TEXT) == []


def test_the_newest_release_is_the_version_of_the_package():
    assert list(versions(TEXT))[1].startswith(f"[{__version__}] - ")


GOOD = """## [Unreleased]

## [0.2.0] - 2026-01-02

### Added

- Add one.

## [0.1.0] - 2026-01-01
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("## [Unreleased]\n", ""),
        ("[0.2.0]", "[0.0.9]"),
        ("2026-01-02", "2025-01-02"),
        ("- 2026-01-02", ""),
        ("### Added", "### New"),
        ("- Add one.", "- `one` adds one."),
        ("- Add one.", "- One is added."),
        ("- Add one.", "- Adds one."),
        ("- Add one.", "- Added one."),
        ("- Add one.", "- Add one"),
        ("- Add one.", "- Add one,\n  and two."),
        ("- Add one.", f"- Add {'one ' * 30}."),
    ],
)
def test_each_other_form_is_found(right, wrong):
    assert faults(GOOD) == []
    assert GOOD.count(right) == 1
    assert faults(GOOD.replace(right, wrong)) != []
