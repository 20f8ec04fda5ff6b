"""What README and docs say is true where a run can check it."""

import ast
import itertools
import math
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from src import ml, trace
from src.catalog import CatalogError, find_model
from src.chat_formats import CHAT_FORMATS
from src.cli.application import NUMERIC
from src.cli.arguments import parse_arguments
from src.cli.bench import operations
from src.inference import Message, encode_chat
from src.inference.messages import ROLES
from src.ml.kernels import _ISAS as INSTRUCTION_SETS
from src.model import InferenceContext, load_model
from src.model.forecast import PREFILL_CHUNK
from tools.examples import examples, run_examples
from tools.pages import ROOT, Block, anchor, blocks, documents, headings, links, name_of
from tools.producers import current_text
from tools.runs import LLAMA_3_1_8B

PAGES = documents()
every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@cache
def needs_of(page: Path) -> frozenset[str]:
    found = examples(page.read_text(encoding="utf-8"), name_of(page))
    return frozenset().union(*(example.code.needs for example in found))


@cache
def anchors_of(file: Path) -> frozenset[str]:
    return frozenset(
        anchor(text) for _, text, _ in headings(file.read_text(encoding="utf-8"))
    )


@every_page
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link.target):
            continue
        path, _, place = link.target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)}:{link.line}: {link.target}"
        if place and file.suffix == ".md":
            assert place in anchors_of(file), (
                f"{name_of(page)}:{link.line}: {link.target}"
            )


@every_page
def test_every_link_is_on_one_line_where_the_tools_find_it(page):
    text = page.read_text(encoding="utf-8")
    found = {link.target for link in links(text)}
    missed = [target for target in link_targets(text) if target not in found]
    assert missed == [], name_of(page)


def link_targets(text: str) -> list[str]:
    """Return the targets of the links of a page, as a parser of Markdown finds them."""
    inline = [token for token in MarkdownIt().parse(text) if token.children]
    children = itertools.chain.from_iterable(token.children for token in inline)
    return [
        str(child.attrs["href"])
        for child in children
        if child.type == "link_open" and child.info != "auto"
    ]


def test_a_link_over_two_lines_is_missed_by_the_tools():
    text = "[a](b.md) and [c\nd](e.md)"
    assert (link_targets(text), [link.target for link in links(text)]) == (
        ["b.md", "e.md"], ["b.md"],
    )  # fmt: skip


# The block of one page comes from a chat in a terminal, which takes seconds, and a block of
# the other page from a request to the server, which needs the serve extra.
SLOW_PAGES = ("A-CHAT.md", "DEVELOPING.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in SLOW_PAGES else ())
        for page in PAGES
    ],
    ids=name_of,
)
def test_links_to_code_and_generated_blocks_are_current(page):
    if page.name == "DEVELOPING.md":
        pytest.importorskip("uvicorn", reason="the serve extra is not installed")
    assert current_text(page) == page.read_text(encoding="utf-8"), (
        "python -m tools.update_docs"
    )


def skip_without_smollm2() -> None:
    try:
        find_model("smollm2")
    except CatalogError as error:
        pytest.skip(str(error))


def with_needs(page: Path) -> Iterator[Any]:
    """Yields a page with what its examples may need: nothing, and all that some of them
    do.
    """
    yield pytest.param(page, frozenset(), id=name_of(page))
    if "real" in needs_of(page):
        yield pytest.param(
            page, frozenset({"real"}), marks=pytest.mark.real, id=f"{name_of(page)} real"
        )
    if needs := needs_of(page) - {"real"}:
        allowed = sorted(needs | {"slow"})
        marks = [getattr(pytest.mark, need) for need in allowed]
        yield pytest.param(
            page, frozenset(allowed), marks=marks, id=f"{name_of(page)} {allowed}"
        )


@pytest.mark.parametrize(
    ("page", "allowed"), [one for page in PAGES for one in with_needs(page)]
)
def test_the_examples_run_and_print_what_is_shown(page, allowed, tmp_path, monkeypatch):
    for package in ("torch", "transformers", "tiktoken") if "oracle" in allowed else ():
        pytest.importorskip(package, reason="the oracle extra is not installed")
    if "real" in allowed:
        skip_without_smollm2()
    monkeypatch.chdir(tmp_path)
    threads = ml.get_num_threads()
    try:
        for outcome in run_examples(
            page.read_text(encoding="utf-8"), name_of(page), allowed
        ):
            place = f"{name_of(page)}:{outcome.code.line}"
            shown = f"{place}: shown {outcome.output!r}, printed {outcome.printed!r}"
            assert outcome.is_as_shown, shown
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a whole run leaves it
        trace.stop()
        ml.set_num_threads(threads)


CONTINUES = "The examples of this page continue each other"


@pytest.mark.slow
@every_page
def test_each_example_runs_on_its_own_or_the_page_says_that_it_continues(
    page, tmp_path, monkeypatch
):
    text = page.read_text(encoding="utf-8")
    if CONTINUES in " ".join(text.split()):
        pytest.skip("the page says that its examples continue each other")
    monkeypatch.chdir(tmp_path)
    threads = ml.get_num_threads()
    try:
        for example in examples(text, name_of(page)):
            if not example.code.needs & {"oracle", "real"}:
                exec(
                    compile(example.code.text, name_of(page), "exec"),
                    {"__name__": "__main__"},
                )
                assert [*tmp_path.iterdir()] == [], f"{name_of(page)}:{example.code.line}"
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


@every_page
def test_a_fragment_that_quotes_the_source_is_a_generated_block(page):
    text = without_generated(page.read_text(encoding="utf-8"))
    quoted = [block.text for block in blocks(text) if quotes_the_source(block)]
    assert quoted == [], "docs/DEVELOPING.md: generated blocks: excerpt, code"


def without_generated(text: str) -> str:
    """Return a page with its generated blocks taken out."""
    generated = r"^<!-- generated: .*?^<!-- end -->$"
    return re.sub(generated, "", text, flags=re.DOTALL | re.MULTILINE)


def quotes_the_source(block: Block) -> bool:
    """Return whether a fragment to read is code of this project."""
    return (
        block.language == "py" and re.search(r"\b(?:self|ml)\.", block.text) is not None
    )


def test_a_quotation_is_found_outside_of_generated_blocks():
    quotation = "```py\nx = ml.add(x, self.bias)\n```\n"
    generated = f"<!-- generated: excerpt a b c -->\n{quotation}<!-- end -->\n"
    other = "```py\nx = torch.add(x, bias)\n```\n"
    assert [*map(quotes_the_source, blocks(without_generated(generated + other)))] == [
        False
    ]
    assert [
        *map(quotes_the_source, blocks(without_generated(generated + quotation)))
    ] == [True]


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
    assert program_calls(
        'echo "a | b" | python -m src.main -p "x y" > out && llama-bolts -q'
    ) == [
        ["-p", "x y"],
        ["-q"],
    ]
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
    rows = re.findall(
        r"^\| `(\w)` \|[^|]+\|[^|]+\| ([^|]+?) \|", text, flags=re.MULTILINE
    )
    args = load_model().args
    expected = {
        "T": "1 when decoding", "S": f"up to {args.max_context_length}",
        "C": f"up to {args.max_context_length}", "D": args.dim,
        "H": args.n_heads, "K": args.n_kv_heads, "G": args.n_heads // args.n_kv_heads,
        "h": args.head_dim, "F": args.ffn_dim, "V": args.vocab_size, "L": args.n_layers,
        "E": "none", "A": "none",
    }  # fmt: skip
    assert dict(rows) == {letter: str(size) for letter, size in expected.items()}


# ---- statements of single pages --------------------------------------------------------


def words_of(page: str) -> str:
    """Return the text of a page with single blanks."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def table_below(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table after a heading row."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    lines = itertools.takewhile(lambda line: line.startswith("|"), text.split("\n")[1:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_first_run_explains_the_numbers_that_it_prints():
    text = words_of("docs/02-first-run.md")
    ((prompt, new, used, size),) = re.findall(
        r"(\d+) prompt \S+, (\d+) new \S+, (\d+)/(\d+)", text
    )
    assert int(prompt) + int(new) == int(used)
    assert f"The prompt had {prompt} tokens" in text
    assert f"The model generated {new} tokens" in text
    assert f"these are {used} tokens of at most {size}" in text


def test_the_exit_codes_of_the_pages_are_those_of_the_program():
    codes = [str(code) for code in (*range(NUMERIC + 1), 128 + signal.SIGINT)]
    for page in ("docs/02-first-run.md", "docs/COMMAND-LINE.md"):
        assert [row[0] for row in table_below(page, "| code | meaning |")] == codes, page


@pytest.mark.parametrize(
    ("page", "before"),
    [
        ("README.md", "for the instruction sets "),
        ("docs/20-extending.md", "compiled once for each instruction set: "),
    ],
)
def test_the_pages_list_all_instruction_sets(page, before):
    listed = (
        words_of(page)
        .partition(before)[2]
        .partition("(plain" if page == "README.md" else "which")[0]
    )
    assert tuple(re.findall(r"`(\w+)`", listed)) == INSTRUCTION_SETS


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/08-kernels.md", "| path | vectors | bfloat16 products |"),
        ("docs/DEVELOPING.md", "| path | needs | bfloat16 products |"),
    ],
)
def test_the_tables_of_instruction_sets_have_all(page, heading):
    names = tuple(row[0].strip("`") for row in table_below(page, heading))
    assert names == INSTRUCTION_SETS


def test_the_legend_has_the_length_of_a_chunk_of_a_prompt():
    text = words_of("docs/LEGEND.md")
    assert f"the whole prompt if it has at most {PREFILL_CHUNK} tokens" in text


def test_the_table_of_roles_has_all():
    names = [
        row[0].strip("`") for row in table_below("docs/12-asking.md", "| role | says |")
    ]
    assert sorted(names) == sorted(ROLES)


def test_no_page_counts_the_chat_formats_wrongly():
    numbers = {12: "twelve", 18: "eighteen", 19: "nineteen", 20: "twenty"}
    for page in PAGES:
        text = " ".join(page.read_text(encoding="utf-8").split())
        counts = re.findall(r"\b(\w+) (?:chat )?formats\b", text)
        assert not {*counts} & {*numbers.values()} - {numbers.get(len(CHAT_FORMATS))}, (
            name_of(page)
        )


def test_the_time_that_the_network_adds_follows_from_the_table_of_its_parts():
    page = "docs/PAST-ONE-MACHINE.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    (heading,) = re.findall(r"^\| \| gathered for a token .*$", text, re.MULTILINE)
    shares = table_below(page, "| | 2 ranks | 4 ranks | 8 ranks | 16 ranks |")
    parts = table_below(page, heading)
    assert (
        [row[0] for row in shares] == [row[0] for row in parts] == ["8B", "70B", "405B"]
    )
    for (name, *stated), (_, nbytes, gathers, _wire, latency, reading) in zip(
        shares, parts, strict=True
    ):
        megabytes = float(nbytes.removesuffix(" MB"))
        message = float(latency.removesuffix(" ms")) / 1e3
        assert message == pytest.approx(int(gathers) * 30e-6, rel=0.02)
        read = float(reading.removesuffix(" s / ranks"))
        for ranks, share in zip((2, 4, 8, 16), stated, strict=True):
            wire = (ranks - 1) / ranks * megabytes * 8e6 / 10e9
            added = wire + message * math.ceil(math.log2(ranks))
            expected = 100 * added / (read / ranks)
            assert float(share.removesuffix(" %")) == pytest.approx(
                expected, abs=0.6, rel=0.02
            ), name


def test_the_limit_of_a_prompt_in_chapter_8_is_the_work_that_the_program_counts():
    text = (ROOT / "docs" / "08-kernels.md").read_text(encoding="utf-8")
    assert r"{2 P' + \frac{2 V D}{T} + 4 \cdot \frac{T}{2} \cdot L H h}" in text
    for args in (load_model().args, LLAMA_3_1_8B):
        T = 512
        D = args.dim
        h = args.head_dim
        layer = (
            2 * D * args.n_heads * h + 2 * D * args.n_kv_heads * h + 3 * D * args.ffn_dim
        )
        attention = 4 * T / 2 * args.n_layers * args.n_heads * h
        each = 2 * args.n_layers * layer + 2 * args.vocab_size * D / T + attention
        assert T * each == pytest.approx(operations(args, 0, T), rel=0.002)


def test_the_log_has_the_logits_of_chapter_1_to_the_last_bit():
    model = load_model()
    question = "What is the capital of Massachusetts? Answer in one word."
    ids = encode_chat(model.tokenizer, [Message("user", question)])
    fused, eager = (
        model.transformer.forward(
            InferenceContext(model.args, 64, attention), ids
        ).numpy()[0]
        for attention in ("fused", "eager")
    )
    np.testing.assert_array_equal(fused, eager)
    assert [model.tokenizer.decode([int(i)]) for i in eager.argsort()[::-1][:3]] == [
        "Boston", "Dhaka", "Topeka",
    ]  # fmt: skip
    assert "`debug.log` has the same logits, to the last bit" in words_of(
        "docs/01-journey.md"
    )


@pytest.mark.parametrize(
    ("name", "part"), [("chat", "python -m src.main"), ("test", "python -m pytest")]
)
def test_the_readme_names_the_commands_that_ci_runs(name, part):
    command = ["python3", str(ROOT / ".ci" / "readme_command.py"), name]
    assert part in subprocess.check_output(command, text=True)
