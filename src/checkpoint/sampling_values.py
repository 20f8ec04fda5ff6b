"""The sampling settings that the files of a model recommend.

These values only replace defaults. So an unusable value is left out, while a wrong
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
"""The keys of settings in `generation_config.json` -> our names."""

GGUF_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
}
"""The keys of settings in a GGUF file -> our names."""

_MOST = 1e6


def _rule(name: str) -> Rule:
    step = STEPS[name]
    if step.is_whole:
        return integer_in(int(step.low), int(_MOST))
    low = math.nextafter(step.low, math.inf) if step.is_low_excluded else step.low
    return number_in(low, min(step.high, _MOST))


_RULES: Mapping[str, Rule] = {name: _rule(name) for name in GENERATION_KEYS.values()}
_DIGITS = 7  # the digits of a float32: a GGUF file has 0.949999988 for 0.95


def sampling_values(
    values: Mapping[str, object], names: Mapping[str, str]
) -> dict[str, float]:
    """Return the usable settings among checked or unchecked values.

    Args:
        values: The values of a file by their keys. If `do_sample` of a
            `generation_config.json` turns sampling off, none is used, as in transformers.
        names: The keys of settings, with their names in `SamplingArgs`.
    """
    if values.get("do_sample") is False:
        return {}
    settings = {name: values[key] for key, name in names.items() if key in values}
    usable = {name: value for name, value in settings.items() if _RULES[name][1](value)}
    return {name: _shortest(value) for name, value in usable.items()}


def _shortest(value: object) -> float:
    """Return an integer unchanged, and a decimal number with the digits of a float32."""
    assert isinstance(value, int | float)
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
