"""The sampling that files recommend: values by our names,
and none that cannot be used.
"""

import pytest

from src.checkpoint.sampling_values import (
    GENERATION_KEYS,
    GGUF_SAMPLING_KEYS,
    sampling_values,
)

ALL = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.05,
}


def test_a_generation_configuration_has_the_names_of_transformers() -> None:
    values = {
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05,
        "repetition_penalty": 1.05, "eos_token_id": 2,
    }  # fmt: skip
    assert sampling_values(values, GENERATION_KEYS) == ALL
    del values["do_sample"]
    assert sampling_values(values, GENERATION_KEYS) == ALL


def test_a_gguf_file_has_the_names_of_llama_cpp_and_float32_values() -> None:
    values = {
        "general.sampling.temp": 0.6000000238418579,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.949999988079071,
        "general.sampling.min_p": 0.05000000074505806,
        "general.sampling.penalty_repeat": 1.0499999523162842,
        "general.sampling.mirostat": 1,
    }
    assert sampling_values(values, GGUF_SAMPLING_KEYS) == ALL


def test_values_that_transformers_ignores_are_no_settings() -> None:
    assert (
        sampling_values({"do_sample": False, "temperature": 0.6}, GENERATION_KEYS) == {}
    )


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("temperature", -0.1, 0), ("temperature", "0.6", 1.5), ("temperature", None, 0.1),
        ("temperature", float("inf"), 0.2), ("temperature", float("nan"), 0.2),
        ("top_k", -1, 0), ("top_k", 20.0, 20), ("top_k", True, 1), ("top_p", 1.1, 1),
        ("top_p", [0.9], 0.9), ("min_p", -1, 1.0), ("repetition_penalty", 0, 1),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_left_out(
    key: str, wrong: object, right: float
) -> None:
    name = GENERATION_KEYS[key]
    other = {"top_p": 0.5} if key != "top_p" else {"top_k": 5}
    assert sampling_values({key: wrong, **other}, GENERATION_KEYS) == other
    assert sampling_values({key: right, **other}, GENERATION_KEYS) == {
        name: right,
        **other,
    }
