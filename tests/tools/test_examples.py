import pytest

from tools.examples import run_examples
from tools.pages import PageError

PAGE = """
```python
x = 2
```

```python
print(x + 1)
print("took 0.3 s  ")
print("one\\ntwo")
```

```text
3
took ... s
...
```

<!-- run: slow -->
```python
print("slow")
```

```py
this = is only shown
```
"""


def test_examples_run_in_one_namespace_and_are_compared_and_slow_ones_where_that_is_allowed():
    first, second = run_examples(PAGE, "page")
    assert (first.printed, first.is_as_shown) == ("", True)
    assert (second.printed, second.is_as_shown) == ("3\ntook 0.3 s  \none\ntwo\n", True)
    *_, slow = run_examples(PAGE, "page", frozenset({"slow"}))
    assert (slow.printed, slow.output) == ("slow\n", None)
    assert not slow.is_as_shown  # it prints, and the page does not show it


def test_text_after_an_example_and_a_paragraph_is_not_its_output():
    (example,) = run_examples(
        "```python\nprint(1)\n```\nso:\n\n```text\n2\n```\n", "page"
    )
    assert example.output is None


def test_an_unknown_need_is_refused_with_its_line():
    with pytest.raises(
        PageError, match="page:1: run: expected slow or oracle or real, got never"
    ):
        run_examples("<!-- run: never -->\n```python\n```\n", "page")


def test_a_traceback_has_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as error:
        run_examples("a\n\n```python\nx = 1\n1 / 0\n```\n", "page.md")
    place = error.traceback[-1]
    assert (str(place.path).rsplit("/")[-1], place.lineno + 1) == ("page.md", 5)
