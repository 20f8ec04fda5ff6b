"""Quantized weights in Hugging Face's files: several tensors that are one matrix, read and written.

NF4 as bitsandbytes writes it, for a weight W of n elements:

    W                                    U8 [ceil(n/2), 1]: two codes a byte, the first one above
    W.absmax                             F32 [ceil(n/64)], or U8 with double quantization
    W.quant_map                          F32 [16]: what the codes stand for
    W.nested_absmax, W.nested_quant_map  F32 [ceil(blocks/256)], F32 [256]: double quantization
    W.quant_state.bitsandbytes__nf4      U8: JSON with shape, block sizes and the nested offset

int8 as compressed-tensors writes it ("int-quantized", groups of 32):

    W                                    I8 [out, in]
    W_scale                              BF16 [out, in/32]

`quantization_config` of `config.json` says which of the two a model has; which matrices are
quantized is seen in the tensors themselves. A file may contradict itself, so every size is
compared with those that follow from the shape, in Python's integers, before a tensor is made. Codes
are used where they are in the file.

Source: transformers 5.23, `utils/quantization_config.py` (`BitsAndBytesConfig`); bitsandbytes 0.50,
`functional.py` (`QuantState.as_dict`), `utils.py` (`pack_dict_to_tensor`); compressed-tensors 0.12,
`compressors/quantized_compressors`, `quantization/quant_config.py`, `quantization/quant_args.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .. import ml
from ..untrusted import described, is_integer, parse_strict_json, shown
from .errors import CheckpointError, ParamsError, TensorRecordError, mismatch, some_of
from .params import LARGEST_SIZE, check_keys, is_one_of
from .safetensors import DTYPES, SafetensorsFile, TensorEntry
from .safetensors_writer import NewTensor

__all__ = [
    "NF4_STATE",
    "Found",
    "PackedWeight",
    "QuantizationConfig",
    "in_halves",
    "int8_config",
    "new_tensors",
    "nf4_config",
    "part_contents",
    "read_quantization",
    "take_packed",
]

Located = tuple[SafetensorsFile, TensorEntry]
Found = dict[str, Located]

NF4_STATE = ".quant_state.bitsandbytes__nf4"

_STATE = ".quant_state.bitsandbytes__"
_INT8_SCALE = "_scale"
_MOST_STATE_BYTES = 4096
_NESTED_BLOCK = 256
_NESTED_CODES = 256
_NF4_LEVELS = 16
_GROUP = ml.int8_block.block_size
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# What each key of `quantization_config` may be; None stands for any value. Codes of bitsandbytes
# are multiplied in the dtype of the activations here, whatever dtype the file names for that, and
# thresholds belong to 8 bits.
_Accepted = Mapping[str, tuple[object, ...] | None]
_NF4_VALUES: _Accepted = {
    "quant_method": ("bitsandbytes",),
    "load_in_4bit": (True,),
    "_load_in_4bit": (True,),
    "load_in_8bit": (False,),
    "_load_in_8bit": (False,),
    "bnb_4bit_quant_type": ("nf4",),
    "bnb_4bit_use_double_quant": (False, True),
    "bnb_4bit_compute_dtype": ("float32", "bfloat16", "float16"),
    "bnb_4bit_quant_storage": ("uint8", "int8", "bfloat16", "float16", "float32", "float64"),
    "llm_int8_enable_fp32_cpu_offload": None,
    "llm_int8_has_fp16_weight": None,
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": None,
}
_INT8_VALUES: _Accepted = {
    "quant_method": ("compressed-tensors",),
    "format": ("int-quantized",),
    "quantization_status": ("compressed",),
    "kv_cache_scheme": (None, {}),
    "sparsity_config": (None, {}),
    "transform_config": (None, {}),
    "global_compression_ratio": None,
    "version": None,
    "ignore": None,
    "config_groups": None,
}
_GROUP_VALUES: _Accepted = {
    "targets": (["Linear"],),
    "weights": None,
    "input_activations": (None,),
    "output_activations": (None,),
    "format": (None, "int-quantized"),
}
_WEIGHTS_VALUES: _Accepted = {
    "num_bits": (8,),
    "type": ("int",),
    "symmetric": (True,),
    "strategy": ("group",),
    "group_size": (_GROUP,),
    "dynamic": (False,),
    "actorder": (None, False),
    "block_structure": (None,),
    "observer": None,
    "observer_kwargs": None,
    "scale_dtype": None,
    "zp_dtype": None,
}


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """How the quantized weights of a model's files are stored.

    Args:
        kind: "nf4" or "int8".
        description: The same for people, with the name of the library whose format it is.
    """

    kind: Literal["nf4", "int8"]
    description: str


def read_quantization(label: str, config: Mapping[str, object]) -> QuantizationConfig | None:
    """Check `quantization_config`; None where there is none.

    Args:
        label: What to call the file in errors.
        config: The keys of the file.

    Raises:
        ParamsError: A kind of quantization that is not read, or a key that nobody knows.
    """
    value = config.get("quantization_config")
    if value is None or value == {}:
        return None
    label = f"{label}: quantization_config"
    found = _checked_object(label, value)
    method = found.get("quant_method")
    if method == "bitsandbytes":
        _check_accepted(label, found, _NF4_VALUES, ("load_in_4bit", "bnb_4bit_quant_type"))
        return QuantizationConfig("nf4", "nf4 of bitsandbytes")
    if method != "compressed-tensors":
        rule = "'bitsandbytes' or 'compressed-tensors'"
        got = f"{described(method)}, which is not supported"
        raise ParamsError(mismatch(label, "quant_method", rule, got))
    _check_accepted(label, found, _INT8_VALUES, ("format", "config_groups"))
    label += ": config_groups"
    groups = _checked_object(label, found["config_groups"])
    if len(groups) != 1:
        raise ParamsError(mismatch(label, "number of groups", 1, len(groups)))
    group = _checked_object(label, next(iter(groups.values())))
    _check_accepted(label, group, _GROUP_VALUES, ("targets", "weights"))
    label += ": weights"
    needed = ("num_bits", "type", "symmetric", "strategy", "group_size")
    _check_accepted(label, _checked_object(label, group["weights"]), _WEIGHTS_VALUES, needed)
    return QuantizationConfig("int8", "int8 in groups of 32, compressed-tensors")


def _checked_object(label: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ParamsError(mismatch(label, "content", "an object", described(value)))
    return value


def _check_accepted(
    label: str, found: Mapping[str, object], values: _Accepted, needed: tuple[str, ...]
) -> None:
    """Compare keys and values with a table."""
    check_keys(label, found, values, needed)
    for key, value in found.items():
        accepted = values[key]
        if accepted is not None and not is_one_of(value, accepted):
            rule = " or ".join(map(str, accepted))
            got = f"{described(value)}, which is not supported"
            raise ParamsError(mismatch(label, shown(key), rule, got))


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantized matrix whose parts were found and fit together.

    Args:
        shape: Of the matrix.
        parts: The tensors that it is made of.
        make: Makes the matrix, of a name.
    """

    shape: tuple[int, ...]
    parts: tuple[Located, ...]
    make: Callable[[str], ml.QuantizedTensor]


def take_packed(found: Found, kind: str) -> dict[str, PackedWeight]:
    """Take the parts of quantized weights out of the tensors of a model.

    Args:
        found: The tensors by name; only plain ones are left in it.
        kind: "nf4" or "int8".

    Returns:
        The quantized weights by name.

    Raises:
        CheckpointError: A part that is missing, or that does not fit the others.
    """
    packed = {}
    if kind == "nf4":
        for key in [name for name in found if _STATE in name]:
            name, _, variant = key.partition(_STATE)
            if variant != "nf4":
                raise _refused(found[key][0], key, "quantization to nf4", shown(variant))
            packed[name] = _nf4(name, _take_nf4(found, name))
    else:
        for name in [name for name, (_, entry) in found.items() if _is_int8(name, entry, found)]:
            packed[name] = _int8(name, found)
    return packed


def _refused(source: SafetensorsFile, name: str, rule: object, got: object) -> CheckpointError:
    return TensorRecordError(mismatch(source.file.label, f"tensor {shown(name)}", rule, got))


def _expect(name: str, place: Located, dtype: str, count: int) -> None:
    source, entry = place
    if (entry.dtype, math.prod(entry.shape)) != (dtype, count):
        got = f"{entry.dtype} {list(entry.shape)}"
        raise _refused(source, name, f"{count} elements of {dtype}", got)


def _values(place: Located) -> ml.Tensor:
    source, entry = place
    return source.tensor(entry, entry.name)


def _take_nf4(found: Found, name: str) -> dict[str, Located]:
    """Take all parts of a weight by the last part of their names; `codes` is the weight itself."""
    suffixes = {"state": NF4_STATE, "codes": "", "absmax": ".absmax", "quant_map": ".quant_map"}
    nested = {"nested_absmax": ".nested_absmax", "nested_quant_map": ".nested_quant_map"}
    if any(f"{name}{suffix}" in found for suffix in nested.values()):
        suffixes |= nested
    missing = [full for suffix in suffixes.values() if (full := f"{name}{suffix}") not in found]
    if missing:
        source = found[f"{name}{NF4_STATE}"][0]
        raise _refused(source, name, "all parts of nf4", f"without {some_of(missing)}")
    return {part: found.pop(f"{name}{suffix}") for part, suffix in suffixes.items()}


def _nf4(name: str, parts: Mapping[str, Located]) -> PackedWeight:
    """Check the parts of an NF4 weight against its shape, and each other."""
    is_nested = "nested_absmax" in parts
    shape, offset = _state(f"{name}{NF4_STATE}", parts["state"], is_nested)
    size = math.prod(shape)
    blocks = -(-size // ml.nf4.block_size)
    source, entry = parts["codes"]
    nbytes = -(-size // ml.nf4.codes_per_item)
    if entry.stop - entry.start != nbytes:
        got = f"{entry.stop - entry.start} bytes"
        raise _refused(source, name, f"{nbytes} bytes of codes", got)
    # They are bytes, whatever dtype they are stored in.
    codes = source, replace(entry, dtype="U8", shape=(nbytes,))
    _expect(f"{name}.absmax", parts["absmax"], "U8" if is_nested else "F32", blocks)
    _expect(f"{name}.quant_map", parts["quant_map"], "F32", _NF4_LEVELS)
    if not np.array_equal(_values(parts["quant_map"]).numpy().reshape(-1), ml.nf4_code().numpy()):
        raise _refused(source, f"{name}.quant_map", "the 16 levels of nf4", "others")
    if is_nested:
        counts = {"nested_absmax": -(-blocks // _NESTED_BLOCK), "nested_quant_map": _NESTED_CODES}
        for key, count in counts.items():
            _expect(f"{name}.{key}", parts[key], "F32", count)
            if not np.isfinite(_values(parts[key]).numpy()).all():
                raise _refused(parts[key][0], f"{name}.{key}", "finite numbers", "others")

    def make(ours: str) -> ml.QuantizedTensor:
        nested = None
        if is_nested:
            absmax, code = (_values(parts[f"nested_{key}"]) for key in ("absmax", "quant_map"))
            nested = ml.NestedScales(absmax, code, offset)
        scales = _values(parts["absmax"])
        return ml.QuantizedTensor(ml.nf4, shape, _values(codes), scales, nested, ours)

    kept = tuple(place for part, place in parts.items() if part not in ("state", "quant_map"))
    return PackedWeight(shape, kept, make)


def _state(name: str, place: Located, is_nested: bool) -> tuple[tuple[int, int], float]:
    """Read and check the JSON of `quant_state`; return the shape and the nested offset."""
    source, entry = place
    length = entry.stop - entry.start
    if entry.dtype != "U8" or length > _MOST_STATE_BYTES:
        rule = f"at most {_MOST_STATE_BYTES} bytes of U8"
        raise _refused(source, name, rule, f"{length} bytes of {entry.dtype}")
    label = f"{source.file.label}: tensor {shown(name)}"
    try:
        value = parse_strict_json(source.file.bytes_at(entry.start, entry.stop))
    except ValueError as error:
        raise TensorRecordError(f"{label}: content: {error}") from None
    expected: dict[str, object] = {"quant_type": "nf4", "blocksize": ml.nf4.block_size}
    keys = {*expected, "dtype", "shape"}
    if is_nested:
        expected |= {"nested_blocksize": _NESTED_BLOCK, "nested_dtype": "float32"}
        keys |= {*expected, "nested_offset"}
    if not isinstance(value, dict) or value.keys() != keys:
        got = some_of(value) if isinstance(value, dict) else described(value)
        raise _refused(source, name, ", ".join(sorted(keys)), got)
    for key, wanted in expected.items():
        if type(value[key]) is not type(wanted) or value[key] != wanted:
            raise TensorRecordError(mismatch(label, key, wanted, described(value[key])))
    shape = value["shape"]
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(is_integer(size, 1, LARGEST_SIZE) for size in shape)
    ):
        raise TensorRecordError(mismatch(label, "shape", "two sizes", described(shape)))
    offset = value["nested_offset"] if is_nested else 0.0
    # float32 is what the kernels take; a number beyond it would become infinite there.
    if type(offset) not in (int, float) or not abs(offset) <= float(np.finfo(np.float32).max):
        rule, got = "a float32 number", described(offset)
        raise TensorRecordError(mismatch(label, "nested_offset", rule, got))
    return (shape[0], shape[1]), float(offset)


def _is_int8(name: str, entry: TensorEntry, found: Found) -> bool:
    is_code = entry.dtype == "I8" and name.endswith(".weight")
    return is_code or f"{name}{_INT8_SCALE}" in found


def _int8(name: str, found: Found) -> PackedWeight:
    """Check codes and scales of an int8 weight against each other."""
    scale_name = f"{name}{_INT8_SCALE}"
    codes_place = source, entry = found.pop(name)
    if scale_name not in found:
        raise _refused(source, name, f"{shown(scale_name)} beside it", "none")
    scale_place = found.pop(scale_name)
    if entry.dtype != "I8" or len(entry.shape) != 2 or entry.shape[1] % _GROUP:
        rule = f"I8 [out, in], in a multiple of {_GROUP}"
        raise _refused(source, name, rule, f"{entry.dtype} {list(entry.shape)}")
    scale = scale_place[1]
    groups = (entry.shape[0], entry.shape[1] // _GROUP)
    if scale.dtype != "BF16" or scale.shape != groups:
        got = f"{scale.dtype} {list(scale.shape)}"
        raise _refused(scale_place[0], scale_name, f"BF16 {list(groups)}", got)

    def make(ours: str) -> ml.QuantizedTensor:
        codes, scales = _values(codes_place), _values(scale_place)
        return ml.QuantizedTensor(ml.int8_block, entry.shape, codes, scales, name=ours)

    return PackedWeight(entry.shape, (codes_place, scale_place), make)


def nf4_config() -> dict[str, object]:
    """Write what transformers needs to read NF4 weights, all of them, with bitsandbytes."""
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": [],
    }


def int8_config() -> dict[str, object]:
    """Write what compressed-tensors needs to read int8 codes in groups of 32."""
    weights = {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "group",
        "group_size": _GROUP, "dynamic": False,
    }  # fmt: skip
    group = {
        "targets": ["Linear"], "weights": weights,
        "input_activations": None, "output_activations": None, "format": "int-quantized",
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [],
    }


def new_tensors(
    name: str, shape: tuple[int, ...], dtype: ml.BlockDType | None, origin: ml.DType
) -> list[NewTensor]:
    """Describe the tensors of a weight before it is quantized.

    Args:
        name: Of the weight in the file.
        shape: [out, in], or any of a weight that stays plain.
        dtype: What it becomes, or None; for int8_block, `in` is a multiple of 32.
        origin: What it is.
    """
    if dtype is None:
        return [NewTensor(name, _DTYPE_NAMES[origin], shape)]
    size = math.prod(shape)
    blocks = -(-size // dtype.block_size)
    if dtype is ml.int8_block:
        groups = (shape[0], shape[1] // _GROUP)
        return [NewTensor(name, "I8", shape), NewTensor(f"{name}{_INT8_SCALE}", "BF16", groups)]
    return [
        NewTensor(name, "U8", (-(-size // dtype.codes_per_item), 1)),
        NewTensor(f"{name}.absmax", "F32", (blocks,)),
        NewTensor(f"{name}.quant_map", "F32", (_NF4_LEVELS,)),
        NewTensor(f"{name}{NF4_STATE}", "U8", (len(_state_text(shape, origin)),)),
    ]


def part_contents(
    name: str, weight: ml.Weight, origin: ml.DType
) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield the name and the bytes of each tensor that `new_tensors` described.

    Args:
        name: Of the weight in the file.
        weight: Plain, or quantized without nested scales.
        origin: What it was made of.
    """
    if isinstance(weight, ml.Tensor):
        yield name, _bytes_of(weight)
        return
    yield name, _bytes_of(weight.codes)
    if weight.dtype is ml.int8_block:
        yield f"{name}{_INT8_SCALE}", _bytes_of(weight.scales)
        return
    yield f"{name}.absmax", _bytes_of(weight.scales)
    yield f"{name}.quant_map", _bytes_of(ml.nf4_code())
    yield f"{name}{NF4_STATE}", _state_text(weight.shape, origin)


def in_halves(weight: ml.Tensor, head_dim: int) -> ml.Tensor:
    """Put the even rows of each head before the odd ones: from Meta's pairs to halves."""
    rows = weight.numpy()
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    halves = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
    return ml.Tensor.from_numpy(halves, name=weight.name)


def _bytes_of(tensor: ml.Tensor) -> memoryview:
    """Return the bytes of a tensor without a copy, or those of a contiguous copy."""
    return tensor.contiguous().bits().reshape(-1).view(np.uint8).data


def _state_text(shape: tuple[int, ...], origin: ml.DType) -> bytes:
    state = {"quant_type": "nf4", "blocksize": ml.nf4.block_size, "dtype": origin.name}
    return json.dumps({**state, "shape": list(shape)}).encode("ascii")
