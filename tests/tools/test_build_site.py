"""The site that is built of the pages, to be read without a network."""

from pathlib import Path

import pytest

pytest.importorskip("markdown_it", reason="the docs extra is not installed")
pytest.importorskip("pygments", reason="the docs extra is not installed")

from tools.build_site import main
from tools.pages import ROOT, documents, headings
from tools.site_check import broken_links
from tools.site_code import code_page, folder_entries
from tools.site_markdown import to_html

PAGE = """# A `title` here

<!-- generated: log 1 -->
See [code](a.py#L3) and ![p](p.svg).

| a | b |
|---|---|
| 1 | `x` |

```python
x = 1 < 2
```

```text
<!-- end -->
```
"""


def test_a_page_becomes_html_with_anchors_tables_and_coloured_code() -> None:
    html = to_html(PAGE, lambda link: f"moved/{link}")
    assert '<h1 id="a-title-here">A <code>title</code> here</h1>' in html
    assert '<a href="moved/a.py#L3">code</a>' in html
    assert '<img src="moved/p.svg" alt="p" />' in html
    assert "<td><code>x</code></td>" in html
    assert '<code class="language-python">' in html
    assert "&lt;" in html
    assert "generated" not in html
    assert "&lt;!-- end --&gt;" in html  # what a block shows stays


def test_a_line_of_code_has_an_anchor() -> None:
    file = ROOT / "src" / "main.py"
    html = code_page(file)
    count = len(file.read_text(encoding="utf-8").splitlines())
    assert 'id="L-1"' in html
    assert f'id="L-{count}"' in html
    assert f'id="L-{count + 1}"' not in html


def test_folders_show_sources_and_neither_caches_nor_built_files() -> None:
    names = [path.name for path in folder_entries(ROOT / "src" / "ml")]
    assert {"ops", "tensor.py"} <= set(names)
    assert not [name for name in names if "cache__" in name or name.endswith(".so")]


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ('<a href="other.html#there">', None),
        ('<a href="https://example.org/">', None),
        ('<a href="none.html">', "index.html: none.html leads to no file"),
        ('<a href="other.html#gone">', "index.html: other.html#gone leads to no place in it"),
        ('<img src="none.svg">', "index.html: none.svg leads to no file"),
        (
            '<script src="https://example.org/x.js"></script>',
            "index.html: https://example.org/x.js is loaded from the network",
        ),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, link: str, fault: str | None) -> None:
    (tmp_path / "index.html").write_text(link)
    (tmp_path / "other.html").write_text('<p id="there">')
    assert broken_links(tmp_path) == ([] if fault is None else [fault])


@pytest.mark.slow
def test_the_site_has_every_page_and_every_link_of_it_leads_somewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    assert main([str(site)]) == 0, capsys.readouterr().err
    assert broken_links(site) == []
    for page in documents():
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        built = site / page.parent.relative_to(ROOT) / name
        title = headings(page.read_text(encoding="utf-8"))[0][1]
        assert title.replace("`", "") in built.read_text(encoding="utf-8")
    assert (site / "diagrams" / "stage-13.svg").is_file()
    assert 'id="L-100"' in (site / "src" / "model" / "llama.py.html").read_text(encoding="utf-8")


def test_a_directory_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "expected a new or an empty directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
