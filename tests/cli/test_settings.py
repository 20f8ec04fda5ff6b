import re

import pytest

from src.cli.arguments import build_parser, parse_arguments
from src.cli.errors import UsageError
from src.cli.settings import SETTING_NAMES, Settings
from src.inference import SamplingArgs, SamplingError

DEFAULTS = Settings(SamplingArgs())


def test_without_flags_the_settings_are_the_defaults() -> None:
    assert Settings.from_options(parse_arguments([])) == DEFAULTS


def test_flags_become_settings() -> None:
    flags = ["--temperature=0", "--top-k=3", "--seed=4", "-n5", "--stop=a", "--stop=b"]
    assert Settings.from_options(parse_arguments(flags)) == Settings(
        SamplingArgs(temperature=0.0, top_k=3, seed=4), 5, ("a", "b")
    )


def test_help_states_the_defaults_of_the_engine() -> None:
    text = re.sub(r"\s+", " ", build_parser().format_help())
    stated = {
        name: text.split(f"--{name.replace('_', '-')} ")[1].split("(default: ")[1].split(")")[0]
        for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")
    }
    assert {name: float(v.split(",")[0]) for name, v in stated.items()} == {
        name: float(getattr(DEFAULTS.sampling, name)) for name in stated
    }


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("temperature", "0", "temperature    0.0"),
        ("top-k", "7", "top_k          7"),
        ("seed", "9", "seed           9"),
        ("max_tokens", "12", "max_tokens     12"),
        ("stop", "the end", "stop           'the end'"),
    ],
)
def test_a_setting_is_changed_and_shown(name: str, text: str, lines: str) -> None:
    changed = DEFAULTS.changed(name, text)
    assert lines in changed.lines()
    assert len(changed.lines()) == len(SETTING_NAMES)
    assert sum(a != b for a, b in zip(changed.lines(), DEFAULTS.lines(), strict=True)) == 1


@pytest.mark.parametrize("name", ["seed", "max_tokens", "stop"])
def test_none_takes_a_setting_back(name: str) -> None:
    assert DEFAULTS.changed(name, "3").changed(name, "none") == DEFAULTS


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("temp", "temperature"), ("num_predict", "max_tokens"), ("max_new_tokens", "max_tokens"),
        ("max-new-tokens", "max_tokens"), ("repetition_penalty", "repeat_penalty"),
    ],
)  # fmt: skip
def test_a_setting_may_have_its_name_in_other_programs(theirs: str, ours: str) -> None:
    assert DEFAULTS.changed(theirs, "3") == DEFAULTS.changed(ours, "3") != DEFAULTS
    assert DEFAULTS.line(theirs) == DEFAULTS.line(ours)


@pytest.mark.parametrize(
    ("name", "text", "error", "reason"),
    [
        ("temperature", "warm", UsageError, "temperature: must be a number: got warm"),
        ("temperature", "-1", SamplingError, "temperature"),
        ("top_p", "2", SamplingError, "top_p"),
        ("top_k", "1.5", UsageError, "top_k: must be a whole number"),
        ("max_tokens", "0", UsageError, "max_tokens: must be at least 1"),
        ("temprature", "0", UsageError, "no setting temprature: expected one of temperature"),
    ],
)
def test_a_wrong_setting_is_refused(
    name: str, text: str, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        DEFAULTS.changed(name, text)
