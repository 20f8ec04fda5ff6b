"""The committed page of the explorer is current, and says when it is not."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the docs extra is not installed")
from tools.runs import PAGE, current_page, is_same

DOCUMENT = re.compile(r'(id="document">)([^<]*)<')


@pytest.fixture(scope="module")
def committed() -> str:
    return PAGE.read_text("utf-8")


def changed(page: str, change: Callable[[dict[str, Any]], object]) -> str:
    """Returns a page whose document was changed."""
    found = DOCUMENT.search(page)
    document = json.loads(zlib.decompress(base64.b64decode(found[2])))
    change(document["runs"][0])
    data = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    return page.replace(found[2], data)


def test_the_committed_page_is_current_and_small(committed):
    assert current_page() == committed, "python -m tools.update_docs"
    assert len(committed) < 2_000_000
    pictures = [path for path in PAGE.parent.iterdir() if path.suffix != ".html"]
    assert sorted(path.suffix for path in pictures) == [".png"] * 4
    assert all(path.stat().st_size < 200_000 for path in pictures)


def test_what_depends_on_timing_does_not_make_a_page_stale(committed):
    def change(run: dict[str, Any]) -> None:
        run["machine"] |= {"threads": 64, "readRate": 1.0}
        run["passes"][0]["seconds"][4] = 1.0
        run["events"][3][6] = 1.0

    assert changed(committed, change) != committed
    assert is_same(committed, changed(committed, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["tokens"].append(1),
        lambda run: run["events"][3].__setitem__(9, "src/model/llama.py:1"),
        lambda run: run["passes"][0]["attribution"].update(sum=0.0),
        lambda run: run["passes"][0].update(logits=run["passes"][1]["logits"]),
    ],
)
def test_another_number_or_line_of_code_or_script_makes_a_page_stale(committed, change):
    assert not is_same(committed, changed(committed, change))
    assert not is_same(committed, committed.replace('"use strict";', '"use strict"; '))
    assert not is_same("", committed)


def test_code_and_chapter_may_differ_in_a_page_that_records_a_run(committed):
    def change(run: dict[str, Any]) -> None:
        run["events"][3][9] = "src/model/llama.py:1"

    moved = changed(committed, change)
    assert not is_same(committed, moved)
    assert is_same(committed, moved, with_code=False)
    other = changed(committed, lambda run: run["tokens"].append(1))
    assert not is_same(committed, other, with_code=False)
