import signal
from collections.abc import Iterator

import pytest

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
    expected = "100 prompt (60 cached) 80/s, 21 new 10/s, 121/4096, eot, seed 7"
    assert statistics_line(stats, "eot", 4096) == expected


def test_the_line_of_statistics_knows_no_speed_where_nothing_was_run() -> None:
    stats = GenerationStats(10, 0, 1, 0.0, 0.0, 7)
    assert statistics_line(stats, "eot", 64) == "10 prompt, 1 new, 11/64, eot, seed 7"


@pytest.mark.parametrize("reason", ["eot", "max tokens", "stop string", "context full"])
@pytest.mark.parametrize("tokens", [316, 4096, 65000, 130000])
def test_the_line_of_statistics_fits_80_columns_and_keeps_its_seed(
    reason: str, tokens: int
) -> None:
    stats = GenerationStats(tokens, tokens * 9 // 10, tokens // 3, 0.01, 3.0, 4294967295)
    line = statistics_line(stats, reason, 131072)
    assert len(line) <= 80
    assert line.startswith(f"{tokens} prompt ({tokens * 9 // 10} cached) ")
    assert f", {reason}" in line
    if tokens < 65000:
        assert line.endswith(", seed 4294967295")
