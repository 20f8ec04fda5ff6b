"""Each flag in a pseudo-terminal, on the bundled model, as a person would use it."""

import re

from src.model.files import BUNDLED_MODEL
from tests.cli.conftest import REPOSITORY, Terminal

QUESTION = "What is the capital of Massachusetts? Answer in one word."
ANSWER = "Boston"
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def shown(child: Terminal) -> list[str]:
    """Waits for the end with exit code 0 and returns the lines of the screen, without styles."""
    assert child.code() == 0, child.before
    text = re.sub(r"\r(?!\n)[^\r\n]*\x1b\[K", "", child.before)  # progress that was taken back
    return [line.rstrip() for line in STYLES.sub("", text).split("\r\n")]


def test_a_prompt_with_every_flag_of_an_answer(spawn):
    model = BUNDLED_MODEL.relative_to(REPOSITORY)
    child = spawn(
        *("-m", model, "-p", QUESTION, "-s", "Be polite", "-n", "40", "-c", "128", "-t", "1"),
        *("--temperature", "0", "--top-k", "5", "--top-p", "0.8", "--min-p", "0.01"),
        *("--repeat-penalty", "1.05", "--seed", "17", "--stop", "ton", "--stop", "zzz"),
        *("--rope-scaling-factor", "8", "--chat-format", "llama3", "-v"),
    )
    _kernels, loading, details, *answer, statistics, _seconds, end = shown(child)
    assert loading.endswith("; context 128 tokens, 128.0 KiB")
    assert details.startswith(f"{model} (Meta")
    for part in ("3.2 M parameters", "mapped", "factor 8 by override", "llama3 by --chat-format"):
        assert part in details
    assert re.search(r"KV cache .* for 128 tokens; .* free$", details)
    assert "\n".join(answer).endswith("Bos")
    for part in ("prompt", "/128, stop string, seed 17"):
        assert part in statistics
    assert end == ""


def test_a_dash_reads_what_is_typed(spawn):
    child = spawn("-", "-q", "--temperature", "0")
    child.sendline(QUESTION)
    child.sendeof()
    assert shown(child)[-2:] == [ANSWER, ""]
