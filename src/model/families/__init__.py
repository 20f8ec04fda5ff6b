"""Model families: how their files and networks differ from Llama's.

Each family is a module in this package, named after its `model_type`. It defines an
instance of `Family` or of a subclass, named `FAMILY`, and is imported when a model of the
family is loaded. The names of families do not appear in any other module.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from ... import ml
from ...checkpoint.gguf_config import ROPE_FACTORS, GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import CONFIG_KEYS, ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import LAYER_ROWS, TensorRow
from ...checkpoint.params import Rule, list_of, off, value_of
from ..args import ModelArgs, RopeFactors, YarnRopeScaling
from ..errors import mismatch
from ..llama import LlamaTransformer


class Family:
    """A model family's files and network. Subclasses override the defaults of Llama.

    Attributes:
        config: The keys of the family's `config.json`.
        gguf: The metadata keys and tensors of the family's GGUF files.
        layer_rows: The names and sizes of the tensors in a layer.
        biases: The matrices in a layer that always have biases.
        norm_offset: The number that is added to the weights of norms in Hugging Face's
            files. GGUF files contain the sums.
        args_class: The class for sizes and constants.
        transformer: The network class.
    """

    config: ClassVar[ConfigSchema]
    gguf: ClassVar[GgufSchema]
    layer_rows: ClassVar[tuple[TensorRow, ...]] = LAYER_ROWS
    biases: ClassVar[tuple[str, ...]] = ()
    norm_offset: ClassVar[float] = 0.0
    args_class: ClassVar[type[ModelArgs]] = ModelArgs
    transformer: ClassVar[type[LlamaTransformer]] = LlamaTransformer

    @property
    def model_type(self) -> str:
        """Return the family's name in `config.json`, which is also its module's name."""
        return type(self).__module__.rpartition(".")[2]

    def fields_of_config(self, _config: HuggingFaceConfig) -> dict[str, Any]:
        """Return `args_class` fields from the family's own keys in `config.json`."""
        return {}

    def fields_of_gguf(self, _config: GgufConfig) -> dict[str, Any]:
        """Return `args_class` fields from the family's own keys in a GGUF file."""
        return {}

    def with_rope_tensors(
        self, args: Any, tensors: Mapping[str, tuple[float, ...]]
    ) -> ModelArgs:
        """Return the args of a GGUF file, completed with its RoPE factor tensors."""
        if args.rope_scaling is not None:
            raise mismatch("rope", "one scaling", "factors and rope.scaling keys")
        completed: ModelArgs = replace(
            args, rope_scaling=RopeFactors(tensors[ROPE_FACTORS])
        )
        return completed

    def gguf_tensors(self, _args: Any) -> dict[str, ml.Tensor]:
        """Return the RoPE factor tensors of a GGUF file, by name."""
        return {}

    def reads_gguf(self, _keys: Mapping[str, object]) -> bool:
        """Return whether the family reads a GGUF file of its architecture.

        Families that share an architecture differ in their keys, which are not validated
        yet.
        """
        return True

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the `config.json` keys that differ between families."""
        return {"attention_bias": "wq" in args.biases, "mlp_bias": "w1" in args.biases}

    def gguf_keys(self, _args: Any) -> dict[str, Any]:
        """Return the family's GGUF metadata keys without the architecture prefix."""
        return {}

    def check_gguf(self, _args: Any) -> None:
        """Raise ModelConfigError if GGUF metadata keys cannot describe the model."""


def window_fields(config: HuggingFaceConfig) -> dict[str, Any]:
    """Return the args fields for a sliding window that limits the context, if any."""
    positions = value_of(config.values, CONFIG_KEYS["max_context_length"], 0)
    window: int | None = value_of(config.values, "sliding_window", None)
    if window is None or window >= positions:
        return {}
    return {"max_context_length": window, "sliding_window": window}


_FULL = "full_attention"
_SLIDING = "sliding_attention"
LAYER_TYPES = list_of(_FULL, _SLIDING)
"""The rule for `layer_types` of a family with windows in some layers."""


GGUF_WINDOW_RULES: Mapping[str, Rule] = dict.fromkeys(
    (
        "rope.dimension_count_swa",
        "attention.key_length_swa",
        "attention.value_length_swa",
    ),
    off("windows with other sizes"),
)
"""Rules for the keys that llama.cpp reads only for layers with windows."""


def layer_windows(
    config: HuggingFaceConfig, default_layers: tuple[int, ...]
) -> dict[str, Any]:
    """Return the args fields for windows in the layers that `layer_types` names.

    Args:
        config: The configuration, with `sliding_window`.
        default_layers: The layers with a window if the configuration has no
            `layer_types`.
    """
    kinds: list[str] | None = value_of(config.values, "layer_types", None)
    layers = default_layers
    if kinds is not None:
        layers = tuple(n for n, kind in enumerate(kinds) if kind == _SLIDING)
    window: int | None = value_of(config.values, "sliding_window", None)
    if window is None and layers:
        raise mismatch("sliding_window", "a whole number", "null")
    return {"window": window if layers else None, "window_layers": layers}


def layer_types(args: ModelArgs) -> list[str]:
    """Return the value of `layer_types` that describes the windows of layers."""
    return [_FULL if window is None else _SLIDING for window in args.windows]


def all_but_every(period: int, layer_count: int) -> tuple[int, ...]:
    """Return all layers except every `period`-th one."""
    return tuple(n for n in range(layer_count) if (n + 1) % period)


def yarn_keys(scaling: YarnRopeScaling) -> dict[str, object]:
    """Return the value of `rope_scaling` for YaRN."""
    optional = {
        name: value
        for name in ("attention_factor", "mscale", "mscale_all_dim")
        if (value := getattr(scaling, name)) is not None
    }
    return {
        "rope_type": "yarn",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_context_length,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "truncate": scaling.truncate,
        **optional,
    }


class _Families(Mapping[str, Family]):
    """A mapping from names to families, which are imported on look-up.

    Args:
        name_of: A function that returns a family's name, or None to use `model_type`.
        keys: The metadata keys of a GGUF file that the family must read, if any.
    """

    def __init__(
        self,
        name_of: Callable[[Family], str] | None = None,
        keys: Mapping[str, object] | None = None,
    ) -> None:
        self._name_of = name_of
        self._keys = keys

    def __getitem__(self, name: str) -> Family:
        kinds = [module.name for module in pkgutil.iter_modules(__path__)]
        # A module with the requested name is tried first, because most families have the
        # same name in all formats.
        for kind in sorted(kinds, key=lambda kind: kind != name):
            if self._name_of is None and kind != name:
                break
            family: Family = import_module(f".{kind}", __name__).FAMILY
            if self._name_of is not None and self._name_of(family) != name:
                continue
            if self._keys is None or family.reads_gguf(self._keys):
                return family
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        kinds = sorted(module.name for module in pkgutil.iter_modules(__path__))
        if self._name_of is None:
            return iter(kinds)
        families = (import_module(f".{kind}", __name__).FAMILY for kind in kinds)
        return iter(dict.fromkeys(map(self._name_of, families)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


FAMILIES: Mapping[str, Family] = _Families()
"""The families by their `model_type`."""

ARCHITECTURES: Mapping[str, Family] = _Families(lambda family: family.gguf.architecture)
"""The families by the name of their architecture in GGUF files."""


def architectures_for(keys: Mapping[str, object]) -> Mapping[str, Family]:
    """Return the families that read a GGUF file, by the name of their architecture."""
    return _Families(lambda family: family.gguf.architecture, keys)
