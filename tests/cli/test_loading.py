from pathlib import Path

import pytest

from src import ml
from src.cli.arguments import DEFAULT_CONTEXT_LENGTH, parse_arguments
from src.cli.console import Console
from src.cli.errors import UsageError
from src.cli.loading import loading_line, open_model, open_model_to_run, open_session
from src.inference import SamplingError
from src.inference.engine import DEFAULT_SEQUENCE_LENGTH
from tests.cli.reciting_model import LONGEST_CONTEXT


def test_the_default_context_is_that_of_the_engine(alphabet_model: Path) -> None:
    assert DEFAULT_CONTEXT_LENGTH == DEFAULT_SEQUENCE_LENGTH
    options = parse_arguments(["-m", str(alphabet_model)])
    assert open_model_to_run(options, Console())[1] == DEFAULT_CONTEXT_LENGTH


def test_the_context_can_be_as_long_as_the_model_allows(alphabet_model: Path) -> None:
    def positions(asked: int) -> int:
        options = parse_arguments(["-m", str(alphabet_model), "-c", str(asked)])
        return open_model_to_run(options, Console())[1]

    assert positions(LONGEST_CONTEXT) == LONGEST_CONTEXT
    with pytest.raises(UsageError, match=f"at most the model's {LONGEST_CONTEXT}, got"):
        positions(LONGEST_CONTEXT + 1)


def test_settings_are_checked_before_the_model_is_looked_for(tmp_path: Path) -> None:
    options = parse_arguments(["-m", str(tmp_path / "absent"), "--top-p", "2"])
    with pytest.raises(SamplingError):
        open_session(options, Console(quiet=True))


def test_the_number_of_threads_is_set(alphabet_model: Path) -> None:
    before = ml.get_num_threads()
    try:
        open_model(parse_arguments(["-m", str(alphabet_model), "-t", "1"]), Console())
        assert ml.get_num_threads() == 1
    finally:
        ml.set_num_threads(before)


def test_the_loading_line_tells_model_sizes_cache_memory_and_scaling(
    alphabet_model: Path,
) -> None:
    options = parse_arguments(
        ["-m", str(alphabet_model), "-c", "64", "--rope-scaling-factor", "32"]
    )
    line = loading_line(open_session(options, Console(quiet=True)).engine)
    for part in (str(alphabet_model), "1.3 M parameters", "mapped", "KV cache 64.0 KiB", "free"):
        assert part in line
    assert "RoPE scaling factor 32" in line
    assert "\n" not in line
