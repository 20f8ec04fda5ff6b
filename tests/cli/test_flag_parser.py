"""Each flag in a pseudo-terminal, on the bundled model, as a person would use it."""

import json
import re
from pathlib import Path

import pexpect

from src.model.files import BUNDLED_MODEL
from src.trace.records import read_trace
from tests.cli.conftest import CTRL_D, REPOSITORY, Spawn

QUESTION = "What is the capital of Massachusetts? Answer in one word."
ANSWER = "Boston"
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def shown(child: "pexpect.spawn[str]") -> list[str]:
    """Waits for the end with exit code 0 and returns the lines of the screen, without styles."""
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    text = re.sub(r"\r(?!\n)[^\r\n]*\x1b\[K", "", child.before)  # progress that was taken back
    return [line.rstrip() for line in STYLES.sub("", text).split("\r\n")]


def test_a_prompt_with_every_flag_of_an_answer(spawn: Spawn) -> None:
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


def test_a_file_a_record_and_the_trace(spawn: Spawn, tmp_path: Path) -> None:
    prompt, log, trace = (tmp_path / name for name in ("prompt", "log", "trace"))
    prompt.write_text(QUESTION)
    child = spawn(
        *("-f", prompt, "--json", "--temperature", "0", "--no-stats", "-v"),
        *("--debug-log", log, "--trace-json", trace, "--trace-layers", "1"),
        *("--trace-stages", "7-9", "--trace-statistics"),
    )
    _kernels, _loading, _details, *record, _seconds, _end = shown(child)
    found = json.loads("".join(record))
    assert (found["text"], found["stop_reason"]) == (ANSWER, "eot")
    assert found["model"] == str(BUNDLED_MODEL)
    assert {event.stage for event in read_trace(trace).events} == {7, 8, 9}
    assert "wq" in log.read_text()


def test_a_dash_reads_what_is_typed(spawn: Spawn) -> None:
    child = spawn("-", "-q", "--temperature", "0")
    child.sendline(QUESTION)
    child.send(CTRL_D)
    assert shown(child)[-2:] == [ANSWER, ""]


def test_reports_in_a_wide_and_in_a_narrow_window(spawn: Spawn) -> None:
    wide = shown(spawn("--metadata"))
    assert "tok_embeddings.weight            [4096, 192]  bfloat16  1572864" in wide
    assert max(map(len, wide)) <= 80
    narrow = shown(spawn("--metadata", dimensions=(10, 40)))
    at = narrow.index("layers.3.feed_forward.w1.weight")
    assert narrow[at + 1] == "  [544, 192]   bfloat16   208896"
