"""The text of an answer: stop strings and thoughts."""

import random
from itertools import pairwise

import pytest

from src.inference import PromptError
from src.inference.answer import StopStrings
from src.inference.answer_forms import split_thoughts


def passed_on(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    filter_ = StopStrings(stops)
    return "".join(map(filter_.push, pieces)) + filter_.held, filter_.found


def test_the_beginning_of_a_stop_string_is_held_back_until_more_text_decides():
    filter_ = StopStrings(["\nUser:"])
    pieces = ("Hello\n", "Us", "ually", "\nUser", ": hi")
    assert [filter_.push(piece) for piece in pieces] == ["Hello", "", "\nUsually", "", ""]
    assert filter_.found
    assert filter_.push("more") == filter_.held == ""
    assert StopStrings(()).push("at once") == "at once"


def test_the_stop_string_that_begins_first_wins_and_cuts_its_piece():
    assert passed_on(["cd", "bcde", "x"], ["abcd"]) == ("ab", True)
    assert passed_on(["cd", "bcde"], ["ab", "cde"]) == ("a", True)
    assert passed_on(["aab"], ["a", "a", "a", "b", "c"]) == ("a", True)
    assert passed_on(["."], ["One. Two."]) == ("One", True)


@pytest.mark.parametrize("bad", [[""], ["a", ""], [5], [None]])
def test_a_stop_string_must_be_a_text_of_some_length(bad):
    with pytest.raises(PromptError, match="stop must contain texts"):
        StopStrings(bad)


def test_pieces_of_any_size_give_what_the_whole_text_gives():
    random_ = random.Random(5)
    for _ in range(2000):
        text = "".join(random_.choice("ab") for _ in range(random_.randint(0, 12)))
        stops = [
            "".join(random_.choices("ab", k=random_.randint(2, 4))) for _ in range(2)
        ]
        begins = [text.find(stop) for stop in stops if stop in text]
        expected = text[: min(begins)] if begins else text
        ends = [0, *sorted(random_.choices(range(len(text) + 1), k=5)), len(text)]
        pieces = [text[start:end] for start, end in pairwise(ends)]
        found, ended = passed_on(stops, pieces)
        assert ended == bool(begins), (text, stops, pieces)
        # Letter by letter, the stop string that is complete first is met first; it may
        # begin later than a longer one that needs more letters.
        assert text.startswith(found)
        assert len(found) >= len(expected)
        assert not any(stop in found for stop in stops)


@pytest.mark.parametrize(
    ("text", "opened", "parts"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, ("Hm.", "Yes.")),
        ("\n<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
        ("Hm.\n</think>\n\nYes.", True, ("Hm.", "Yes.")),
        ("<think>\nHm.\n\nSo <b", False, ("Hm.\n\nSo <b", "")),
        ("Yes. <think> is a mark", False, ("", "Yes. <think> is a mark")),
        ("<thin ice", False, ("", "<thin ice")),
        ("<think>a</think>b</think>c", False, ("a", "b</think>c")),
        ("", False, ("", "")),
    ],
)
def test_thoughts_are_told_apart_however_the_text_is_cut(text, opened, parts):
    assert split_thoughts(text, opened) == parts
    shown = ["", ""]
    for end in range(len(text) + 1):
        for n, part in enumerate(
            split_thoughts(text[:end], opened, is_over=end == len(text))
        ):
            assert part.startswith(shown[n])  # nothing that was shown is taken back
            shown[n] = part
    assert tuple(shown) == parts
