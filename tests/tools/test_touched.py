"""The files that additions touch are those of the lists."""

from dataclasses import replace

import pytest

from tools.pages import PageError
from tools.touched import CHANGES, checked_places

MOST_FILES = 3  # of `src` and `csrc`


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.kind)
def test_an_addition_touches_few_files_which_contain_their_places(change):
    assert checked_places(change) == [*change.places]
    assert 1 <= len(change.code) <= MOST_FILES
    assert any(name.startswith("tests/") for name in change.others)


def test_a_place_that_is_not_there_is_found():
    change = CHANGES[0]
    first = change.code[0]
    for places in ({first: "no such text"}, {f"{first}x": "FAMILY"}):
        with pytest.raises(PageError, match="expected the text"):
            checked_places(replace(change, places={**change.places, **places}))


def test_a_file_of_code_that_the_list_leaves_out_is_found():
    change = CHANGES[-1]
    places = {name: text for name, text in change.places.items() if "steps" not in name}
    with pytest.raises(PageError, match="expected the files"):
        checked_places(replace(change, places=places))
