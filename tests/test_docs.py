"""What README and docs say is true where a run can check it."""

import ast
import itertools
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from src import ml, trace
from src.cli.arguments import parse_arguments
from src.model import load_model
from tools.examples import examples, run_examples
from tools.pages import ROOT, anchor, blocks, documents, headings, links, name_of
from tools.producers import current_text

PAGES = documents()
every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@cache
def needs_of(page: Path) -> frozenset[str]:
    found = examples(page.read_text(encoding="utf-8"), name_of(page))
    return frozenset().union(*(example.code.needs for example in found))


@cache
def anchors_of(file: Path) -> frozenset[str]:
    return frozenset(anchor(text) for _, text, _ in headings(file.read_text(encoding="utf-8")))


@every_page
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link.target):
            continue
        path, _, place = link.target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)}:{link.line}: {link.target}"
        if place and file.suffix == ".md":
            assert place in anchors_of(file), f"{name_of(page)}:{link.line}: {link.target}"


# A chat in a terminal takes seconds.
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.name == "A-CHAT.md" else ()) for p in PAGES],
    ids=name_of,
)
def test_links_to_code_and_generated_blocks_are_current(page):
    assert current_text(page) == page.read_text(encoding="utf-8"), "python -m tools.update_docs"


def with_needs(page: Path) -> Iterator[Any]:
    """Yields a page with what its examples may need: nothing, and all that some of them do."""
    yield pytest.param(page, frozenset(), id=name_of(page))
    if needs := needs_of(page):
        allowed = sorted(needs | {"slow"})
        marks = [getattr(pytest.mark, need) for need in allowed]
        yield pytest.param(page, frozenset(allowed), marks=marks, id=f"{name_of(page)} {allowed}")


@pytest.mark.parametrize(("page", "allowed"), [one for page in PAGES for one in with_needs(page)])
def test_the_examples_run_and_print_what_is_shown(page, allowed, tmp_path, monkeypatch):
    for package in ("torch", "transformers", "tiktoken") if "oracle" in allowed else ():
        pytest.importorskip(package, reason="the oracle extra is not installed")
    monkeypatch.chdir(tmp_path)
    threads = ml.get_num_threads()
    try:
        for outcome in run_examples(page.read_text(encoding="utf-8"), name_of(page), allowed):
            place = f"{name_of(page)}:{outcome.code.line}"
            shown = f"{place}: shown {outcome.output!r}, printed {outcome.printed!r}"
            assert outcome.is_as_shown, shown
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a whole run leaves it
        trace.stop()
        ml.set_num_threads(threads)


@every_page
def test_fragments_of_python_are_valid_and_command_lines_are_taken_by_the_parser(page):
    calls: list[list[str]] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "py":
            ast.parse(block.text)
        elif block.language in ("sh", "bash"):
            lines = block.text.replace("\\\n", " ").splitlines()
            calls += itertools.chain.from_iterable(map(program_calls, lines))
    for arguments in calls:
        try:
            parse_arguments(arguments)
        except SystemExit as end:
            if end.code:
                pytest.fail(f"not taken: {arguments}")


def program_calls(line: str) -> list[list[str]]:
    """Returns the arguments of each call of the program in a line of a shell."""
    parser = shlex.shlex(line, posix=True, punctuation_chars=True)
    parser.whitespace_split = True
    words: list[str] = []
    calls = []
    for word in [*parser, ";"]:
        if re.fullmatch(r"[|&;<>()]+|\d?>.*", word):
            if words[:3] == ["python", "-m", "src.main"] or words[:1] == ["llama-bolts"]:
                calls.append(words[3 if words[0] == "python" else 1 :])
            words = []
        else:
            words.append(word)
    return calls


def test_the_calls_in_a_line_of_a_shell_are_found():
    assert program_calls('echo "a | b" | python -m src.main -p "x y" > out && llama-bolts -q') == [
        ["-p", "x y"], ["-q"],
    ]  # fmt: skip
    assert program_calls("python -m pytest  # python -m src.main -x") == []


@every_page
def test_paths_in_code_spans_exist(page):
    folders = r"(?:src|csrc|tests|docs|diagrams|tools|\.ci)"
    spans = re.findall(rf"`({folders}/[\w./-]*)`", page.read_text("utf-8"))
    ours = [span for span in spans if not span.endswith(".go")]  # those of the Go engine
    assert [span for span in ours if not (ROOT / span).exists()] == []


def test_the_map_in_the_readme_has_every_room():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    mapped = set(re.findall(r"^\| \[`([\w/]+)`\]", text, flags=re.MULTILINE))
    rooms = {f"src/{init.parent.name}" for init in (ROOT / "src").glob("*/__init__.py")}
    assert rooms | {"csrc", "diagrams", "docs", "tests", "tools"} == mapped


def test_the_legend_gives_the_sizes_of_the_bundled_model():
    text = (ROOT / "docs" / "LEGEND.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w)` \|[^|]+\|[^|]+\| ([^|]+?) \|", text, flags=re.MULTILINE)
    args = load_model().args
    expected = {
        "T": "1 when decoding", "S": f"up to {args.max_context_length}", "D": args.dim,
        "H": args.n_heads, "K": args.n_kv_heads, "G": args.n_heads // args.n_kv_heads,
        "h": args.head_dim, "F": args.ffn_dim, "V": args.vocab_size, "L": args.n_layers,
    }  # fmt: skip
    assert dict(rows) == {letter: str(size) for letter, size in expected.items()}


@pytest.mark.parametrize(
    ("name", "part"), [("chat", "python -m src.main"), ("test", "python -m pytest")]
)
def test_the_readme_names_the_commands_that_ci_runs(name, part):
    command = ["python3", str(ROOT / ".ci" / "readme_command.py"), name]
    assert part in subprocess.check_output(command, text=True)
