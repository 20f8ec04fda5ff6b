"""Families of models: the differences of their files and networks from Llama.

A family is one module of this package, named after its `model_type`, with an instance of
`Family` or of a subclass as `FAMILY`. It is imported when a model of the family is
loaded. No other module contains the names of families.
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
from ...checkpoint.params import value_of
from ..args import ModelArgs, RopeFactors
from ..errors import mismatch
from ..llama import LlamaTransformer


class Family:
    """The files and the network of a family; subclasses override Llama's.

    Attributes:
        config: The keys of its `config.json`.
        gguf: The keys and the tensors of its GGUF files.
        layer_rows: The names and sizes of the tensors of a layer.
        biases: The matrices of a layer that always have biases.
        args_class: The class of its sizes and constants.
        transformer: The class of its network.
    """

    config: ClassVar[ConfigSchema]
    gguf: ClassVar[GgufSchema]
    layer_rows: ClassVar[tuple[TensorRow, ...]] = LAYER_ROWS
    biases: ClassVar[tuple[str, ...]] = ()
    args_class: ClassVar[type[ModelArgs]] = ModelArgs
    transformer: ClassVar[type[LlamaTransformer]] = LlamaTransformer

    @property
    def model_type(self) -> str:
        """Return the name in `config.json`, which is also the module's name."""
        return type(self).__module__.rpartition(".")[2]

    def fields_of_config(self, _config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of `args_class` from the family's keys of `config.json`."""
        return {}

    def fields_of_gguf(self, _config: GgufConfig) -> dict[str, Any]:
        """Return the fields of `args_class` from the family's keys of a GGUF file."""
        return {}

    def with_rope_tensors(
        self, args: Any, tensors: Mapping[str, tuple[float, ...]]
    ) -> ModelArgs:
        """Return the args of a GGUF file, completed by its tensors of factors by name."""
        if args.rope_scaling is not None:
            raise mismatch("rope", "one scaling", "factors and rope.scaling keys")
        completed: ModelArgs = replace(
            args, rope_scaling=RopeFactors(tensors[ROPE_FACTORS])
        )
        return completed

    def gguf_tensors(self, _args: Any) -> dict[str, ml.Tensor]:
        """Return the tensors of factors in a GGUF file of this family, by name."""
        return {}

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the keys of `config.json` that differ between families."""
        return {"attention_bias": "wq" in args.biases, "mlp_bias": "w1" in args.biases}

    def gguf_keys(self, _args: Any) -> dict[str, Any]:
        """Return the family's keys of a GGUF file, without the architecture's name."""
        return {}

    def check_gguf(self, _args: Any) -> None:
        """Raise ModelConfigError for a model that no keys of a GGUF file describe."""


def window_fields(config: HuggingFaceConfig) -> dict[str, Any]:
    """Return the fields of a sliding window that limits the context, or no fields."""
    positions = value_of(config.values, CONFIG_KEYS["max_context_length"], 0)
    window: int | None = value_of(config.values, "sliding_window", None)
    if window is None or window >= positions:
        return {}
    return {"max_context_length": window, "sliding_window": window}


class _Families(Mapping[str, Family]):
    """The families by a name; each is imported on look-up.

    Args:
        name_of: Returns the name of a family; None for the `model_type`.
    """

    def __init__(self, name_of: Callable[[Family], str] | None = None) -> None:
        self._name_of = name_of

    def __getitem__(self, name: str) -> Family:
        kinds = [module.name for module in pkgutil.iter_modules(__path__)]
        # The module of the name itself comes first, because most families have one name
        # everywhere.
        for kind in sorted(kinds, key=lambda kind: kind != name):
            if self._name_of is None and kind != name:
                break
            family: Family = import_module(f".{kind}", __name__).FAMILY
            if self._name_of is None or self._name_of(family) == name:
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
