import io
from pathlib import Path

import pytest

from src import trace
from src.model import InferenceContext
from src.trace import Event
from src.trace.logger import TraceLog
from src.trace.reader import TraceFormatError, read_trace
from tests.trace.recording import DIFFERENT, different_transformer


def test_what_was_written_is_read_back_equal(tmp_path: Path) -> None:
    written = io.StringIO()
    log = TraceLog(DIFFERENT.sizes, json_lines=written, run={"model": "random"})
    events: list[Event] = []

    def write(event: Event) -> None:
        events.append(event)
        log.write(event)

    trace.start(trace.Tracer(DIFFERENT.sizes, write, statistics=True))
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
def test_a_line_that_is_no_event_is_refused_with_its_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"sizes": {{"D": 1}}, "run": {{}}}}\n{line}\n')
    with pytest.raises(TraceFormatError, match=reason):
        read_trace(path)
