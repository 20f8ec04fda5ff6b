import io
import json
import math

from src import ml
from src.inference import SamplingArgs
from src.model import InferenceContext
from src.trace.logger import TraceLog
from src.trace.records import Event, json_value
from tests.trace.recording import DIFFERENT, different_transformer, read_trace
from tools.runs import recorded


def test_what_json_does_not_know_becomes_text():
    value = {"a": (1, 2.5, None, True), "b": -math.inf, "c": math.nan, "d": ml.bfloat16, 3: "x"}
    plain = json_value(value)
    assert plain == {"a": [1, 2.5, None, True], "b": "-inf", "c": "nan", "d": "bfloat16", "3": "x"}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert json_value(SamplingArgs(seed=1))["temperature"] == 0.6  # a dataclass: its fields


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
