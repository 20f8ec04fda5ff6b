"""`params.json`: every key is used, harmless, rejected or ignored; every value in its
range.
"""

import json
from pathlib import Path

import pytest

from src.checkpoint.params import (
    HARMLESS_KEYS,
    REJECTED_KEYS,
    USED_KEYS,
    ignored_params,
    read_params,
)
from tests.checkpoint.refusals import refusal_of

# As in Meta's files of these models.
LLAMA_3_1_8B = {
    "dim": 4096,
    "ffn_dim_multiplier": 1.3,
    "multiple_of": 1024,
    "n_heads": 32,
    "n_kv_heads": 8,
    "n_layers": 32,
    "norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
    "vocab_size": 128256,
}
LLAMA_2_7B = {
    "dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05,
    "vocab_size": -1,
}  # fmt: skip


def params_of(tmp_path: Path, params: object) -> dict[str, object]:
    path = tmp_path / "params.json"
    path.write_text(params if isinstance(params, str) else json.dumps(params))
    return read_params(path)


def refused(tmp_path: Path, params: object, words: str) -> str:
    return refusal_of(params_of, tmp_path, params, match=words)


NULLS = {"n_kv_heads": None, "ffn_dim_multiplier": None}
BUFFERS = sorted(HARMLESS_KEYS | {"max_seq_len"})


@pytest.mark.parametrize(
    "more", [{}, *({key: size} for key in BUFFERS for size in (None, 512))]
)
@pytest.mark.parametrize("params", [LLAMA_3_1_8B, LLAMA_2_7B | NULLS])
def test_published_files_are_read_as_they_are_also_with_sizes_of_buffers(
    tmp_path: Path, params: dict[str, object], more: dict[str, object]
) -> None:
    assert params_of(tmp_path, params | more) == params | more


def test_keys_that_the_reference_ignores_are_ignored_and_listed(tmp_path: Path) -> None:
    more = {"dimm": 3, "head_dim": 128, "hidden_dim": 14336, "quantization": {"x": 1}}
    params = params_of(tmp_path, LLAMA_2_7B | more)
    assert params == LLAMA_2_7B | more
    assert ignored_params(params) == tuple(more)
    assert ignored_params(params_of(tmp_path, LLAMA_3_1_8B)) == ()


@pytest.mark.parametrize("key", REJECTED_KEYS)
def test_keys_that_the_reference_has_and_we_lack_must_be_neutral(
    tmp_path: Path, key: str
) -> None:
    neutral: list[object] = [False, {}, []]
    if key == "model_type":
        neutral = ["transformer"]
    elif key.startswith("vision_") and key not in ("vision_args", "vision_model"):
        neutral = [-1]
    for value in (None, *neutral):
        assert ignored_params(params_of(tmp_path, LLAMA_2_7B | {key: value})) == ()
    for value in (1, 4096, True, "mamba", {"rank": 16}, [1]):
        refused(tmp_path, LLAMA_2_7B | {key: value}, f"{key}: expected")


@pytest.mark.parametrize("key", ["dim", "n_layers", "n_heads", "norm_eps"])
def test_a_missing_or_null_key_is_refused_by_name(tmp_path: Path, key: str) -> None:
    rest = {name: LLAMA_2_7B[name] for name in LLAMA_2_7B if name != key}
    for params in (rest, rest | {key: None}):
        refused(tmp_path, params, f"without '{key}'")


INTEGERS = ("dim", "n_layers", "n_heads", "n_kv_heads", "multiple_of", "max_seq_len")
BAD_INTEGERS = [0, -1, 1.0, 1.5, True, "8", [8], {"x": 8}, 10**9, 10**30]
BAD_VALUES = [
    *[(key, value) for key in INTEGERS for value in BAD_INTEGERS],
    *[("vocab_size", value) for value in (0, -2, 1.0, True, "x", 10**9)],
    *[("rope_theta", value) for value in (0, -1, "x", True, [], 1e300)],
    *[("norm_eps", value) for value in (-1e-5, 2, "x", False, None)],
    *[("ffn_dim_multiplier", value) for value in (0, -1, 1e9, "x", True)],
    *[("use_scaled_rope", value) for value in (0, 1, "true", [])],
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_value_out_of_range_is_refused_by_its_key(
    tmp_path: Path, key: str, value: object
) -> None:
    refused(tmp_path, LLAMA_3_1_8B | {key: value}, key)


# Each range by its ends, both of which belong to it, written out again.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys((*INTEGERS, "vocab_size"), (1, 1 << 24)),
    "n_layers": (1, 1024),
    "norm_eps": (0, 1),
    "rope_theta": (1, 1e12),
    "ffn_dim_multiplier": (1e-3, 1e3),
}


@pytest.mark.parametrize("key", RANGES)
def test_both_ends_of_a_range_belong_to_it(key: str) -> None:
    _, accepts = USED_KEYS[key]
    low, high = RANGES[key]
    assert accepts(low)
    assert accepts(high)
    step = 1 if isinstance(low, int) and high > 1 else 1e-6
    assert not accepts(low - step)
    assert not accepts(high + step)


def test_heads_must_divide(tmp_path: Path) -> None:
    rule = r"n_heads % n_kv_heads: expected 0, got 32 %"
    refused(tmp_path, LLAMA_3_1_8B | {"n_kv_heads": 5}, f"{rule} 5 = 2")
    refused(tmp_path, LLAMA_3_1_8B | {"n_kv_heads": 64}, f"{rule} 64 = 32")
    refused(
        tmp_path,
        LLAMA_2_7B | {"n_heads": 33},
        r"dim % n_heads: expected 0, got 4096 % 33 = 4",
    )


def test_a_file_beyond_64_kib_is_refused_unread(tmp_path: Path) -> None:
    refused(tmp_path, " " * 65537, "at most 65536 bytes")
    assert params_of(tmp_path, json.dumps(LLAMA_2_7B).ljust(65536))


def test_no_key_is_in_two_lists() -> None:
    assert not USED_KEYS.keys() & HARMLESS_KEYS
    assert not REJECTED_KEYS.keys() & (USED_KEYS.keys() | HARMLESS_KEYS)
