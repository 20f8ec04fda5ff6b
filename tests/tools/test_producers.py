"""Generated blocks: what the pages show of them is compared with the pages
(tests/test_docs.py).
"""

import re
import shlex

import numpy as np
import pytest

from src.inference import Message, encode_chat
from src.main import main
from src.tokenizer import load_tokenizer
from src.trace.events import STAGES
from tests.support.shared_data import shared_data
from tools.pages import ROOT, PageError
from tools.producers import PRODUCERS
from tools.runs import LLAMA_3_IDS, PROMPT


def produced(name: str) -> str:
    kind, _, argument = name.partition(" ")
    return PRODUCERS[kind](ROOT / "docs" / "page.md", argument)


def test_the_numbers_of_a_token_are_those_before_and_after_a_stage():
    text = produced("stage 15")
    _, _, numbers = re.findall(r"```\w+\n(.*?)\n```", text, flags=re.DOTALL)
    rows = [line.split() for line in numbers.split("\n")]
    assert [row[:3] for row in rows] == [
        ["before", "x[26,", ":]"],
        ["before", "attention[26,", ":]"],
        ["add", "x[26,", ":]"],
    ]
    x, attention, total = (np.array(row[3:-1], float) for row in rows)
    np.testing.assert_allclose(x + attention, total, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ["log 22", "log 1 9b", "real no", "shapes 0",
    "code src/main.py no",
    "excerpt src/main.py no x", "excerpt src/model/llama.py LlamaAttention.forward",
    "excerpt src/model/llama.py LlamaAttention.forward 'no ='",
    "excerpt src/model/llama.py LlamaAttention.eager 'keys ='",
    "stage 13 only 'no ='", "stage 13 only 'scores ='", "stage 13 without 'no ='",
])  # fmt: skip
def test_an_argument_that_names_nothing_is_refused(name):
    with pytest.raises(PageError, match="generated: "):
        produced(name)


def without_time(line: str) -> str:
    """Return a line of a log without its time, and with single blanks."""
    return " ".join(re.sub(r"^( ?\d+ .*?\.py:\d+) +[\d.]+ ", r"\1 ", line).split())


def test_the_lines_of_the_log_are_those_of_the_command_of_chapter_14(tmp_path):
    chapter = (ROOT / "docs" / "14-forward-pass.md").read_text(encoding="utf-8")
    command, row = re.findall(
        r"^python -m src\.main (-p .*Massachusetts.*) --debug-log(.*)$",
        chapter,
        re.MULTILINE,
    )
    assert (command[0], command[1]) == (row[0], "")
    path = tmp_path / "debug.log"
    words = shlex.split(f"{row[0]} --debug-log {path}{row[1]} --quiet")
    assert main(words) == 0
    written = {
        without_time(line) for line in path.read_text(encoding="utf-8").splitlines()
    }
    for stage in STAGES:
        lines = produced(f"log {stage}").splitlines()[1:-1]
        # The rows of a stage, without the first column.
        blocks = re.findall(r"```text\n(.*?)\n```", produced(f"stage {stage}"), re.DOTALL)
        rows = [line.split(maxsplit=1)[1] for line in "\n".join(blocks[1:]).splitlines()]
        missing = [x for x in (*lines, *rows) if without_time(x) not in written]
        assert missing == [], stage


def test_readme_and_the_chapters_make_the_same_log():
    commands = set()
    for name in ("README.md", "docs/01-journey.md", "docs/14-forward-pass.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.findall(
            r"^python .*Massachusetts\?.* --debug-log$", text, re.MULTILINE
        )
        assert len(found) == 1, name
        commands |= set(found)
    assert len(commands) == 1


def test_an_excerpt_has_the_lines_of_the_source():
    arguments = "src/model/llama.py LlamaAttention.heads 'xq, xk, xv =' 'xq = xq.reshape'"
    first, *lines, last = produced(f"excerpt {arguments}").split("\n")
    assert (first, last) == ("```py", "```")
    source = (ROOT / "src" / "model" / "llama.py").read_text(encoding="utf-8").split("\n")
    assert len(lines) >= 2
    assert {line.strip() for line in lines} <= {line.strip() for line in source}
    assert [line for line in lines if not line.startswith((" ", "xq", ")"))] == []


def test_a_stage_ends_with_links_to_its_places_in_the_explorer():
    line = produced("stage 13").split("\n")[-1]
    place = "explorer/example.html#view={}&stage=13&layer=0&head=2&token=26"
    assert line == (
        f"In the explorer: [the stage]({place.format('map')}), "
        f"[its values]({place.format('values')}), "
        f"[the weights of the head]({place.format('attention')})."
    )
    assert "values&stage=9&layer=0" in produced("stage 9").split("\n")[-1]
    assert "layer" not in produced("stage 2").split("\n")[-1]


def test_the_ids_of_the_prompt_are_those_of_llama_3():
    tokenizer = load_tokenizer(shared_data("llama3/tokenizer.model").parent)
    assert tuple(encode_chat(tokenizer, [Message("user", PROMPT)])) == LLAMA_3_IDS


def test_the_exercises_of_a_chapter_have_folded_solutions():
    text = produced("exercises 10")
    numbers = re.findall(r"^### (\S+) ", text, flags=re.MULTILINE)
    assert numbers[:2] == ["10.1", "10.2"]
    folded = re.findall(r"<details>.*?</details>", text, flags=re.DOTALL)
    assert len(folded) == len(numbers)
    assert all("```python\n" in part for part in folded)
    assert "--exercise 10.2 answer_10_2.py" in text


def test_the_table_of_exercises_links_to_their_chapters():
    rows = produced("exercises").split("\n")[2:]
    assert len(rows) >= 40
    assert "| 10.2 | Rotate queries and keys | write it | 15 min | medium |" in "\n".join(
        rows
    )
    assert all(re.search(r"\]\([\w-]+\.md#exercises\) \|$", row) for row in rows)


def test_exercises_of_a_chapter_without_exercises_are_an_error():
    with pytest.raises(PageError, match="expected a chapter, got '99'"):
        produced("exercises 99")
