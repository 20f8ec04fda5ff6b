import io
import json
import math

import pytest

from src import ml, trace
from src.inference import SamplingArgs
from src.model import InferenceContext
from src.trace.logger import TraceLog
from src.trace.records import Event, TensorInfo, TraceFormatError, json_value, read_trace
from src.trace.tracer import Tracer
from tests.trace.recording import DIFFERENT, different_transformer


def test_what_json_does_not_know_becomes_text():
    value = {"a": (1, 2.5, None, True), "b": -math.inf, "c": math.nan, "d": ml.bfloat16, 3: "x"}
    plain = json_value(value)
    assert plain == {"a": [1, 2.5, None, True], "b": "-inf", "c": "nan", "d": "bfloat16", "3": "x"}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert json_value(SamplingArgs(seed=1))["temperature"] == 0.6  # a dataclass: its fields


def test_an_event_comes_back_from_its_record():
    numbers = {"min": "-inf", "max": 2.0, "first": ["-inf", 1.0]}
    info = TensorInfo("xq", (22, 120), ("T", "H*h"), "bfloat16", 7, numbers)
    where = "src/model/llama.py:108"
    event = Event(
        "add", 8, "xq, xk, xv", 0, 1, 22, (info,), (info,), 0.5, 0.25, 10, 20, {"eps": 1e-5}, where
    )
    record = json.loads(json.dumps(vars(event), default=TensorInfo.as_dict, allow_nan=False))
    assert Event.from_dict(record) == event


def test_what_was_written_is_read_back_equal(tmp_path):
    written = io.StringIO()
    log = TraceLog(DIFFERENT.sizes, json_lines=written, run={"model": "random"})
    events: list[Event] = []

    def write(event: Event) -> None:
        events.append(event)
        log.write(event)

    trace.start(Tracer(DIFFERENT.sizes, write, statistics=True))
    different_transformer().forward(InferenceContext(DIFFERENT, 64), list(range(22)))
    trace.stop()
    path = tmp_path / "trace.jsonl"
    path.write_text(written.getvalue(), "ascii")
    found = read_trace(path)
    assert len(found.events) > 80
    assert found.events == tuple(events)
    assert found.sizes == DIFFERENT.sizes
    assert found.run == {"model": "random"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: expected an event, got JSONDecodeError"),
        ("[]", "line 2: expected an event, got TypeError"),
        ("{}", "line 2: expected an event, got KeyError"),
        ('{"sizes": 3}', "line 2: expected an event"),
        ('{"op": "add", "stage": "x"}', "line 2: expected an event"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path, line, reason):
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"sizes": {{"D": 1}}, "run": {{}}}}\n{line}\n')
    with pytest.raises(TraceFormatError, match=reason):
        read_trace(path)
