"""A run with a trace is the run without one: the same tokens and the same
probabilities.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

PROMPTS = (
    "What is the capital of Massachusetts?",
    "What is the capital of France? Answer in one word.",
    "Who are you?",
    "What does stage 13 do?",
    "What is RoPE? And what is a head?",
    "Count from one to twenty. Then count again.",
    "Repeat: the cat sat on the mat. The cat sat on the mat. The cat sat",
    "Name three colours.",
    "What is a token?",
    "What is the flag of Turkey?",
    "Say hello in French.",
    "What is softmax?",
    "How many layers does this model have?",
    "Where is Peru?",
    "What is attention?",
    "Thank you!",
    "What is 2 plus 2?",
    "Tell me about the KV cache.",
    "Why is the sky blue?",
    "list the days of the week",
)
SETTINGS = (
    ("--temperature", "0"),
    ("--seed", "5", "--temperature", "1.2", "--top-k", "0"),
)
VIEWS: dict[str, tuple[str, ...]] = {
    "log": ("--debug-log", "debug.log"),
    "json": ("--trace-json", "trace.json"),
    "page": ("--explore", "page.html"),
    "diagrams": ("--diagrams", "diagrams"),
}
ALL_VIEWS = tuple(word for flags in VIEWS.values() for word in flags)


def told(run: Callable[..., Any], *flags: Any) -> dict[str, Any]:
    """Returns what a run says of its tokens: ids, and probabilities of the 20 most
    probable ones.

    Equal probabilities in float64 need logits that are equal in every bit.
    """
    done = run("-q", "-n", "48", "--json", "--logprobs", "20", *flags)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    return {key: record[key] for key in ("token_ids", "text", "stop_reason", "logprobs")}


def in_directory(flags: Iterable[str], directory: Path) -> list[str]:
    """Returns the flags with each file in a directory."""
    return [flag if flag.startswith("--") else str(directory / flag) for flag in flags]


@pytest.mark.parametrize("name", VIEWS)
def test_each_view_shows_the_run_that_answers(run, tmp_path, name):
    asked = ("-p", PROMPTS[6], *SETTINGS[1])
    assert told(run, *asked, *in_directory(VIEWS[name], tmp_path)) == told(run, *asked)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_all_views_at_once_show_the_run_that_answers(run, tmp_path, prompt):
    for settings in SETTINGS:
        asked = ("-p", prompt, *settings)
        assert told(run, *asked, *in_directory(ALL_VIEWS, tmp_path)) == told(run, *asked)
