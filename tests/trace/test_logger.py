import ast
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

from src import trace
from src.model import InferenceContext
from src.trace import STAGES, TensorInfo
from src.trace.logger import TraceLog, tensor_text
from src.trace.reader import read_trace
from tests.trace.recording import DIFFERENT, different_transformer, source_files

PROMPT = list(range(22))
NASTY = "a\nb\r\t\"c\" 'd' {} {0} %s \u2028\u2029\x85\x1b[31m\u202e \ud800 İ 🙂 \\n"


def logged(
    *prompts: Sequence[int],
    layers: Sequence[range] | None = None,
    stages: Sequence[range] | None = None,
    statistics: bool = False,
) -> tuple[list[str], list[str]]:
    """Runs prompts one after the other; returns the lines for people and the JSON lines."""
    debug_log, json_lines = io.StringIO(), io.StringIO()
    log = TraceLog(
        DIFFERENT.sizes, debug_log=debug_log, json_lines=json_lines, layers=layers, stages=stages
    )
    trace.start(trace.Tracer(DIFFERENT.sizes, log.write, wants=log.wants, statistics=statistics))
    try:
        context = InferenceContext(DIFFERENT, 64)
        for prompt in prompts:
            different_transformer().forward(context, prompt, context.length)
    finally:
        trace.stop()
    return debug_log.getvalue().splitlines(), json_lines.getvalue().splitlines()


def event_lines(lines: list[str]) -> list[str]:
    """Returns the lines of a log that are neither its head nor headings nor blank."""
    return [line for line in lines[3:] if line and not line.startswith("#")]


def test_a_line_shows_the_letters_beside_the_numbers() -> None:
    info = TensorInfo("xq", (22, 32, 128), ("T", "H", "h"), "bfloat16")
    assert tensor_text(info) == "xq [T, H, h] = [22, 32, 128] bfloat16"
    assert tensor_text(TensorInfo("", (4, 2), (), "float32")) == "[4, 2] float32"
    assert "\n" not in tensor_text(TensorInfo("a\nb", (), (), "float32"))


def test_the_log_begins_with_the_legend_and_its_columns() -> None:
    legend, explain, columns, *_ = logged(PROMPT)[0]
    assert legend.startswith("# T new tokens, S cached plus new tokens, D = 20 model dimension, ")
    assert columns.split() == [
        "stage", "layer", "position", "op", "code", "time", "result", "<-", "inputs,", "arguments",
    ]  # fmt: skip
    assert "--explain N" in explain


def test_a_stage_has_a_heading_with_its_number_name_layer_diagram_code_and_chapter() -> None:
    lines = logged(PROMPT)[0]
    at = next(n for n, line in enumerate(lines) if line.startswith("# 8 xq, xk, xv, layer 0  "))
    stage = STAGES[8]
    assert lines[at - 1] == ""
    assert lines[at].split()[7:] == [
        "diagrams/stage-08.svg", stage.code, "LlamaAttention.forward",
        "docs/14-forward-pass.md#stage-8-xq-xk-xv",
    ]  # fmt: skip
    assert lines[at + 1].split()[:4] == ["8", "0", "0", "linear_transformations"]
    assert "xq [T, H*h] = [22, 120] bfloat16" in lines[at + 1]
    read = "<- normed [T, D] = [22, 20] bfloat16, layers.0.attention.wq.weight [H*h, D] = [120, 20]"
    assert read in lines[at + 1]


def test_every_stage_of_a_pass_has_a_line() -> None:
    stages = {line.split()[0] for line in event_lines(logged(PROMPT)[0])}
    assert stages == {str(number) for number in range(4, 20)}


def test_every_line_names_the_line_of_code_that_it_comes_from() -> None:
    files = source_files()
    sources = {path.name: path.read_text("utf-8").splitlines() for path in files}
    marks = {
        "layer": "mark(5",
        "LlamaTransformerBlock": "mark(5",
        "LlamaAttention.forward": "mark(7",
    }
    checked = 0
    for line in event_lines(logged(PROMPT)[0]):
        op, code = line.split()[3:5]
        name, _, number = code.partition(":")
        assert [path.name for path in files].count(name) == 1  # so that the name alone is enough
        text = sources[name][int(number) - 1]
        assert marks.get(op, op) in text, line
        checked += 1
    assert checked > 40


def test_the_columns_are_aligned() -> None:
    lines = event_lines(logged(PROMPT)[0])
    results = {line.index("  ", line.index(" ms")) for line in lines if " ms" in line}
    assert len(results) == 1
    assert len({line.index("<-") for line in lines if "<-" in line}) == 1


def test_the_first_layer_is_in_full_and_every_other_is_one_line() -> None:
    lines = logged(PROMPT)[0]
    second = [line for line in event_lines(lines) if line.split()[1] == "1"]
    assert len(second) == 1
    assert second[0].split()[:4] == ["5", "1", "0", "layer"]
    assert "x [T, D] = [22, 20] float32" in second[0]
    assert sum(line.split()[1] == "0" for line in event_lines(lines)) > 30
    assert not [line for line in lines if line.startswith("#") and "layer 1" in line]


def test_json_lines_hold_every_layer() -> None:
    events = [json.loads(line) for line in logged(PROMPT)[1][1:]]
    per_layer = [sum(e["layer"] == layer for e in events) for layer in (0, 1)]
    assert per_layer[0] == per_layer[1] > 30
    assert list(events[0]) == [
        "op", "stage", "name", "layer", "position", "inputs", "outputs", "seconds", "details",
        "code",
    ]  # fmt: skip


def test_layers_and_stages_can_be_chosen() -> None:
    lines, records = logged(PROMPT, layers=(range(1, 2),), stages=(range(5, 6), range(8, 10)))
    events = [json.loads(record) for record in records[1:]]
    assert {(e["stage"], e["layer"]) for e in events} == {(5, 1), (8, 1), (9, 1)}
    shown = {tuple(line.split()[:2]) for line in event_lines(lines)}
    assert shown == {("5", "0"), ("5", "1"), ("8", "1"), ("9", "1")}


def test_statistics_stand_at_the_end_of_the_line_and_in_the_record() -> None:
    lines, records = logged(PROMPT, statistics=True)
    (mask,) = (line for line in lines if " triu " in line)
    assert mask.endswith("; min -inf max 0 mean -inf rms inf first 0 -inf -inf last 0 0 0")
    (record,) = (r for r in map(json.loads, records) if r.get("op") == "triu")
    assert record["outputs"][0]["statistics"] == {
        "min": "-inf", "max": 0.0, "mean": "-inf", "rms": "inf",
        "first": [0.0, "-inf", "-inf"], "last": [0.0, 0.0, 0.0],
    }  # fmt: skip


def test_a_prompt_of_any_characters_is_one_line_and_comes_back(tmp_path: Path) -> None:
    ids = list(range(100))
    with (
        open(tmp_path / "debug.log", "w", encoding="utf-8") as debug_log,
        open(tmp_path / "trace.jsonl", "w", encoding="utf-8") as json_lines,
    ):
        log = TraceLog(DIFFERENT.sizes, debug_log=debug_log, json_lines=json_lines)
        trace.start(trace.Tracer(DIFFERENT.sizes, log.write, wants=log.wants))
        trace.mark(1, details={"text": NASTY, "ids": ids})
        trace.stop()
    *_head, blank, heading, line = (tmp_path / "debug.log").read_text("utf-8").splitlines()
    assert blank == ""
    assert heading.startswith("# 1 tokenization  ")
    assert all(character.isprintable() for character in line)
    text = line.partition(" <- text = ")[2].partition(", ids = ")[0]
    assert ast.literal_eval(text) == NASTY
    assert line.endswith("31] and 68 more")
    written = (tmp_path / "trace.jsonl").read_text("ascii")
    assert len(written.splitlines()) == 2
    (event,) = read_trace(tmp_path / "trace.jsonl").events
    assert event.details == {"text": NASTY, "ids": ids}
    assert event.name == STAGES[1].name


class FullFile(io.StringIO):
    """A file on a disk that fills up after some lines."""

    name = "full.log"

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.left = lines

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return super().write(text)


def run_with(debug_log: TextIO, json_lines: TextIO, warnings: list[str]) -> TraceLog:
    log = TraceLog(
        DIFFERENT.sizes, debug_log=debug_log, json_lines=json_lines, on_failure=warnings.append
    )
    trace.start(trace.Tracer(DIFFERENT.sizes, log.write, wants=log.wants))
    try:
        different_transformer().forward(InferenceContext(DIFFERENT, 64), PROMPT)
    finally:
        trace.stop()
    return log


def test_a_file_that_takes_no_more_is_left_out_after_one_warning() -> None:
    warnings: list[str] = []
    whole = io.StringIO()
    log = run_with(FullFile(3), whole, warnings)
    assert warnings == ["full.log: the trace ends here: No space left on device"]
    assert log.is_open
    assert len(whole.getvalue().splitlines()) > 80
    log.close()
    assert not log.is_open
    log.close()


def test_a_log_whose_files_are_full_wants_nothing() -> None:
    warnings: list[str] = []
    log = run_with(FullFile(3), FullFile(5), warnings)
    assert len(warnings) == 2
    assert not log.is_open
    assert not log.wants(1, None)


@pytest.mark.parametrize("which", ["debug_log", "json_lines"])
def test_a_file_that_does_not_take_its_beginning_is_an_error_with_its_name(which: str) -> None:
    with pytest.raises(OSError, match="No space left") as error:
        TraceLog(DIFFERENT.sizes, **{which: FullFile(0)})
    assert error.value.filename == "full.log"
