"""`quantization_config` of `config.json`: which quantised weights are read, and what is refused.

Two kinds are read: 4-bit NF4 as bitsandbytes writes it, and 8-bit codes with a scale per group of
32, as compressed-tensors calls its "int-quantized" format. Which matrices are quantised is seen in
the tensors themselves.

Source: transformers 5.23, `utils/quantization_config.py` (`BitsAndBytesConfig`); compressed-tensors
0.12, `quantization/quant_config.py` and `quantization/quant_args.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import ParamsError, mismatch, shown, some_of
from .key_rules import shown_value

__all__ = ["INT8_GROUP", "QuantizationConfig", "int8_config", "nf4_config", "read_quantization"]

INT8_GROUP = 32
_KEY = "quantization_config"

_DTYPES = ("float32", "bfloat16", "float16")
_STORAGES = ("uint8", "int8", "bfloat16", "float16", "float32", "float64")
# What each key of bitsandbytes may be. Codes are multiplied in the dtype of the activations here,
# whatever dtype the file names for that, and a thread of thresholds belongs to 8 bits.
_NF4_VALUES: dict[str, tuple[object, ...] | None] = {
    "quant_method": ("bitsandbytes",),
    "load_in_4bit": (True,),
    "_load_in_4bit": (True,),
    "load_in_8bit": (False,),
    "_load_in_8bit": (False,),
    "bnb_4bit_quant_type": ("nf4",),
    "bnb_4bit_use_double_quant": (False, True),
    "bnb_4bit_compute_dtype": _DTYPES,
    "bnb_4bit_quant_storage": _STORAGES,
    "llm_int8_enable_fp32_cpu_offload": None,
    "llm_int8_has_fp16_weight": None,
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": None,
}
_INT8_VALUES: dict[str, tuple[object, ...] | None] = {
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
_GROUP_VALUES: dict[str, tuple[object, ...] | None] = {
    "targets": (["Linear"],),
    "weights": None,
    "input_activations": (None,),
    "output_activations": (None,),
    "format": (None, "int-quantized"),
}
_WEIGHTS_VALUES: dict[str, tuple[object, ...] | None] = {
    "num_bits": (8,),
    "type": ("int",),
    "symmetric": (True,),
    "strategy": ("group",),
    "group_size": (INT8_GROUP,),
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
    """How the quantised weights of a model's files are stored.

    Args:
        kind: "nf4" or "int8".
        description: the same for people, with the name of the library whose format it is.
    """

    kind: Literal["nf4", "int8"]
    description: str


def read_quantization(label: str, config: Mapping[str, object]) -> QuantizationConfig | None:
    """Check `quantization_config`; None where there is none.

    Args:
        label: what to call the file in errors.
        config: the keys of the file; that this one is an object or null was checked.

    Raises:
        ParamsError: a kind of quantisation that is not read, or a key that nobody knows.
    """
    value = config.get(_KEY)
    if value is None or value == {}:
        return None
    assert isinstance(value, dict), "as the table of keys says"
    method = value.get("quant_method")
    if method == "bitsandbytes":
        _check(label, _KEY, value, _NF4_VALUES, ("load_in_4bit", "bnb_4bit_quant_type"))
        return QuantizationConfig("nf4", "nf4 of bitsandbytes")
    if method != "compressed-tensors":
        raise ParamsError(
            mismatch(
                label,
                f"{_KEY}: quant_method",
                "'bitsandbytes' or 'compressed-tensors'",
                f"{shown_value(method)}, which is not supported",
            )
        )
    _check(label, _KEY, value, _INT8_VALUES, ("format", "config_groups"))
    _check_groups(label, value["config_groups"])
    return QuantizationConfig("int8", "int8 in groups of 32, compressed-tensors")


def _check_groups(label: str, groups: object) -> None:
    what = f"{_KEY}: config_groups"
    if not isinstance(groups, dict) or len(groups) != 1:
        got = len(groups) if isinstance(groups, dict) else shown_value(groups)
        raise ParamsError(mismatch(label, what, "one group", got))
    group = next(iter(groups.values()))
    if not isinstance(group, dict):
        raise ParamsError(mismatch(label, what, "an object", shown_value(group)))
    _check(label, what, group, _GROUP_VALUES, ("targets", "weights"))
    weights = group["weights"]
    if not isinstance(weights, dict):
        raise ParamsError(mismatch(label, f"{what}: weights", "an object", shown_value(weights)))
    needed = ("num_bits", "type", "symmetric", "strategy", "group_size")
    _check(label, f"{what}: weights", weights, _WEIGHTS_VALUES, needed)


def _check(
    label: str,
    what: str,
    found: Mapping[str, object],
    values: Mapping[str, tuple[object, ...] | None],
    needed: tuple[str, ...],
) -> None:
    """Hold keys and values against a table; None there stands for any value."""
    unknown = [key for key in found if key not in values]
    if unknown:
        raise ParamsError(mismatch(label, f"{what}: keys", "only known ones", some_of(unknown)))
    missing = [key for key in needed if key not in found]
    if missing:
        raise ParamsError(
            mismatch(label, f"{what}: keys", ", ".join(needed), f"without {some_of(missing)}")
        )
    for key, value in found.items():
        accepted = values[key]
        if accepted is None or any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted
        ):
            continue
        rule = " or ".join(str(one) for one in accepted)
        got = f"{shown_value(value)}, which is not supported"
        raise ParamsError(mismatch(label, f"{what}: {shown(key)}", rule, got))


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
        "group_size": INT8_GROUP, "dynamic": False,
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
