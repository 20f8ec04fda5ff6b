import dataclasses

from src.drawing.around import draw_loop
from src.drawing.frame import Sheet
from src.trace.records import Event
from tests.drawing.runs import byte_run
from tests.drawing.test_diagrams import bundled_run, texts


def test_of_a_long_answer_the_first_pass_is_kept_and_the_loop_around_the_others(tmp_path):
    events = byte_run(tmp_path, "x", 6).events
    loop = [number for number, event in enumerate(events) if event.stage == 3]
    assert len(loop) == 6
    assert {event.stage for event in events[loop[1] :]} == {3, 20, 21}
    assert {event.layer for event in events} == {None, 0}
    assert {event.stage for event in events[: loop[1]]} == set(range(1, 22))


def test_tokens_belong_to_the_pass_that_they_were_chosen_after():
    run = bundled_run()
    loop, sampling = run.marks(3)[0], run.marks(20)[0]

    def event(mark: Event, **details: int) -> Event:
        return dataclasses.replace(mark, details={**mark.details, **details})

    events = [
        event(loop, T=5, S=5), event(loop, T=4, S=9), event(sampling, token=7),
        event(loop, T=1, S=10), event(sampling, token=8),
    ]  # fmt: skip
    in_parts = dataclasses.replace(run, events=events)
    assert [(mark.details["S"], token) for mark, token in in_parts.passes()] == [
        (5, None), (9, 7), (10, 8),
    ]  # fmt: skip
    sheet = Sheet(in_parts, 3)
    draw_loop(sheet, 0.0)
    assert "5 cached" in texts(sheet.svg("loop"))
