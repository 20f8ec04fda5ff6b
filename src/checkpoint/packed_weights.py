"""Quantized weights in Hugging Face's files, where several tensors represent one matrix.

bitsandbytes stores an NF4 weight W with n elements as:

    W                                U8 [ceil(n/2), 1]: two codes a byte, upper half first
    W.absmax                         F32 [ceil(n/64)], or U8 with double quantization
    W.quant_map                      F32 [16]: the value of each code
    W.nested_absmax                  F32 [ceil(blocks/256)]: with double quantization
    W.nested_quant_map               F32 [256]: with double quantization
    W.quant_state.bitsandbytes__nf4  U8: JSON with shape, block sizes and nested offset

compressed-tensors stores an int8 weight ("int-quantized", groups of 32) as:

    W                                    I8 [out, in]
    W_scale                              BF16 [out, in/32]

MXFP4 checkpoints store the matrices of all experts W [E, out, in] as:

    W_blocks                             U8 [E, out, in/32, 16]: lower half first
    W_scales                             U8 [E, out, in/32]: exponents, increased by 127

`quantization_config` in `config.json` names the format, and the tensors show which
matrices are quantized. Because a file may be inconsistent, every size is compared with
the size that the shape implies before a tensor is created. The comparison uses Python
integers, which cannot overflow. Codes of bitsandbytes and compressed-tensors are used in
place in the mapped file. MXFP4 blocks are repacked as in GGUF files.

Source: transformers 5.23, `utils/quantization_config.py` (`BitsAndBytesConfig`);
bitsandbytes 0.50, `functional.py` (`QuantState.as_dict`), `utils.py`
(`pack_dict_to_tensor`); compressed-tensors 0.12, `compressors/quantized_compressors`,
`quantization/quant_config.py`, `quantization/quant_args.py`; transformers 5.24,
`integrations/mxfp4.py`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .. import ml
from ..untrusted import described, is_integer, parse_strict_json, shown, some_of
from .errors import CheckpointError, mismatch
from .params import (
    ANY,
    LARGEST_SIZE,
    OBJECT,
    Rule,
    check_object,
    number_in,
    one_of,
    value_of,
)
from .safetensors import TensorEntry

NF4_STATE = ".quant_state.bitsandbytes__nf4"
_NF4_PARTS = (NF4_STATE, "", ".absmax", ".quant_map")
_NESTED_PARTS = (".nested_absmax", ".nested_quant_map")
INT8_SCALE = "_scale"
_MOST_STATE_BYTES = 4096
_NESTED_BLOCK = _NESTED_CODES = 256
NF4_LEVELS = 16
INT8_GROUP = ml.int8_block.block_size
MXFP4 = ml.GGML_DTYPES[39]
_BLOCKS = "_blocks"
_SCALES = "_scales"
_BLOCK_BYTES = MXFP4.block_size // 2

NF4_CONFIG: dict[str, object] = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "llm_int8_skip_modules": [],
}
"""The `quantization_config` with which transformers reads NF4 weights (bitsandbytes)."""

_WEIGHTS = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": INT8_GROUP,
    "dynamic": False,
}
_GROUP = {
    "targets": ["Linear"],
    "weights": _WEIGHTS,
    "input_activations": None,
    "output_activations": None,
    "format": "int-quantized",
}
INT8_CONFIG: dict[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": _GROUP},
    "ignore": [],
}
"""The `quantization_config` for int8 codes in groups of 32 (compressed-tensors)."""


def _as_in(config: Mapping[str, object], **others: Rule) -> Mapping[str, Rule]:
    """Return rules that accept exactly the values in `config`, plus other rules.

    Args:
        config: The accepted values, which this engine also writes.
        others: Additional rules, which take precedence.
    """
    return {key: one_of(value) for key, value in config.items()} | others


_NF4_RULES = _as_in(
    NF4_CONFIG,
    _load_in_8bit=one_of(False),
    _load_in_4bit=one_of(True),
    bnb_4bit_use_double_quant=one_of(False, True),
    # These keys have no effect: matrix products use the dtype of the activations, and
    # the thresholds only apply to 8-bit weights.
    bnb_4bit_compute_dtype=one_of("float32", "bfloat16", "float16"),
    bnb_4bit_quant_storage=one_of(
        "uint8", "int8", "bfloat16", "float16", "float32", "float64"
    ),
    **dict.fromkeys(
        ("llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"), ANY
    ),
    **dict.fromkeys(("llm_int8_skip_modules", "llm_int8_threshold"), ANY),
)
_INT8_RULES = _as_in(
    INT8_CONFIG,
    quant_method=one_of("bitsandbytes", "compressed-tensors", "mxfp4"),
    **dict.fromkeys(
        ("kv_cache_scheme", "sparsity_config", "transform_config"), one_of({})
    ),
    **dict.fromkeys(("global_compression_ratio", "version", "ignore"), ANY),
    config_groups=(
        "an object with one group, an object",
        lambda value: isinstance(value, dict) and [*map(type, value.values())] == [dict],
    ),
)
_MXFP4_RULES: Mapping[str, Rule] = {
    "quant_method": one_of("mxfp4"),
    # These keys have no effect: the tensors show which matrices are quantized.
    **dict.fromkeys(("modules_to_not_convert", "dequantize"), ANY),
}
_GROUP_RULES = _as_in(
    _GROUP, targets=("['Linear']", lambda value: value == ["Linear"]), weights=OBJECT
)
_WEIGHTS_RULES = _as_in(
    _WEIGHTS,
    actorder=one_of(False),
    block_structure=one_of(),
    **dict.fromkeys(("observer", "observer_kwargs", "scale_dtype", "zp_dtype"), ANY),
)


def _is_shape(value: object) -> bool:
    sizes = value if isinstance(value, list) else []
    return len(sizes) == 2 and all(is_integer(size, 1, LARGEST_SIZE) for size in sizes)


_STATE_RULES: Mapping[str, Rule] = {
    "quant_type": one_of("nf4"),
    "blocksize": one_of(ml.nf4.block_size),
    "dtype": ANY,
    "shape": ("two sizes", _is_shape),
}
# The kernels use float32, where any larger value would become infinite.
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_NESTED_STATE_RULES: Mapping[str, Rule] = {
    "nested_blocksize": one_of(_NESTED_BLOCK),
    "nested_dtype": one_of("float32"),
    "nested_offset": number_in(-_LARGEST_FLOAT32, _LARGEST_FLOAT32),
}


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """The storage format of a model's quantized weights."""

    kind: Literal["nf4", "int8", "mxfp4"]
    description: str  # for people, with the name of the library


def read_quantization(
    label: str, config: Mapping[str, object]
) -> QuantizationConfig | None:
    """Validate `quantization_config`, and return None if it is null or empty."""
    values: dict[str, object] = value_of(config, "quantization_config", {})
    label = f"{label}: quantization_config"
    if not values:
        return None
    if "quant_method" not in values and {"bits", "group_size"} <= values.keys():
        rule = "weights of bitsandbytes or compressed-tensors"
        raise mismatch(label, "weights", rule, "MLX's quantized weights")
    if values.get("quant_method") == "bitsandbytes":
        check_object(label, values, _NF4_RULES, ("load_in_4bit", "bnb_4bit_quant_type"))
        return QuantizationConfig("nf4", "nf4 of bitsandbytes")
    if values.get("quant_method") == "mxfp4":
        check_object(label, values, _MXFP4_RULES)
        return QuantizationConfig("mxfp4", "mxfp4 of experts")
    check_object(label, values, _INT8_RULES, ("quant_method", "format", "config_groups"))
    groups: dict[str, dict[str, dict[str, object]]] = value_of(
        values, "config_groups", {}
    )
    label = f"{label}: config_groups"
    (group,) = groups.values()
    check_object(label, group, _GROUP_RULES, ("targets", "weights"))
    needed = ("num_bits", "type", "symmetric", "strategy", "group_size")
    check_object(f"{label}: weights", group["weights"], _WEIGHTS_RULES, needed)
    return QuantizationConfig("int8", "int8 in groups of 32, compressed-tensors")


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantized matrix whose parts have been checked for consistency.

    Attributes:
        shape: The shape of the plain tensor with the same name.
        make: A function that creates the matrix with a given name, or returns a stack.
    """

    shape: tuple[int, ...]
    make: "Callable[[str], ml.QuantizedTensor | Mxfp4Stack]"


@dataclass(frozen=True, slots=True)
class Mxfp4Stack:
    """The MXFP4 matrices of all experts in a layer, views of the mapped file.

    Attributes:
        blocks: The codes, uint8 [E, out, in/32, 16].
        scales: The exponents, uint8 [E, out, in/32].
    """

    blocks: ml.Tensor
    scales: ml.Tensor

    @property
    def dtype(self) -> ml.BlockDType:
        """The dtype of the matrices."""
        return MXFP4

    def matrix(self, expert: int, part: int, parts: int, name: str) -> ml.QuantizedTensor:
        """Return a copy of the rows of one expert, repacked as in GGUF files.

        Byte i of a block contains elements 2i and 2i + 1 of 32. In GGUF files, byte j
        contains elements j and j + 16, and the exponent precedes the codes.

        Args:
            expert: The number of the expert.
            part: The index of the matrix, the first of whose rows is row `part`.
            parts: The number of matrices whose rows alternate.
            name: The name of the matrix.
        """
        codes = self.blocks.numpy()[expert, part::parts]
        exponents = self.scales.numpy()[expert, part::parts]
        first = codes[..., : _BLOCK_BYTES // 2]  # elements 0 to 15
        second = codes[..., _BLOCK_BYTES // 2 :]  # elements 16 to 31
        repacked = np.empty((*exponents.shape, 1 + _BLOCK_BYTES), np.uint8)
        repacked[..., 0] = exponents
        repacked[..., 1::2] = first & 0x0F | second << 4
        repacked[..., 2::2] = first >> 4 | second & 0xF0
        rows, blocks = exponents.shape
        content = ml.Tensor.from_numpy(repacked)
        shape = rows, blocks * MXFP4.block_size
        return ml.QuantizedTensor(MXFP4, shape, content, name=name)


def take_packed(entries: dict[str, TensorEntry], kind: str) -> dict[str, PackedWeight]:
    """Remove the parts of quantized weights from `entries`, and return the weights."""
    if kind == "nf4":
        names = [
            name.removesuffix(NF4_STATE) for name in entries if name.endswith(NF4_STATE)
        ]
        # Skip a name that has been removed as a part of another weight. Unknown parts are
        # rejected later.
        return {
            name: _nf4(name, entries) for name in names if f"{name}{NF4_STATE}" in entries
        }
    if kind == "mxfp4":
        names = [name.removesuffix(_BLOCKS) for name in entries if name.endswith(_BLOCKS)]
        return {name: _mxfp4(name, entries) for name in names}
    codes = {
        n for n, entry in entries.items() if entry.dtype == "I8" and n.endswith(".weight")
    }
    names = [
        name for name in entries if name in codes or f"{name}{INT8_SCALE}" in entries
    ]
    return {name: _int8(name, entries) for name in names if name in entries}


def _expect(entry: TensorEntry, dtype: str, count: int) -> None:
    if (entry.dtype, math.prod(entry.shape)) != (dtype, count):
        raise entry.refusal(
            f"{count} elements of {dtype}", f"{entry.dtype} {list(entry.shape)}"
        )


def _nf4(name: str, entries: dict[str, TensorEntry]) -> PackedWeight:
    """Remove the parts of an NF4 weight from `entries`, and check their consistency."""
    is_nested = any(f"{name}{suffix}" in entries for suffix in _NESTED_PARTS)
    names = [
        f"{name}{suffix}"
        for suffix in (*_NF4_PARTS, *(_NESTED_PARTS if is_nested else ()))
    ]
    missing = [part for part in names if part not in entries]
    if missing:
        raise entries[names[0]].refusal("all parts of nf4", f"without {some_of(missing)}")
    state, stored, absmax, levels, *nested = map(entries.pop, names)
    shape, offset = _state(state, is_nested)
    size = math.prod(shape)
    blocks = -(-size // ml.nf4.block_size)
    # The codes may be stored with any dtype, but are read as bytes.
    codes = replace(stored, dtype="U8", shape=(stored.stop - stored.start,))
    _expect(codes, "U8", -(-size // ml.nf4.codes_per_item))
    _expect(absmax, "U8" if is_nested else "F32", blocks)
    _expect(levels, "F32", NF4_LEVELS)
    if not np.array_equal(levels.make().numpy().reshape(-1), ml.nf4_code().numpy()):
        raise levels.refusal("the 16 levels of nf4", "others")
    for entry, count in zip(
        nested, (-(-blocks // _NESTED_BLOCK), _NESTED_CODES), strict=False
    ):
        _expect(entry, "F32", count)
        if not np.isfinite(entry.make().numpy()).all():
            raise entry.refusal("finite numbers", "others")

    def make(name_of_weight: str) -> ml.QuantizedTensor:
        scales = (
            ml.NestedScales(nested[0].make(), nested[1].make(), offset)
            if nested
            else None
        )
        return ml.QuantizedTensor(
            ml.nf4, shape, codes.make(), absmax.make(), scales, name_of_weight
        )

    return PackedWeight(shape, make)


def _state(entry: TensorEntry, is_nested: bool) -> tuple[tuple[int, int], float]:
    """Validate the JSON in `quant_state`, and return the shape and the nested offset."""
    length = entry.stop - entry.start
    if entry.dtype != "U8" or length > _MOST_STATE_BYTES:
        rule = f"at most {_MOST_STATE_BYTES} bytes of U8"
        raise entry.refusal(rule, f"{length} bytes of {entry.dtype}")
    label = f"{entry.file.label}: tensor {shown(entry.name)}"
    try:
        value = parse_strict_json(entry.file.bytes_at(entry.start, entry.stop))
    except ValueError as error:
        raise CheckpointError(f"{label}: content: {error}") from None
    rules = {**_STATE_RULES, **(_NESTED_STATE_RULES if is_nested else {})}
    if not isinstance(value, dict):
        raise entry.refusal(", ".join(rules), described(value))
    check_object(label, value, rules, rules)
    rows, columns = value["shape"]
    return (rows, columns), float(value.get("nested_offset", 0.0))


def _int8(name: str, entries: dict[str, TensorEntry]) -> PackedWeight:
    """Remove an int8 weight's codes and scales from `entries`, and check their shapes."""
    codes = entries.pop(name)
    scales = entries.pop(f"{name}{INT8_SCALE}", None)
    if scales is None:
        raise codes.refusal(f"{shown(name + INT8_SCALE)} in the file", "none")
    if codes.dtype != "I8" or len(codes.shape) != 2 or codes.shape[1] % INT8_GROUP:
        rule = f"I8 [out, in], in a multiple of {INT8_GROUP}"
        raise codes.refusal(rule, f"{codes.dtype} {list(codes.shape)}")
    groups = (codes.shape[0], codes.shape[1] // INT8_GROUP)
    if scales.dtype != "BF16" or scales.shape != groups:
        raise scales.refusal(
            f"BF16 {list(groups)}", f"{scales.dtype} {list(scales.shape)}"
        )

    def make(name_of_weight: str) -> ml.QuantizedTensor:
        weights = codes.make()
        factors = scales.make()
        return ml.QuantizedTensor(
            ml.int8_block, codes.shape, weights, factors, name=name_of_weight
        )

    return PackedWeight(codes.shape, make)


def _mxfp4(name: str, entries: dict[str, TensorEntry]) -> PackedWeight:
    """Remove the two parts of an MXFP4 tensor from `entries`, and check their shapes.

    The matrices of a plain tensor with this name are transposed.
    """
    blocks = entries.pop(f"{name}{_BLOCKS}")
    scales = entries.pop(f"{name}{_SCALES}", None)
    if scales is None:
        raise blocks.refusal(f"{shown(name + _SCALES)} in the file", "none")
    if name in entries:
        raise entries[name].refusal("a plain tensor or an MXFP4 tensor", "both")
    if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[3] != _BLOCK_BYTES:
        rule = f"U8 [experts, out, in / {MXFP4.block_size}, {_BLOCK_BYTES}]"
        raise blocks.refusal(rule, f"{blocks.dtype} {list(blocks.shape)}")
    experts, rows, columns = blocks.shape[:3]
    if scales.dtype != "U8" or scales.shape != (experts, rows, columns):
        rule = f"U8 {[experts, rows, columns]}"
        raise scales.refusal(rule, f"{scales.dtype} {list(scales.shape)}")
    shape = experts, columns * MXFP4.block_size, rows
    return PackedWeight(shape, lambda _name: Mxfp4Stack(blocks.make(), scales.make()))
