"""Quantised weights in safetensors files: several tensors that are one matrix.

NF4 as bitsandbytes writes it, for a weight W of n elements:

    W                                    U8 [ceil(n/2), 1]: two codes a byte, the first one above
    W.absmax                             F32 [ceil(n/64)], or U8 with double quantisation
    W.quant_map                          F32 [16]: what the codes stand for
    W.nested_absmax, W.nested_quant_map  F32 [ceil(blocks/256)], F32 [256]: double quantisation
    W.quant_state.bitsandbytes__nf4      U8: JSON with shape, block sizes and the nested offset

int8 as compressed-tensors writes it ("int-quantized", groups of 32):

    W                                    I8 [out, in]
    W_scale                              BF16 [out, in/32]

A file may lie about any of this, so every size is compared with those that follow from the shape,
in Python's integers, before a tensor is made. Codes are used where they lie in the file.

Source: bitsandbytes 0.50, `functional.py` (`QuantState.as_dict`), `utils.py`
(`pack_dict_to_tensor`); compressed-tensors 0.12, `compressors/quantized_compressors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from .. import ml
from ..outside import parse_strict_json
from .errors import CheckpointError, TensorRecordError, mismatch, shown, some_of
from .key_rules import shown_value
from .quantization_config import INT8_GROUP
from .safetensors import SafetensorsFile
from .safetensors_header import TensorEntry

__all__ = ["NF4_STATE", "Found", "PackedWeight", "take_packed"]

Located = tuple[SafetensorsFile, TensorEntry]
Found = dict[str, Located]

NF4_STATE = ".quant_state.bitsandbytes__nf4"

_STATE = ".quant_state.bitsandbytes__"
_INT8_SCALE = "_scale"
_MOST_STATE_BYTES = 4096
_LARGEST_SIZE = 1 << 24
_STATE_KEYS = {"quant_type", "blocksize", "dtype", "shape"}
_NESTED_KEYS = {"nested_blocksize", "nested_dtype", "nested_offset"}
_NESTED_BLOCK = 256
_NESTED_CODES = 256


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantised matrix whose parts were found and fit together.

    Args:
        shape: of the matrix.
        parts: the tensors that it is made of.
        make: makes the matrix, of a name.
    """

    shape: tuple[int, ...]
    parts: tuple[Located, ...]
    make: Callable[[str], ml.QuantizedTensor]


def take_packed(found: Found, kind: str) -> dict[str, PackedWeight]:
    """Take the parts of quantised weights out of the tensors of a model.

    Args:
        found: the tensors by name; only plain ones are left in it.
        kind: "nf4" or "int8".

    Returns:
        The quantised weights by name.

    Raises:
        CheckpointError: a part that is missing, or that does not fit the others.
    """
    packed = {}
    if kind == "nf4":
        for key in [name for name in found if _STATE in name]:
            name, _, variant = key.partition(_STATE)
            if variant != "nf4":
                source = found[key][0]
                raise _refused(source, key, "quantisation to nf4", shown(variant))
            packed[name] = _nf4(name, _take_nf4(found, name))
    else:
        for name in [name for name, place in found.items() if _is_int8(name, place[1], found)]:
            packed[name] = _int8(name, found)
    return packed


def _refused(
    source: SafetensorsFile, name: str, rule: object, got: object, key: str = ""
) -> CheckpointError:
    what = f"tensor {shown(name)}" + (f": {key}" if key else "")
    return TensorRecordError(mismatch(source.file.label, what, rule, got))


def _take_nf4(found: Found, name: str) -> dict[str, Located]:
    """Take all parts of a weight by the last part of their names; `codes` is the weight itself."""
    source = found[f"{name}{NF4_STATE}"][0]
    labels = {"state": NF4_STATE, "codes": "", "absmax": ".absmax", "quant_map": ".quant_map"}
    nested = {"nested_absmax": ".nested_absmax", "nested_quant_map": ".nested_quant_map"}
    if any(f"{name}{suffix}" in found for suffix in nested.values()):
        labels |= nested
    missing = [f"{name}{suffix}" for suffix in labels.values() if f"{name}{suffix}" not in found]
    if missing:
        raise _refused(source, name, "all parts of nf4", f"without {some_of(missing)}")
    return {label: found.pop(f"{name}{suffix}") for label, suffix in labels.items()}


def _nf4(name: str, parts: Mapping[str, Located]) -> PackedWeight:
    """Check the parts of an NF4 weight against its shape, and each other."""
    is_nested = "nested_absmax" in parts
    state = _state(name, parts["state"], is_nested)
    shape = state.shape
    size = math.prod(shape)
    blocks = -(-size // ml.nf4.block_size)
    codes = _codes(name, parts["codes"], -(-size // 2))
    _expect(name, "absmax", parts["absmax"], "U8" if is_nested else "F32", blocks)
    _expect(name, "quant_map", parts["quant_map"], "F32", 16)
    if is_nested:
        nested_blocks = -(-blocks // _NESTED_BLOCK)
        _expect(name, "nested_absmax", parts["nested_absmax"], "F32", nested_blocks)
        _expect(name, "nested_quant_map", parts["nested_quant_map"], "F32", _NESTED_CODES)
    levels = _values(parts["quant_map"]).numpy()
    if not np.array_equal(levels.reshape(-1), ml.nf4_code().numpy()):
        raise _refused(parts["codes"][0], f"{name}.quant_map", "the 16 levels of nf4", "others")

    def make(ours: str) -> ml.QuantizedTensor:
        nested = None
        if is_nested:
            absmax, code = (_values(parts[f"nested_{key}"]) for key in ("absmax", "quant_map"))
            nested = ml.NestedScales(absmax, code, state.offset)
        scales = _values(parts["absmax"])
        return ml.QuantizedTensor(ml.nf4, shape, _values(codes), scales, nested, ours)

    for key in ("nested_absmax", "nested_quant_map"):
        if is_nested and not np.isfinite(_values(parts[key]).numpy()).all():
            raise _refused(parts[key][0], f"{name}.{key}", "finite numbers", "others")
    kept = tuple(place for label, place in parts.items() if label not in ("state", "quant_map"))
    return PackedWeight(shape, kept, make)


@dataclass(frozen=True, slots=True)
class _State:
    shape: tuple[int, int]
    offset: float


def _state(name: str, place: Located, is_nested: bool) -> _State:
    """Read and check the JSON of `quant_state`."""
    source, entry = place
    what = f"{name}{NF4_STATE}"
    length = entry.stop - entry.start
    if entry.dtype != "U8" or length > _MOST_STATE_BYTES:
        rule = f"at most {_MOST_STATE_BYTES} bytes of U8"
        raise _refused(source, what, rule, f"{length} bytes of {entry.dtype}")
    try:
        value = parse_strict_json(source.file.bytes_at(entry.start, entry.stop))
    except ValueError as error:
        raise TensorRecordError(
            f"{source.file.label}: tensor {shown(what)}: content: {error}"
        ) from None
    keys = _STATE_KEYS | (_NESTED_KEYS if is_nested else set())
    if not isinstance(value, dict) or value.keys() != keys:
        got = some_of(list(value)) if isinstance(value, dict) else type(value).__name__
        raise _refused(source, what, ", ".join(sorted(keys)), got)
    expected: dict[str, object] = {"quant_type": "nf4", "blocksize": ml.nf4.block_size}
    if is_nested:
        expected |= {"nested_blocksize": _NESTED_BLOCK, "nested_dtype": "float32"}
    for key, wanted in expected.items():
        if type(value[key]) is not type(wanted) or value[key] != wanted:
            raise _refused(source, what, wanted, shown_value(value[key]), key)
    shape = value["shape"]
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or any(type(size) is not int or not 0 < size <= _LARGEST_SIZE for size in shape)
    ):
        raise _refused(source, what, "two sizes", shown_value(shape), "shape")
    offset = value["nested_offset"] if is_nested else 0.0
    # float32 is what the kernels take; a number beyond it would become infinite there.
    if type(offset) not in (int, float) or not abs(offset) <= float(np.finfo(np.float32).max):
        raise _refused(source, what, "a float32 number", shown_value(offset), "nested_offset")
    return _State((shape[0], shape[1]), float(offset))


def _codes(name: str, place: Located, count: int) -> Located:
    """Look at the codes as bytes, whatever dtype they are stored in."""
    source, entry = place
    if entry.stop - entry.start != count:
        got = f"{entry.stop - entry.start} bytes"
        raise _refused(source, name, f"{count} bytes of codes", got)
    return source, replace(entry, dtype="U8", shape=(count,))


def _expect(name: str, part: str, place: Located, dtype: str, count: int) -> None:
    source, entry = place
    if (entry.dtype, math.prod(entry.shape)) != (dtype, count):
        got = f"{entry.dtype} {list(entry.shape)}"
        raise _refused(source, f"{name}.{part}", f"{count} elements of {dtype}", got)


def _values(place: Located) -> ml.Tensor:
    source, entry = place
    return source.tensor(entry, entry.name)


def _is_int8(name: str, entry: TensorEntry, found: Found) -> bool:
    is_code = entry.dtype == "I8" and name.endswith(".weight")
    return is_code or f"{name}{_INT8_SCALE}" in found


def _int8(name: str, found: Found) -> PackedWeight:
    """Check codes and scales of an int8 weight against each other."""
    scale_name = f"{name}{_INT8_SCALE}"
    source, entry = found.pop(name)
    if scale_name not in found:
        raise _refused(source, name, f"{shown(scale_name)} beside it", "none")
    scale_place = found.pop(scale_name)
    if entry.dtype != "I8" or len(entry.shape) != 2 or entry.shape[1] % INT8_GROUP:
        rule = f"I8 [out, in], in a multiple of {INT8_GROUP}"
        raise _refused(source, name, rule, f"{entry.dtype} {list(entry.shape)}")
    scale = scale_place[1]
    rows, columns = entry.shape
    groups = (rows, columns // INT8_GROUP)
    if scale.dtype != "BF16" or scale.shape != groups:
        got = f"{scale.dtype} {list(scale.shape)}"
        raise _refused(scale_place[0], scale_name, f"BF16 {list(groups)}", got)

    def make(ours: str) -> ml.QuantizedTensor:
        codes, scales = _values((source, entry)), _values(scale_place)
        return ml.QuantizedTensor(ml.int8_block, entry.shape, codes, scales, name=ours)

    return PackedWeight(entry.shape, ((source, entry), scale_place), make)
