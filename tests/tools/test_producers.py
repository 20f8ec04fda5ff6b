"""Generated blocks: what the pages show of them is compared with the pages (tests/test_docs.py)."""

import re

import numpy as np
import pytest

from src.inference import Message, encode_chat
from src.tokenizer import load_tokenizer
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
        ["before", "x[26,", ":]"], ["before", "attention[26,", ":]"], ["after", "x[26,", ":]"],
    ]  # fmt: skip
    x, attention, total = (np.array(row[3:-1], float) for row in rows)
    np.testing.assert_allclose(x + attention, total, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ["log 22", "log 1 9b", "shapes 0", "code src/main.py no"])
def test_an_argument_that_names_nothing_is_refused(name):
    with pytest.raises(PageError, match="generated: "):
        produced(name)


def test_the_ids_of_the_prompt_are_those_of_llama_3():
    tokenizer = load_tokenizer(shared_data("llama3/tokenizer.model").parent)
    assert tuple(encode_chat(tokenizer, [Message("user", PROMPT)])) == LLAMA_3_IDS
