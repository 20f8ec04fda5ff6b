"""The sampling settings recommended by a model's files.

These settings only replace defaults, so an unusable value is ignored, whereas an invalid
hyperparameter is an error.

Source: transformers, `generation/configuration_utils.py`; llama.cpp,
`src/llama-arch.cpp`.
"""

import math
from collections.abc import Mapping

from ..sampling_steps import STEPS
from .params import Rule, integer_in, number_in

GENERATION_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}
"""A mapping from the `generation_config.json` key to the name in `SamplingArgs`."""

GGUF_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
}
"""A mapping from the GGUF key to the name in `SamplingArgs`."""

_MOST = 1e6


def _rule(name: str) -> Rule:
    step = STEPS[name]
    if step.is_whole:
        return integer_in(int(step.low), int(_MOST))
    low = math.nextafter(step.low, math.inf) if step.is_low_excluded else step.low
    return number_in(low, min(step.high, _MOST))


_RULES: Mapping[str, Rule] = {name: _rule(name) for name in GENERATION_KEYS.values()}
# Significant digits of a float32, because a GGUF file has 0.949999988 instead of 0.95.
_DIGITS = 7


def sampling_values(
    values: Mapping[str, object], names: Mapping[str, str]
) -> dict[str, float]:
    """Return the usable sampling settings in a file.

    Args:
        values: The file's keys and values, which need not be validated. If `do_sample` in
            `generation_config.json` is false, no setting is used, as in transformers.
        names: A mapping from the key of a setting to its name in `SamplingArgs`.

    Returns:
        The usable values by their names in `SamplingArgs`.
    """
    if values.get("do_sample") is False:
        return {}
    settings = {name: values[key] for key, name in names.items() if key in values}
    usable = {name: value for name, value in settings.items() if _RULES[name][1](value)}
    return {name: _shortest(value) for name, value in usable.items()}


def _shortest(value: object) -> float:
    """Return an integer unchanged, and round any other number to float32 precision."""
    assert isinstance(value, int | float)
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
