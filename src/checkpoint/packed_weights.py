"""Quantized weights in Hugging Face's files: several tensors that are one matrix.

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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .. import ml
from ..untrusted import described, is_integer, parse_strict_json, shown, some_of
from .errors import CheckpointError, mismatch
from .params import LARGEST_SIZE, check_keys, is_one_of
from .safetensors import SafetensorsFile, TensorEntry

Located = tuple[SafetensorsFile, TensorEntry]
Found = dict[str, Located]

NF4_STATE = ".quant_state.bitsandbytes__nf4"

_STATE = ".quant_state.bitsandbytes__"
INT8_SCALE = "_scale"
_MOST_STATE_BYTES = 4096
_NESTED_BLOCK = 256
_NESTED_CODES = 256
NF4_LEVELS = 16
INT8_GROUP = ml.int8_block.block_size
_SUPPORTED = "nf4 of bitsandbytes or int8 of compressed-tensors"

# What each key of `quantization_config` may be; None stands for any value. Codes of bitsandbytes
# are multiplied in the dtype of the activations here, whatever dtype the file names for that, and
# thresholds belong to 8 bits.
_Accepted = Mapping[str, tuple[object, ...] | None]
_NF4_VALUES: _Accepted = {
    "quant_method": ("bitsandbytes",),
    **dict.fromkeys(("load_in_4bit", "_load_in_4bit"), (True,)),
    **dict.fromkeys(("load_in_8bit", "_load_in_8bit"), (False,)),
    "bnb_4bit_quant_type": ("nf4",),
    "bnb_4bit_use_double_quant": (False, True),
    "bnb_4bit_compute_dtype": ("float32", "bfloat16", "float16"),
    "bnb_4bit_quant_storage": ("uint8", "int8", "bfloat16", "float16", "float32", "float64"),
    **dict.fromkeys(("llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight")),
    **dict.fromkeys(("llm_int8_skip_modules", "llm_int8_threshold")),
}
_INT8_VALUES: _Accepted = {
    "quant_method": ("compressed-tensors",),
    "format": ("int-quantized",),
    "quantization_status": ("compressed",),
    **dict.fromkeys(("kv_cache_scheme", "sparsity_config", "transform_config"), (None, {})),
    **dict.fromkeys(("global_compression_ratio", "version", "ignore", "config_groups")),
}
_GROUP_VALUES: _Accepted = {
    "targets": (["Linear"],),
    "weights": None,
    **dict.fromkeys(("input_activations", "output_activations"), (None,)),
    "format": (None, "int-quantized"),
}
_WEIGHTS_VALUES: _Accepted = {
    "num_bits": (8,),
    "type": ("int",),
    "symmetric": (True,),
    "strategy": ("group",),
    "group_size": (INT8_GROUP,),
    "dynamic": (False,),
    "actorder": (None, False),
    "block_structure": (None,),
    **dict.fromkeys(("observer", "observer_kwargs", "scale_dtype", "zp_dtype")),
}


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """How the quantized weights of a model's files are stored."""

    kind: Literal["nf4", "int8"]
    description: str  # the same for people, with the name of the library whose format it is


def read_quantization(label: str, config: Mapping[str, object]) -> QuantizationConfig | None:
    """Check `quantization_config`; None where there is none.

    Args:
        label: What to call the file in errors.
        config: The keys of the file.

    Raises:
        CheckpointError: A kind of quantization that is not read, or a key that nobody knows.
    """
    value = config.get("quantization_config")
    if value is None or value == {}:
        return None
    label = f"{label}: quantization_config"
    found = value if isinstance(value, dict) else {}
    method = found.get("quant_method")
    if method == "bitsandbytes":
        if found.get("load_in_8bit") is True or found.get("_load_in_8bit") is True:
            got = "8-bit weights of bitsandbytes, which are not supported"
            raise mismatch(label, "weights", _SUPPORTED, got)
        _check_accepted(label, found, _NF4_VALUES, ("load_in_4bit", "bnb_4bit_quant_type"))
        return QuantizationConfig("nf4", "nf4 of bitsandbytes")
    if method != "compressed-tensors":
        got = f"quant_method {described(method)}, which is not supported"
        raise mismatch(label, "weights", _SUPPORTED, got)
    _check_accepted(label, found, _INT8_VALUES, ("format", "config_groups"))
    label, groups = f"{label}: config_groups", found["config_groups"]
    if not isinstance(groups, dict) or len(groups) != 1:
        got = str(len(groups)) if isinstance(groups, dict) else described(groups)
        raise mismatch(label, "content", "an object with one group", got)
    (group,) = groups.values()
    _check_accepted(label, group, _GROUP_VALUES, ("targets", "weights"))
    needed = ("num_bits", "type", "symmetric", "strategy", "group_size")
    _check_accepted(f"{label}: weights", group["weights"], _WEIGHTS_VALUES, needed)
    return QuantizationConfig("int8", "int8 in groups of 32, compressed-tensors")


def _check_accepted(label: str, found: object, values: _Accepted, needed: tuple[str, ...]) -> None:
    """Compare the keys and values of an object with a table."""
    if not isinstance(found, dict):
        raise mismatch(label, "content", "an object", described(found))
    check_keys(label, found, values, needed)
    for key, value in found.items():
        accepted = values[key]
        if accepted is not None and not is_one_of(value, accepted):
            rule = " or ".join(map(str, accepted))
            raise mismatch(label, shown(key), rule, f"{described(value)}, which is not supported")


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantized matrix whose parts were found and fit together."""

    shape: tuple[int, ...]
    parts: tuple[Located, ...]  # the tensors that it is made of
    make: Callable[[str], ml.QuantizedTensor]  # makes the matrix, of a name


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
    return mismatch(source.file.label, f"tensor {shown(name)}", rule, got)


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
    _expect(f"{name}.quant_map", parts["quant_map"], "F32", NF4_LEVELS)
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
        raise CheckpointError(f"{label}: content: {error}") from None
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
            raise mismatch(label, key, wanted, described(value[key]))
    shape = value["shape"]
    sizes = shape if isinstance(shape, list) else []
    if len(sizes) != 2 or not all(is_integer(size, 1, LARGEST_SIZE) for size in sizes):
        raise mismatch(label, "shape", "two sizes", described(shape))
    offset = value["nested_offset"] if is_nested else 0.0
    # float32 is what the kernels take; a number beyond it would become infinite there.
    if type(offset) not in (int, float) or not abs(offset) <= float(np.finfo(np.float32).max):
        raise mismatch(label, "nested_offset", "a float32 number", described(offset))
    return (shape[0], shape[1]), float(offset)


def _is_int8(name: str, entry: TensorEntry, found: Found) -> bool:
    is_code = entry.dtype == "I8" and name.endswith(".weight")
    return is_code or f"{name}{INT8_SCALE}" in found


def _int8(name: str, found: Found) -> PackedWeight:
    """Check codes and scales of an int8 weight against each other."""
    scale_name = f"{name}{INT8_SCALE}"
    codes_place = source, entry = found.pop(name)
    if scale_name not in found:
        raise _refused(source, name, f"{shown(scale_name)} beside it", "none")
    scale_place = found.pop(scale_name)
    if entry.dtype != "I8" or len(entry.shape) != 2 or entry.shape[1] % INT8_GROUP:
        rule = f"I8 [out, in], in a multiple of {INT8_GROUP}"
        raise _refused(source, name, rule, f"{entry.dtype} {list(entry.shape)}")
    scale = scale_place[1]
    groups = (entry.shape[0], entry.shape[1] // INT8_GROUP)
    if scale.dtype != "BF16" or scale.shape != groups:
        got = f"{scale.dtype} {list(scale.shape)}"
        raise _refused(scale_place[0], scale_name, f"BF16 {list(groups)}", got)

    def make(ours: str) -> ml.QuantizedTensor:
        codes, scales = _values(codes_place), _values(scale_place)
        return ml.QuantizedTensor(ml.int8_block, entry.shape, codes, scales, name=ours)

    return PackedWeight(entry.shape, (codes_place, scale_place), make)
