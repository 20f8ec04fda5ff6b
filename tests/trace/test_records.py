import json
import math

from src import ml
from src.inference import SamplingArgs
from src.trace import Event, TensorInfo
from src.trace.records import json_value


def test_what_json_does_not_know_becomes_text() -> None:
    value = {"a": (1, 2.5, None, True), "b": -math.inf, "c": math.nan, "d": ml.bfloat16, 3: "x"}
    plain = json_value(value)
    assert plain == {"a": [1, 2.5, None, True], "b": "-inf", "c": "nan", "d": "bfloat16", "3": "x"}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_an_event_comes_back_from_its_record() -> None:
    numbers = {"min": "-inf", "max": 2.0, "first": ["-inf", 1.0]}
    info = TensorInfo("xq", (22, 120), ("T", "H*h"), "bfloat16", 7, numbers)
    where = "src/model/llama.py:108"
    event = Event(
        "add", 8, "xq, xk, xv", 0, 1, 22, (info,), (info,), 0.5, 0.25, 10, 20, {"eps": 1e-5}, where
    )
    record = json.loads(json.dumps(vars(event), default=TensorInfo.as_dict, allow_nan=False))
    assert Event.from_dict(record) == event


def test_a_dataclass_becomes_its_fields() -> None:
    assert json_value(SamplingArgs(seed=1))["temperature"] == 0.6
