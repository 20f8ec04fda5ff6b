"""The command that keeps pages, diagrams and plots current."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="the docs extra is not installed")

from tools.update_docs import current_pictures, main

STALE = """[`bundled_model`](runs.py#L1)

<!-- generated: log 13 -->
old
<!-- end -->

```python
print(6 * 7)
```

```text
43
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(STALE)
    (tmp_path / "runs.py").write_text("\ndef bundled_model():\n    pass\n")
    return path


def test_the_committed_diagrams_and_plots_are_current_and_there_are_no_others():
    pictures = current_pictures()
    for path, text in pictures.items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path}: python -m tools.update_docs"
        )
        ElementTree.fromstring(text)
    folders = {path.parent for path in pictures}
    assert {path for folder in folders for path in folder.iterdir()} == set(pictures)


def test_a_page_becomes_current_and_stays_so(page, capsys):
    assert main(["--check", str(page)]) == 1
    assert page.read_text() == STALE
    assert capsys.readouterr().out == "page.md: not current\n"
    assert main([str(page)]) == 0
    text = page.read_text()
    assert "[`bundled_model`](runs.py#L2)" in text
    assert "softmax" in text
    assert "```text\n42\n```" in text
    assert main(["--check", str(page)]) == 0


def test_a_page_that_breaks_a_convention_is_named_and_left(page, capsys):
    broken = STALE.replace("```text\n43\n```\n", "")
    page.write_text(broken)
    assert main([str(page)]) == 1
    assert "example: expected a ```text block after it" in capsys.readouterr().err
    assert page.read_text() == broken
