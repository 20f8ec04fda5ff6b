import signal
from collections.abc import Iterator

from src.cli.answer import INTERRUPTED, statistics_line, stream_answer
from src.cli.console import Console
from src.inference import GenerationStats, Step


def test_a_second_ctrl_c_does_not_disturb_the_end_of_an_answer() -> None:
    def steps() -> Iterator[Step]:
        try:
            yield Step(1, "a")
            signal.raise_signal(signal.SIGINT)
            yield Step(2, "b")
        finally:
            signal.raise_signal(signal.SIGINT)

    answer = stream_answer(Console(quiet=True), steps)
    assert (answer.text, answer.stop_reason) == ("a", INTERRUPTED)


def test_the_line_of_statistics_says_what_was_run_and_what_was_cached() -> None:
    stats = GenerationStats(100, 60, 21, 0.5, 2.0, 7)
    assert statistics_line(stats, "eot", 4096) == (
        "100 prompt tokens (60 cached), 80 tok/s · 21 new, 10 tok/s · context 121/4096 · "
        "eot · seed 7"
    )


def test_the_line_of_statistics_knows_no_speed_where_nothing_was_run() -> None:
    stats = GenerationStats(10, 9, 1, 0.0, 0.0, 7)
    assert "tok/s" not in statistics_line(stats, "eot", 4096)
