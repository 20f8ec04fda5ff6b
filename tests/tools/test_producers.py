"""The contents of generated blocks."""

import re

import numpy as np
import pytest

from src.inference import Message, encode_chat
from src.tokenizer import load_tokenizer
from src.trace.events import STAGES
from tests.support.shared_data import shared_data
from tools.pages import ROOT, PageError
from tools.producers import PRODUCERS
from tools.runs import LLAMA_3_IDS, PROMPT


def produced(name: str) -> str:
    kind, _, argument = name.partition(" ")
    return PRODUCERS[kind](ROOT / "docs" / "page.md", argument)


@pytest.mark.parametrize("model", ["", " 8b"])
def test_a_log_shows_the_lines_of_its_stages_without_times(model):
    fence, *lines, end = produced(f"log 8-9{model}").split("\n")
    assert (fence, end) == ("```text", "```")
    assert [line for line in lines if line.startswith("#")] == [
        "# 8 xq, xk, xv, layer 0", "# 9 reshape to heads, layer 0",
    ]  # fmt: skip
    assert all(line[40:49].isspace() for line in lines if line.startswith((" 8", " 9")))
    shape = "[22, 32, 128]" if model else "[27, 6, 32]"
    assert any(f"  xq [T, H, h] = {shape} bfloat16" in line for line in lines)


def test_a_stage_shows_its_code_its_log_and_the_numbers_of_a_token():
    text = produced("stage 15")
    code, log, numbers = re.findall(r"```\w+\n(.*?)\n```", text, flags=re.DOTALL)
    assert code.split("\n")[-1] == "x = ml.add(x, attention)"
    assert len(code.split("\n")) == 6
    assert log.startswith("# 15 attention residual, layer 0\n15 add ")
    rows = [line.split() for line in numbers.split("\n")]
    assert [row[:3] for row in rows] == [
        ["before", "x[26,", ":]"], ["before", "attention[26,", ":]"], ["after", "x[26,", ":]"],
    ]  # fmt: skip
    x, attention, total = (np.array(row[3:-1], float) for row in rows)
    np.testing.assert_allclose(x + attention, total, rtol=0.01, atol=0.01)
    assert '"LlamaTransformerBlock.forward: mark(15)"' in text


def test_shapes_have_letters_and_the_numbers_of_two_models():
    lines = produced("shapes 13").split("\n")
    assert lines[0] == "| op | result | letters | bundled, T = 27 | 8B, T = 22 | dtype |"
    assert "| `matmul` | `scores` | `[H, T, S]` | [6, 27, 27] | [32, 22, 22] | float32 |" in lines


def test_the_table_of_stages_links_chapter_diagram_and_code():
    lines = produced("stages").split("\n")[2:]
    for stage, line in zip(STAGES.values(), lines, strict=True):
        assert line.startswith(f"| {stage.number} | [{stage.name}]({stage.chapter[5:]}) ")
        assert f"](../{stage.diagram}) " in line
        assert f"](../{stage.code.replace(':', '#L')}) " in line


def test_the_index_has_every_page_in_its_group():
    text = produced("index")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"]({page.name})" in text
    assert "1. [The journey](01-journey.md)" in text
    assert "For maintainers:\n\n- [Developing llama-bolts](DEVELOPING.md)" in text


def test_code_is_the_source_of_a_symbol():
    text = produced("code src/model/llama.py LlamaFeedForward.forward")
    assert text.startswith("[`LlamaFeedForward.forward`](../src/model/llama.py#L")
    assert "\ndef forward(self, x: ml.Tensor) -> ml.Tensor:\n" in text
    assert text.endswith("# [T, F] -> [T, D]\n```")


@pytest.mark.parametrize("name", ["log 22", "log 1 9b", "shapes 0", "code src/main.py no"])
def test_an_argument_that_names_nothing_is_refused(name):
    with pytest.raises(PageError, match="generated: "):
        produced(name)


def test_the_ids_of_the_prompt_are_those_of_llama_3():
    tokenizer = load_tokenizer(shared_data("llama3/tokenizer.model").parent)
    assert tuple(encode_chat(tokenizer, [Message("user", PROMPT)])) == LLAMA_3_IDS
