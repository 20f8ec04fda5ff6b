from dataclasses import replace
from pathlib import Path

import pytest

from src.cli.arguments import DEFAULT_CONTEXT_LENGTH, parse_arguments
from src.cli.console import Console
from src.cli.errors import UsageError
from src.cli.loading import loading_line, open_model_to_run, open_session
from src.cli.show import topic_text
from src.inference import SamplingError
from src.inference.engine import DEFAULT_SEQUENCE_LENGTH
from src.model import forecast_memory
from tests.cli.conftest import Run
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


def test_the_loading_line_tells_name_size_format_memory_and_context(alphabet_model: Path) -> None:
    session = open_session(parse_arguments(["-m", str(alphabet_model), "-c", "64"]), Console())
    assert loading_line(session.engine) == (
        f"{alphabet_model.name}: 1.3 M parameters, bfloat16, 2.5 MiB; context 64 tokens, 64.0 KiB"
    )


def test_a_billion_parameters_and_a_directory_by_its_own_name(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(alphabet_model)
    session = open_session(parse_arguments(["-m", ".", "-c", "64"]), Console(quiet=True))
    model = replace(session.engine.model, parameter_count=1_235_814_400)
    session.engine.model = model
    assert loading_line(session.engine).startswith(f"{alphabet_model.name}: 1.2 B parameters, ")


def test_quantized_weights_are_told_with_what_they_take() -> None:
    session = open_session(parse_arguments(["--quantize", "nf4"]), Console(quiet=True))
    assert loading_line(session.engine).startswith(
        "bundled model: 3.2 M parameters, nf4, 2.8 MiB; context "
    )


def test_verbose_and_show_model_tell_all_that_was_found(run: Run, alphabet_model: Path) -> None:
    flags = ("-m", alphabet_model, "-c", "64", "--rope-scaling-factor", "32")
    done = run(*flags, "-p", "x", "-v").stderr.decode()
    session = open_session(parse_arguments([*map(str, flags)]), Console(quiet=True))
    shown = topic_text(session, "model").splitlines()
    for part in (str(alphabet_model), "1.3 M parameters", "mapped", "KV cache 64.0 KiB", "free"):
        assert part in done.splitlines()[2]
        assert sum(part in line for line in shown) == 1
    assert "RoPE scaling factor 32 by override" in shown
    assert len(done.splitlines()) == 5  # the kernels, the model, its parts, statistics, seconds


def test_what_cannot_fit_is_refused_and_what_is_only_slow_is_warned_of(
    run: Run, alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = (alphabet_model / "consolidated.00.pth").stat().st_size
    needed = forecast_memory(alphabet_model, 64, 64).needed
    flags = ("-m", alphabet_model, "-c", "64", "-p", "x", "-q")
    for free, code, word in (
        (needed - 1, 4, b"error: memory: expected at most"),
        (mapped + needed - 1, 0, b"warning: memory: "),
        (mapped + needed, 0, b""),
    ):
        monkeypatch.setattr("src.memory.available_memory", lambda free=free: free)
        done = run(*flags)
        assert done.returncode == code
        assert done.stderr.startswith(word)
        assert done.stderr.count(b"\n") == (1 if word else 0)
        assert done.stdout == (b"" if code else b"abcdefghijklmnopqrstuvwxyz\n")


def test_the_context_that_is_said_to_fit_runs_and_one_position_more_is_refused(
    run: Run, alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = forecast_memory(alphabet_model, 4000, 64).needed
    monkeypatch.setattr("src.memory.available_memory", lambda: needed + 12345)
    flags = ("-m", alphabet_model, "-p", "x", "-q", "-c")
    refused = run(*flags, "8000")
    assert refused.returncode == 4
    fitting = int(refused.stderr.split(b"a context of ")[1].split()[0])
    assert 4000 <= fitting < 8000
    assert run(*flags, str(fitting)).stdout == b"abcdefghijklmnopqrstuvwxyz\n"
    again = run(*flags, str(fitting + 1))
    assert again.returncode == 4
    assert again.stderr.endswith(f"; a context of {fitting} would fit\n".encode())
