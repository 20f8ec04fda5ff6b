"""What README and docs say is true where a run can check it."""

import contextlib
import io
import re
import subprocess
from pathlib import Path

import pytest

from src.model import load_model

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """Returns the anchors that a code host makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page_id(page)}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page_id(page)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_in_code_spans_exist(page: Path) -> None:
    spans = re.findall(
        r"`((?:src|csrc|tests|docs|diagrams|\.ci)/[\w./-]*)`", page.read_text("utf-8")
    )
    ours = [span for span in spans if not span.endswith(".go")]  # those of the Go engine
    assert [span for span in ours if not (ROOT / span).exists()] == []


def test_the_map_in_the_readme_has_every_room() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    mapped = set(re.findall(r"^\| \[`([\w/]+)`\]", text, flags=re.MULTILINE))
    rooms = {f"src/{init.parent.name}" for init in (ROOT / "src").glob("*/__init__.py")}
    assert rooms | {"csrc", "tests", "docs"} == mapped


def test_the_legend_gives_the_sizes_of_the_bundled_model() -> None:
    text = (ROOT / "docs" / "LEGEND.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w)` \|[^|]+\|[^|]+\| ([^|]+?) \|", text, flags=re.MULTILINE)
    args = load_model().args
    expected = {
        "T": "1 when decoding",
        "S": f"up to {args.max_context_length}",
        "D": args.dim,
        "H": args.n_heads,
        "K": args.n_kv_heads,
        "G": args.n_heads // args.n_kv_heads,
        "h": args.head_dim,
        "F": args.ffn_dim,
        "V": args.vocab_size,
        "L": args.n_layers,
    }
    assert dict(rows) == {letter: str(size) for letter, size in expected.items()}


def test_the_library_example_in_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert "Ankara" in printed.getvalue()
    assert printed.getvalue().rstrip().endswith("[eot]")


def test_the_example_of_quantised_tensors_runs() -> None:
    text = (ROOT / "docs" / "ADDING-A-DTYPE.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "ADDING-A-DTYPE.md", "exec"), {})
    lines = printed.getvalue().splitlines()
    assert [line.split(", off")[0] for line in lines[:3]] == [
        "QuantizedTensor('w', [256, 1024], nf4): 0.5625 bytes per element",
        "QuantizedTensor('w', [256, 1024], nf4, double): 0.5198 bytes per element",
        "QuantizedTensor('w', [256, 1024], int8_block): 1.0625 bytes per element",
    ]
    assert lines[3].startswith("[softmax] dtype must be one of bfloat16, float16, float32")


def test_the_readme_names_the_commands_that_ci_runs() -> None:
    for name, part in (("chat", "python -m src.main"), ("test", "python -m pytest")):
        command = subprocess.run(
            ["python3", str(ROOT / ".ci" / "readme_command.py"), name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert part in command
