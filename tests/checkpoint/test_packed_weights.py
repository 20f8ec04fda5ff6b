"""Quantized weights of other tools: what fits is read in place,
what does not is refused.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.checkpoint.packed_weights import INT8_CONFIG, NF4_CONFIG, take_packed
from src.checkpoint.safetensors import SafetensorsFile
from tests.checkpoint.refusals import refusal_of
from tests.support.hugging_face_writer import (
    CONFIG,
    random_arrays,
    write_hugging_face_directory,
)
from tests.support.open_directory import open_hugging_face
from tests.support.pth_writer import whole

Arrays = dict[str, Any]
# All sizes differ; rows are multiples of 32 for int8.
SMALL = CONFIG | {
    "hidden_size": 96, "head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1,
    "intermediate_size": 160, "num_hidden_layers": 1,
}  # fmt: skip
WEIGHT = "model.layers.0.self_attn.k_proj.weight"
OURS = "layers.0.attention.wk.weight"
STATE = f"{WEIGHT}.quant_state.bitsandbytes__nf4"


def plain_arrays(config: dict[str, Any] = SMALL) -> Arrays:
    return {name: whole(lazy) for name, lazy in random_arrays(config).items()}


def nf4_parts(name: str, array: "np.ndarray[Any, Any]", double: bool) -> Arrays:
    """Write a matrix as bitsandbytes does, independently of how the library writes it."""
    weight = ml.quantize(ml.Tensor.from_numpy(array), ml.nf4, double)
    state: Any = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16"}
    state["shape"] = list(array.shape)
    parts: Arrays = {
        name: weight.codes.numpy().reshape(-1, 1),
        f"{name}.absmax": weight.scales.numpy(),
        f"{name}.quant_map": ml.nf4_code().numpy(),
    }
    if weight.nested is not None:
        nested = weight.nested
        state |= {"nested_blocksize": 256, "nested_dtype": "float32"}
        state["nested_offset"] = nested.offset
        parts[f"{name}.nested_absmax"] = nested.absmax.numpy()
        parts[f"{name}.nested_quant_map"] = nested.code.numpy()
    return parts | {f"{name}.quant_state.bitsandbytes__nf4": packed(state)}


def packed(state: object) -> "np.ndarray[Any, Any]":
    return np.frombuffer(json.dumps(state).encode(), np.uint8)


def int8_parts(name: str, array: "np.ndarray[Any, Any]") -> Arrays:
    weight = ml.quantize(ml.Tensor.from_numpy(array), ml.int8_block)
    scales = weight.scales.numpy().reshape(array.shape[0], -1)
    return {name: weight.codes.numpy().reshape(array.shape), f"{name}_scale": scales}


def quantized(kind: str, config: dict[str, Any] = SMALL) -> Arrays:
    result: Arrays = {}
    for name, array in plain_arrays(config).items():
        if "proj" not in name:
            result[name] = array
        elif kind == "int8":
            result |= int8_parts(name, array)
        else:
            result |= nf4_parts(name, array, kind == "nf4 double")
    return result


def config_for(kind: str, **changes: object) -> dict[str, Any]:
    if kind == "int8":
        return SMALL | {
            "quantization_config": INT8_CONFIG | {"ignore": ["lm_head"]} | changes
        }
    double = {"bnb_4bit_use_double_quant": kind == "nf4 double"}
    config = NF4_CONFIG | double | {"llm_int8_skip_modules": ["lm_head"]}
    return SMALL | {"quantization_config": config | changes}


def opened(
    directory: Path, config: dict[str, Any], arrays: Arrays, shards: int = 1
) -> Mapping[str, Any]:
    """Write a directory and return its tensors."""
    write_hugging_face_directory(directory, config, arrays, shards=shards)
    checkpoint = open_hugging_face(directory)
    assert checkpoint.copied == ()
    return checkpoint.tensors


def refused(directory: Path, config: dict[str, Any], arrays: Arrays, words: str) -> str:
    return refusal_of(opened, directory, config, arrays, match=words)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["nf4", "nf4 double", "int8"])
def test_the_weights_are_those_that_were_quantized(
    tmp_path: Path, kind: str, shards: int
) -> None:
    tensors = opened(tmp_path, config_for(kind), quantized(kind), shards)
    plain = plain_arrays()[WEIGHT]
    dtype = ml.int8_block if kind == "int8" else ml.nf4
    exact = ml.quantize(
        ml.Tensor.from_numpy(plain), dtype, kind == "nf4 double"
    ).dequantize()
    np.testing.assert_array_equal(tensors[OURS].dequantize().numpy(), exact.numpy())
    assert tensors["output.weight"].dtype is ml.bfloat16


def test_codes_may_be_stored_in_another_dtype_and_skipped_modules_stay_plain(
    tmp_path: Path,
) -> None:
    skipped = WEIGHT.replace("k_proj", "v_proj")
    arrays = {n: a for n, a in quantized("nf4").items() if not n.startswith(skipped)}
    codes = arrays[WEIGHT]
    arrays[WEIGHT] = codes.reshape(-1).view(ml_dtypes.bfloat16).reshape(-1, 1)
    tensors = opened(
        tmp_path, config_for("nf4"), arrays | {skipped: plain_arrays()[skipped]}
    )
    np.testing.assert_array_equal(tensors[OURS].codes.numpy().ravel(), codes.ravel())
    assert tensors[OURS.replace("wk", "wv")].dtype is ml.bfloat16


def test_only_the_columns_of_int8_are_grouped_and_not_its_rows(tmp_path: Path) -> None:
    sizes = {"head_dim": 8, "num_attention_heads": 12, "num_key_value_heads": 3}
    arrays = quantized("int8", SMALL | sizes)
    weight = opened(tmp_path, config_for("int8") | sizes, arrays)[OURS]
    assert weight.shape == (24, 96)
    np.testing.assert_array_equal(weight.codes.numpy(), arrays[WEIGHT])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_float32_is_an_offset(tmp_path: Path, sign: int) -> None:
    arrays = quantized("nf4 double")
    changed_state(nested_offset=sign * float(np.finfo(np.float32).max))(arrays)
    assert opened(tmp_path, config_for("nf4 double"), arrays)


def with_state(state: object, kind: str = "nf4") -> Callable[[Arrays], None]:
    """Put another state in, as bytes or as what they are the JSON of."""
    content = state if isinstance(state, bytes) else json.dumps(state).encode()
    name = f"{WEIGHT}.quant_state.bitsandbytes__{kind}"
    return lambda arrays: arrays.update({name: np.frombuffer(content, np.uint8)})


def changed_state(**changes: object) -> Callable[[Arrays], None]:
    return lambda arrays: with_state(json.loads(arrays[STATE].tobytes()) | changes)(
        arrays
    )


def replaced(suffix: str, array: "np.ndarray[Any, Any]") -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({f"{WEIGHT}{suffix}": array})


def removed(suffix: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__delitem__(f"{WEIGHT}{suffix}")


F32 = np.float32
BAD_NF4: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "a state that is no JSON": (with_state(b"{shape"), "content"),
    "a state nested without end": (with_state(b"[" * 4000), "content"),
    "a state too long": (with_state(b" " * 5000), "at most 4096 bytes"),
    "a state that is a list": (with_state([]), "blocksize"),
    "a shape that is huge": (changed_state(shape=[1 << 40, 1 << 40]), "two sizes"),
    "a shape beyond 2^24": (changed_state(shape=[1, (1 << 24) + 1]), "two sizes"),
    "a shape up to 2^24": (changed_state(shape=[1, 1 << 24]), "elements of U8"),
    "a shape of true": (changed_state(shape=[True, 3072]), "two sizes"),
    "a shape of fractions": (changed_state(shape=[32.0, 96.0]), "two sizes"),
    "a shape that swaps": (changed_state(shape=[96, 32]), "instead of"),
    "a shape that is larger": (changed_state(shape=[33, 96]), "elements of U8"),
    "another block size": (changed_state(blocksize=128), "blocksize: expected 64"),
    "a block size of 64.0": (
        changed_state(blocksize=64.0),
        "blocksize: expected 64, got 64.0",
    ),
    "another type": (changed_state(quant_type="fp4"), "quant_type: expected 'nf4'"),
    "an unknown key": (changed_state(zero_point=1), "zero_point"),
    "no absmax": (removed(".absmax"), "all parts of nf4"),
    "no levels": (removed(".quant_map"), "all parts of nf4"),
    "no codes": (removed(""), "all parts of nf4"),
    "half of the codes": (
        replaced("", np.zeros((768, 1), np.uint8)),
        "1536 elements of U8",
    ),
    "an absmax too few": (replaced(".absmax", np.ones(47, F32)), "48 elements of F32"),
    "an absmax of bytes": (
        replaced(".absmax", np.ones(48, np.uint8)),
        "48 elements of F32",
    ),
    "other levels": (
        replaced(".quant_map", np.linspace(-1, 1, 16).astype(F32)),
        "16 levels",
    ),
    "fp4": (with_state({}, "fp4"), "also .*__fp4"),
    "sizes nested deeply": (changed_state(shape=[[[]], 96]), "two sizes, got a list"),
}
BAD_DOUBLE: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "an offset that is infinite": (
        lambda arrays: arrays.update(
            {
                STATE: np.frombuffer(
                    arrays[STATE]
                    .tobytes()
                    .replace(b'"nested_offset": ', b'"nested_offset": 1e999+')[:-1]
                    + b"}",
                    np.uint8,
                )
            }
        ),
        "content",
    ),
    "an offset beyond float32": (
        changed_state(nested_offset=1e300),
        "nested_offset: expected a",
    ),
    "an offset of text": (changed_state(nested_offset="0"), "nested_offset: expected a"),
    "another nested block": (
        changed_state(nested_blocksize=128),
        "nested_blocksize: expected 256",
    ),
    "a nested block of a fraction": (
        changed_state(nested_blocksize=256.0),
        "nested_blocksize: expected 256, got 256.0",
    ),
    "another nested dtype": (changed_state(nested_dtype="float16"), "nested_dtype"),
    "no nested map": (removed(".nested_quant_map"), "all parts of nf4"),
    "a nested map too short": (
        replaced(".nested_quant_map", np.ones(255, F32)),
        "256 elements",
    ),
    "a nested map of NaN": (
        replaced(".nested_quant_map", np.full(256, np.nan, F32)),
        "finite",
    ),
    "nested scales too many": (
        replaced(".nested_absmax", np.ones(2, F32)),
        "1 elements of F32",
    ),
    "nested scales of NaN": (
        replaced(".nested_absmax", np.full(1, np.nan, F32)),
        "finite",
    ),
    "an absmax of floats": (replaced(".absmax", np.ones(48, F32)), "48 elements of U8"),
}
BAD_INT8: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "no scales": (removed("_scale"), "_scale' in the file, got none"),
    "scales of float32": (replaced("_scale", np.ones((32, 3), F32)), r"BF16 \[32, 3\]"),
    "codes of another shape": (
        replaced("", np.zeros((96, 32), np.int8)),
        r"BF16 \[96, 1\]",
    ),
    "columns that leave a group open": (
        replaced("", np.zeros((32, 80), np.int8)),
        r"in a multiple of 32, got I8 \[32, 80\]",
    ),
    "codes without sign": (replaced("", np.zeros((32, 96), np.uint8)), r"I8 \[out, in\]"),
    "zero points": (
        replaced("_zero_point", np.zeros((32, 3), np.int8)),
        "also .*zero_point",
    ),
}
BAD = {
    **{f"nf4: {name}": ("nf4", *bad) for name, bad in BAD_NF4.items()},
    **{f"nf4 double: {name}": ("nf4 double", *bad) for name, bad in BAD_DOUBLE.items()},
    **{f"int8: {name}": ("int8", *bad) for name, bad in BAD_INT8.items()},
}


@pytest.mark.parametrize("name", BAD)
def test_a_part_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, name: str
) -> None:
    kind, change, word = BAD[name]
    arrays = quantized(kind)
    opened(tmp_path, config_for(kind), arrays)  # the valid twin
    change(arrays)
    started = time.process_time()
    text = refused(tmp_path, config_for(kind), arrays, word)
    assert time.process_time() - started < 1
    assert "\n" not in text
    assert len(text) < 600


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_part_of_a_weight_that_has_parts_itself_is_no_second_weight(
    tmp_path: Path, kind: str
) -> None:
    arrays = quantized(kind)
    name = f"{WEIGHT}_scale"
    further: Arrays = {f"{name}_scale": arrays.get(name)}
    if kind == "nf4":
        name = STATE
        levels = ml.nf4_code().numpy()
        size = 2 * arrays[STATE].size
        further = {
            f"{name}.absmax": np.ones(-(-size // 64), F32),
            f"{name}.quant_map": levels,
        }
        state = {
            "quant_type": "nf4",
            "blocksize": 64,
            "dtype": "bfloat16",
            "shape": [1, size],
        }
        further[f"{name}.quant_state.bitsandbytes__nf4"] = packed(state)
    write_hugging_face_directory(tmp_path, config_for(kind), arrays | further)
    entries = SafetensorsFile(tmp_path / "model.safetensors").entries
    for first in (
        WEIGHT,
        *further,
    ):  # the one whose parts are taken before those of the other
        found = {first: entries[first], **entries}
        with suppress(CheckpointError):  # else the rest of it is refused as unknown
            take_packed(found, kind)
            assert any(part.startswith(WEIGHT) for part in found)


REFUSED_CONFIGS: dict[str, tuple[object, str]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, "or 'mxfp4', got 'gptq'"),
    "no method": ({"bits": 4}, "got 'bits'"),
    "an object as method": ({"quant_method": {"a": 1}}, "an object"),
    "a text": ("nf4", "an object"),
    "8 bits of bitsandbytes": (
        {
            "quant_method": "bitsandbytes",
            "load_in_8bit": True,
            "load_in_4bit": False,
            "bnb_4bit_quant_type": "nf4",
        },
        "load_in_4bit: expected true, got false",
    ),
    "fp4": (NF4_CONFIG | {"bnb_4bit_quant_type": "fp4"}, "expected 'nf4', got 'fp4'"),
    "an unknown key": (NF4_CONFIG | {"new_key": 1}, "only known keys.*new_key"),
    "another format": (
        INT8_CONFIG | {"format": "pack-quantized"},
        "got 'pack-quantized'",
    ),
    "a key is missing": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        "without 'bnb_4bit_quant_type'",
    ),
    "a group of no keys": (
        INT8_CONFIG | {"config_groups": {"a": 1}},
        "object with one group",
    ),
    "weights of no keys": (
        INT8_CONFIG | {"config_groups": {"a": {"targets": ["Linear"], "weights": "all"}}},
        "weights: expected an object, got 'all'",
    ),
    "two groups": (
        INT8_CONFIG | {"config_groups": {"a": {}, "b": {}}},
        "object with one group",
    ),
    "no group": (INT8_CONFIG | {"config_groups": None}, "without 'config_groups'"),
}


def test_keys_that_transformers_writes_twice_and_an_empty_object_are_read(
    tmp_path: Path,
) -> None:
    arrays = quantized("nf4")
    twice = {"_load_in_4bit": True, "_load_in_8bit": False}
    opened(tmp_path, config_for("nf4", **twice), arrays)
    for wrong in ({"_load_in_4bit": False}, {"_load_in_8bit": True}):
        refused(tmp_path, config_for("nf4", **wrong), arrays, "expected")
    tensors = opened(tmp_path, SMALL | {"quantization_config": {}}, plain_arrays())
    assert tensors[OURS].dtype is ml.bfloat16


@pytest.mark.parametrize(("value", "word"), REFUSED_CONFIGS.values(), ids=REFUSED_CONFIGS)
def test_other_quantizations_are_refused_by_name(
    tmp_path: Path, value: object, word: str
) -> None:
    refused(tmp_path, SMALL | {"quantization_config": value}, plain_arrays(), word)
