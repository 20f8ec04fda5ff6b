import ast
import io
import itertools
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from src import ml, trace
from src.inference import InferenceEngine, SamplingArgs
from src.model import InferenceContext, Model, load_model
from src.trace.events import STAGES
from src.trace.logger import TraceLog, tensor_text
from src.trace.records import Event, RowChoice, TensorInfo, json_value
from tests.model.families import write_family
from tests.trace.recording import (
    DIFFERENT,
    different_transformer,
    event_lines,
    read_trace,
    source_files,
)
from tools.runs import recorded

PROMPT = list(range(22))
NASTY = "a\nb\r\t\"c\" 'd' {} {0} %s \u2028\u2029\x85\x1b[31m\u202e \ud800 İ 🙂 \\n"


def logged(
    *prompts: Sequence[int],
    statistics: bool = False,
    row: RowChoice | None = None,
    **of: Any,
) -> tuple[list[str], ...]:
    """Runs prompts one after the other; returns the lines for people and the JSON
    lines.
    """
    files = {"debug_log": io.StringIO(), "json_lines": io.StringIO()}
    log = TraceLog(
        DIFFERENT.sizes, **files, **of, run={"model": "random", "threads": "2"}
    )
    with recorded(
        DIFFERENT, write=log.write, wants=log.wants, statistics=statistics, row=row
    ):
        context = InferenceContext(DIFFERENT, 64)
        for prompt in prompts:
            different_transformer().forward(context, prompt, context.length)
    return tuple(file.getvalue().splitlines() for file in files.values())


def test_a_line_shows_the_letters_beside_the_numbers():
    info = TensorInfo("xq", (22, 32, 128), ("T", "H", "h"), "bfloat16")
    assert tensor_text(info) == "xq [T, H, h] = [22, 32, 128] bfloat16"
    assert tensor_text(TensorInfo("", (4, 2), (), "float32")) == "[4, 2] float32"
    assert "\n" not in tensor_text(TensorInfo("a\nb", (), (), "float32"))


def test_the_log_begins_with_the_run_the_legend_and_the_columns():
    lines = logged(PROMPT)[0]
    head = " ".join(line.lstrip("# ") for line in lines[: lines.index("")])
    assert head.startswith(
        "model random; threads 2 T new tokens, S cached plus new tokens, D = 20"
    )
    assert "G = H/K = 4 query heads per key/value head" in head
    assert head.endswith(
        "st op                     code                ms  result <- inputs, arguments"
    )


def test_no_line_is_longer_than_120_columns():
    row = RowChoice(None, 11)
    lines = logged(PROMPT, [1], layers=(range(2),), statistics=True, row=row)[0]
    assert max(map(len, lines)) <= 120
    assert len(lines) > 200


def test_the_first_heading_of_a_stage_names_its_diagram_code_and_chapter():
    lines = logged(PROMPT, layers=(range(2),))[0]
    at = lines.index("# 8 xq, xk, xv, layer 0")
    stage = STAGES[8]
    assert lines[at + 1].split() == [
        "#",
        "diagrams/stage-08.svg",
        stage.code,
        "docs/14b-attention.md#stage-8-xq-xk-xv",
    ]
    assert lines[at + 2].split()[:2] == ["8", "linear_transformations"]
    assert lines[at + 2].endswith("xq [T, H*h] = [22, 120] bfloat16")
    assert (
        lines[at + 3] == "        <- normed [T, D], layers.0.attention.wq.weight [H*h, D]"
    )
    again = lines.index("# 8 xq, xk, xv, layer 1")
    assert lines[again + 1].split()[:2] == ["8", "linear_transformations"]


def test_the_heading_of_the_softmax_shows_the_limits_of_attention(tmp_path):
    model = load_model(write_family(tmp_path, "granite_swa"))
    file = io.StringIO()
    log = TraceLog(model.args.sizes, debug_log=file, layers=(range(4),))
    context = InferenceContext(model.args, 300)
    model.transformer.forward(context, [3] * 270)
    with recorded(model.args, write=log.write, wants=log.wants):
        model.transformer.forward(context, [5], 270)
    lines = file.getvalue().splitlines()
    headings = [line for line in lines if line.startswith("# 13 ")]
    first, *others = (line.rpartition("layer ")[2] for line in headings)
    assert first == "0: all positions, sinks"
    assert others == [f"{n}: window of 8, W = 15, sinks" for n in (1, 2, 3)]


def test_an_input_of_another_dtype_says_so_and_further_results_of_a_call_have_no_time():
    lines = event_lines(logged(PROMPT)[0])
    (line,) = (line for line in lines if line.startswith(" 4 to "))
    assert line.endswith(
        "x [T, D] = [22, 20] float32 <- x [T, D] bfloat16, dtype = float32"
    )
    xq, xk, _xv = (line for line in lines if line.startswith(" 8"))
    assert (bool(xq[40:49].strip()), bool(xk[40:49].strip())) == (True, False)


def test_every_line_names_the_line_of_code_that_it_comes_from():
    # No op of a model of Llama runs in the modules of other families.
    files = [path for path in source_files() if path.parent.name != "families"]
    sources = {path.name: path.read_text("utf-8").splitlines() for path in files}
    checked = 0
    for line in event_lines(logged(PROMPT)[0]):
        op = line[3:25].strip()
        code = line[26:40]
        name, _, number = code.partition(":")
        assert [path.name for path in files].count(
            name
        ) == 1  # so that the name alone is enough
        text = sources[name][int(number) - 1]
        assert ("mark(5" if op.startswith("layer ") else op) in text, line
        checked += 1
    assert checked > 40


def test_the_first_layer_is_in_full_and_every_layer_is_summed_up_in_one_line():
    lines = logged(PROMPT)[0]
    at = lines.index("# 5 each transformer block: its time, its result, its work")
    for layer in (0, 1):
        assert lines[at + 1 + layer].split()[:3] == ["5", "layer", str(layer)]
        assert " x [T, D] = [22, 20] float32 " in lines[at + 1 + layer]
        assert lines[at + 1 + layer].endswith(" MiB")
    assert sum(", layer 0" in line for line in lines if line.startswith("#")) == 14
    assert not [line for line in lines if line.startswith("#") and "layer 1" in line]


def test_layers_and_stages_can_be_chosen():
    lines, records = logged(
        PROMPT, layers=(range(1, 2),), stages=(range(5, 6), range(8, 10))
    )
    events = [json.loads(record) for record in records[1:]]
    assert {(e["stage"], e["layer"]) for e in events} == {(5, 1), (8, 1), (9, 1)}
    headings = [line for line in lines[lines.index("") :] if line.startswith("# ")]
    assert [line for line in headings if not line.startswith("#   ")] == [
        "# 5 each transformer block: its time, its result, its work",
        "# 5 each transformer block, layer 1: stages 6 to 18",
        "# 8 xq, xk, xv, layer 1",
        "# 9 reshape to heads, layer 1",
        "# 5 each transformer block: its time, its result, its work",
    ]


def test_statistics_are_columns_below_the_op_and_part_of_the_record():
    lines, records = logged(PROMPT, statistics=True)
    at = next(n for n, line in enumerate(lines) if " triu " in line)
    found = next(line for line in lines[at:] if line.startswith("        min "))
    assert (
        " ".join(found.split()) == "min - max 0 mean - rms - first 0 -inf -inf last 0 0 0"
    )
    columns = {line.index("max ") for line in lines if line.startswith("        min ")}
    assert len(columns) == 1
    (record,) = (r for r in map(json.loads, records) if r.get("op") == "triu")
    assert record["outputs"][0]["statistics"] == {
        "min": "-inf", "max": 0.0, "mean": "-inf", "rms": "inf",
        "first": [0.0, "-inf", "-inf"], "last": [0.0, 0.0, 0.0],
    }  # fmt: skip


def test_a_row_is_below_the_op_and_part_of_the_record():
    lines, records = logged(PROMPT, row=RowChoice(20, 3))
    at = next(n for n, line in enumerate(lines) if " triu " in line)
    shown = next(line for line in lines[at:] if line.startswith("        mask["))
    assert shown.split() == ["mask[20,", ":]", "0", "0", "0", "0", "0", "0", "..."]
    (record,) = (r for r in map(json.loads, records) if r.get("op") == "triu")
    assert record["outputs"][0]["row"] == {
        "index": [20, None], "length": 22, "first": [0.0] * 6,
    }  # fmt: skip
    (line,) = (line for line in lines if line.startswith("        rotations["))
    assert re.fullmatch(r" {8}rotations\[20, :\]( \S+[+-]\S+j){3} \.\.\.", line)


def test_a_prompt_of_any_characters_comes_back(tmp_path):
    ids = list(range(100))
    with (
        open(tmp_path / "debug.log", "w", encoding="utf-8") as debug_log,
        open(tmp_path / "trace.jsonl", "w", encoding="utf-8") as json_lines,
    ):
        log = TraceLog(DIFFERENT.sizes, debug_log=debug_log, json_lines=json_lines)
        with recorded(DIFFERENT, write=log.write, wants=log.wants, text_of=repr):
            trace.mark(1, details={"text": NASTY, "ids": ids})
    text = (tmp_path / "debug.log").read_text("utf-8")
    assert all(line.isprintable() for line in text.split("\n"))
    shown = text.partition("        text: ")[2].partition("\n        U+")[0]
    assert ast.literal_eval(shown) == NASTY
    assert "100 tokens: 0 0, 1 1, 2 2, " in text
    assert text.endswith("63 63\n          and 36 more\n")
    assert len((tmp_path / "trace.jsonl").read_text("ascii").splitlines()) == 2
    _, (event,) = read_trace(tmp_path / "trace.jsonl")
    assert event.details["text"] == NASTY
    assert event.details["texts"] == list(map(repr, ids))
    assert event.details["symbols"][-1] == "U+1F642 SLIGHTLY SMILING FACE"
    assert event.name == STAGES[1].name


def answer_log(
    model: Model, *, steps: Sequence[range] | None = None, count: int = 5
) -> list[str]:
    """Returns the log of an answer of a small model, greedy, from the prompt 1 2 3."""
    written = io.StringIO()
    log = TraceLog(model.args.sizes, debug_log=written, steps=steps)
    sampling = SamplingArgs(temperature=0.0, repeat_penalty=1.5)
    with recorded(model.args, write=log.write, wants=log.wants, text_of="<{}>".format):
        drawn = InferenceEngine(model, 64).generate([1, 2, 3], count, sampling)
        return [str([step.token_id for step in drawn]), *written.getvalue().splitlines()]


def test_steps_from_the_third_on_have_a_line_each(model):
    drawn, *lines = answer_log(model)
    tokens = ast.literal_eval(drawn)
    rows = [line.split() for line in lines[-3:]]
    assert [row[:6] for row in rows] == [
        [str(step), str(step + 2), str(read), f"<{read}>", str(new), f"<{new}>"]
        for step, (read, new) in enumerate(itertools.pairwise(tokens[1:]), 2)
    ]
    assert rows[-1][-2:] == ["max", "tokens"]
    assert sum(line.startswith("# 3 loop over the sequence: step") for line in lines) == 2
    in_full = answer_log(model, steps=(range(5),))
    assert (
        sum(line.startswith("# 3 loop over the sequence: step") for line in in_full) == 5
    )


def test_a_log_of_ten_tokens_has_at_most_300_lines_of_120_columns(model):
    _drawn, *lines = answer_log(model, count=10)
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 120


def test_the_log_shows_how_a_token_was_drawn(model):
    drawn, *lines = answer_log(model, count=1)
    (token,) = ast.literal_eval(drawn)
    at = next(n for n, line in enumerate(lines) if line.startswith("20 Sampler.sample"))
    head = next(n for n, line in enumerate(lines) if n > at and "token " in line)
    settings = " ".join(line.strip() for line in lines[at + 1 : head])
    assert settings.endswith("; the largest logit")
    names = lines[head].split()
    assert names == [
        "token",
        "logit",
        "model",
        "repeat_penalty",
        "1.5",
        "temperature",
        "0",
    ]
    (marked,) = (line for line in lines[at:] if line.endswith(" <-"))
    assert marked.split()[:2] == [str(token), f"<{token}>"]
    kept = next(line for line in lines[at:] if "tokens that are left" in line)
    assert kept.split()[-3:] == [
        str(model.args.vocab_size),
        str(model.args.vocab_size),
        "1",
    ]
    assert lines[-1].strip().startswith(f"token {token} <{token}>, text ")
    assert lines[-1].endswith(", stop: max tokens")


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


@pytest.mark.parametrize("other", [io.StringIO(), FullFile(5)], ids=["whole", "full too"])
def test_a_file_that_takes_no_more_is_left_out_after_one_warning(other):
    warnings: list[str] = []
    files = {"debug_log": FullFile(3), "json_lines": other}
    log = TraceLog(DIFFERENT.sizes, **files, on_failure=warnings.append)
    with recorded(DIFFERENT, write=log.write, wants=log.wants):
        different_transformer().forward(InferenceContext(DIFFERENT, 64), PROMPT)
    both = isinstance(other, FullFile)
    assert warnings == ["full.log: the trace ends here: No space left on device"] * (
        1 + both
    )
    assert log.is_open == log.wants(1, None, None) == (not both)
    assert both or len(other.getvalue().splitlines()) > 80
    for _ in range(2):
        log.close()
        assert not log.is_open


def test_what_json_does_not_know_becomes_text():
    value = {
        "a": (1, 2.5, None, True),
        "b": -math.inf,
        "c": math.nan,
        "d": ml.bfloat16,
        3: "x",
    }
    plain = json_value(value)
    assert plain == {
        "a": [1, 2.5, None, True],
        "b": "-inf",
        "c": "nan",
        "d": "bfloat16",
        "3": "x",
    }
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    # A dataclass: its fields.
    assert json_value(SamplingArgs(seed=1))["temperature"] == 0.6


def test_what_was_written_is_read_back_equal(tmp_path):
    written = io.StringIO()
    log = TraceLog(DIFFERENT.sizes, json_lines=written, run={"model": "random"})
    events: list[Event] = []

    def write(event: Event) -> None:
        events.append(event)
        log.write(event)

    with recorded(DIFFERENT, write, statistics=True):
        different_transformer().forward(InferenceContext(DIFFERENT, 64), list(range(22)))
    path = tmp_path / "trace.jsonl"
    path.write_text(written.getvalue(), "ascii")
    head, found = read_trace(path)
    assert len(found) > 80
    assert found == events
    assert head == {"sizes": DIFFERENT.sizes, "run": {"model": "random"}}
