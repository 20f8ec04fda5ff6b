from tools.pages import ROOT, anchor, blocks, documents, headings, links

PAGE = """# Title

See [one](a.md#b "what"), ![picture](p.svg) and `[no link](x.md)`, ``[`neither`](y.md)``.

<!-- run: slow oracle -->
```python
# not a heading
[not a link](z.md)
```

````text
```
inner
```
````

## `code`: and [text](u.md), too
"""


def test_blocks_have_language_text_place_and_what_they_need():
    code, text = blocks(PAGE)
    assert (code.language, code.line, code.end) == ("python", 7, 9)
    assert code.text == "# not a heading\n[not a link](z.md)\n"
    assert code.needs == {"slow", "oracle"}
    assert (text.language, text.text, text.needs) == (
        "text",
        "```\ninner\n```\n",
        frozenset(),
    )


def test_links_are_found_outside_of_code():
    found = [(link.text, link.target, link.title, link.line) for link in links(PAGE)]
    assert found == [
        ("one", "a.md#b", "what", 3),
        ("picture", "p.svg", "", 3),
        ("text", "u.md", "", 17),
    ]


def test_headings_have_anchors_as_code_hosts_make_them():
    assert [(level, line) for level, _, line in headings(PAGE)] == [(1, 1), (2, 17)]
    assert anchor(headings(PAGE)[1][1]) == "code-and-text-too"


def test_the_menu_has_every_page():
    assert set((ROOT / "docs").glob("*.md")) <= set(documents())
