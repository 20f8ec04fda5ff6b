"""Chat templates write what they write in transformers, character for character."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from src.inference.chat_template import ChatTemplate
from tests.inference import compare_templates
from tests.inference.compare_templates import (
    NOW,
    Outcome,
    compare_template,
    describe_difference,
    frozen_clock,
    our_outcome,
    their_outcome,
)
from tests.inference.published_templates import LLAMA3_1, PUBLISHED
from tests.inference.template_conversations import CONVERSATIONS, Conversation
from tests.inference.template_expressions import EXPRESSIONS, STATEMENTS, VARIABLES

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers", reason="needs the oracle extra")

FILES = sorted((Path(__file__).resolve().parent / "templates").glob("*.jinja"))
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
TEMPLATES |= {f"published-{name}": text for name, text in PUBLISHED.items()}
TEMPLATES["published-llama3.1"] = LLAMA3_1


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    with frozen_clock():
        yield


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_writes_every_conversation_as_in_transformers_or_fails_in_both(name):
    comparisons = compare_template(TEMPLATES[name])
    assert len(comparisons) == 2 * len(CONVERSATIONS)
    assert [each.summary for each in comparisons if each.difference] == []


def differences(texts: Iterable[str]) -> list[str]:
    """Return the small templates that differ, each with its difference."""
    messages = [
        {"role": "system", "content": "Be <s> brief."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": "é"}}}],
        },
    ]
    conversation = Conversation("a call", messages, variables=VARIABLES)
    found = []
    for text in texts:
        ours = our_outcome(ChatTemplate(text), conversation, add_generation_prompt=True)
        theirs = their_outcome(text, conversation, add_generation_prompt=True)
        difference = describe_difference(ours, theirs)
        if difference:
            found.append(f"{text}: {difference}")
    return found


def test_an_expression_has_the_value_that_it_has_in_transformers():
    assert differences("{{ " + expression + " }}" for expression in EXPRESSIONS) == []


def test_statements_write_what_they_write_in_transformers():
    assert differences(STATEMENTS) == []


def test_most_comparisons_are_of_texts():
    """Templates refuse some conversations, such as two questions in a row,
    but not most.
    """
    comparisons = compare_template(TEMPLATES["Qwen-Qwen3-0.6B"])
    texts = sum(each.is_text for each in comparisons)
    assert texts > 0.9 * len(comparisons)


def test_both_programs_see_the_frozen_time():
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == str(NOW.year)
    comparisons = compare_template("{{ strftime_now('%d %B %Y, %H:%M:%S') }}")
    assert {each.difference for each in comparisons} == {""}


def test_a_template_that_differs_is_reported_with_its_first_difference(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(compare_templates, "their_outcome", lambda *_: Outcome("<s>!"))
    row = {"source": "made here", "text": "{{ bos_token }}?"}
    (tmp_path / "1.json").write_text(json.dumps(row), encoding="utf-8")
    lines: list[str] = []
    assert compare_templates.main(tmp_path, lines.append) == 1
    assert lines[0].startswith("differs 1.json made here")
    assert "differs at character 3: ours '<s>?', transformers '<s>!'" in lines[1]
    assert lines[-1] == "       1 templates that differ"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Outcome("same"), Outcome("same"), ""),
        (Outcome(None, "a"), Outcome(None, "b"), ""),
        (Outcome("abc"), Outcome("abd"), "differs at character 2"),
        (Outcome("ab"), Outcome("abc"), "differs at character 2"),
        (Outcome(None, "bad"), Outcome(""), "ours raises: bad"),
        (Outcome(""), Outcome(None, "bad"), "transformers raises: bad"),
    ],
)
def test_a_difference_is_found_in_texts_and_in_errors(ours, theirs, expected):
    difference = describe_difference(ours, theirs)
    assert difference.startswith(expected)
    assert bool(difference) == bool(expected)
