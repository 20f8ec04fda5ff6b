"""Ministral 3: Mistral with YaRN, and queries that grow with the position.

Queries at position p are multiplied by 1 + beta ln(1 + floor(p / C)), where C is the
original context length. The rotary table of queries contains this factor.

Source: transformers, models/ministral3/modeling_ministral3.py; llama.cpp,
src/models/mistral3.cpp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import ml
from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import LAYER_MATRICES
from ...checkpoint.params import SIZE, number_in, value_of
from ..args import YarnRopeScaling
from ..errors import mismatch
from ..windows import WindowArgs, WindowAttention
from . import yarn_keys
from .mistral import MistralBlock, MistralFamily, MistralTransformer

_BETA = "llama_4_scaling_beta"
_GGUF_BETA = "attention.temperature_scale"
_FACTOR = number_in(0, 1e6)


@dataclass(frozen=True)
class GrowingYarn(YarnRopeScaling):
    """YaRN for queries, which grow with the position.

    Attributes:
        beta: The growth, which is 0 within the original context.
    """

    beta: float = 0.0

    def magnitudes(
        self, positions: npt.NDArray[np.float64], /
    ) -> npt.NDArray[np.float64]:
        """Return the factors of the queries at positions [n]."""
        contexts = np.floor(positions / self.original_context_length)
        return self.magnitude * (1 + self.beta * np.log1p(contexts))


@dataclass(frozen=True)
class Ministral3Args(WindowArgs):
    """Mistral's sizes and constants, and the growth of queries.

    Attributes:
        beta: The growth of queries.
    """

    beta: float = 0.0

    @property
    def rope_tables(self) -> Sequence[tuple[float, Any]]:
        """Return theta and the scaling for keys and for queries."""
        scaling = self.rope_scaling
        if not isinstance(scaling, YarnRopeScaling):
            raise mismatch("rope_parameters", "YaRN", "another scaling or none")
        growing = GrowingYarn(**vars(scaling), beta=self.beta)
        return [(self.rope_theta, scaling), (self.rope_theta, growing)]


class Ministral3Attention(WindowAttention):
    """Mistral's attention with a separate rotary table for queries."""

    def rotate_both(
        self, xq: ml.Tensor, xk: ml.Tensor, rotations: ml.Tensor
    ) -> tuple[ml.Tensor, ml.Tensor]:
        """Rotate queries [T, H, h] and keys [T, K, h] by their tables."""
        pairs = self.args.rotary_dim // 2
        of_keys = rotations[:, :pairs].contiguous()
        of_queries = rotations[:, pairs:].contiguous()
        return self.rotate(xq, of_queries), self.rotate(xk, of_keys)


class Ministral3Block(MistralBlock):
    """Mistral's layer with queries that grow with the position."""

    attention_class = Ministral3Attention


class Ministral3Transformer(MistralTransformer):
    """Mistral's network with the layers of Ministral 3."""

    block_class = Ministral3Block


class _Ministral3(MistralFamily):
    config = ConfigSchema(
        "Ministral3ForCausalLM",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
        },
        rules={"sliding_window": SIZE},
        rope_rules={_BETA: _FACTOR},
        wholes=("mistral3",),
        default_rope={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            _BETA: 0.1,
        },
    )
    gguf = GgufSchema(
        "mistral3",
        "interleaved",
        rules={
            _GGUF_BETA: _FACTOR,
            "rope.scaling.yarn_log_multiplier": _FACTOR,
            "rope.scaling.yarn_beta_fast": number_in(1e-6, 1e6),
            "rope.scaling.yarn_beta_slow": number_in(1e-6, 1e6),
        },
        biases=LAYER_MATRICES,
        has_yarn_keys=True,
    )
    args_class = Ministral3Args
    transformer = Ministral3Transformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of the window and of the growth of queries."""
        if _BETA not in config.rope:
            raise mismatch("rope_parameters", f"YaRN with {_BETA}", "none")
        beta = {"beta": float(config.rope[_BETA])}
        return super().fields_of_config(config) | beta

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        """Return the growth of queries."""
        beta: float = value_of(config.given, _GGUF_BETA, 0.0)
        return {"beta": float(beta)}

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the `config.json` keys that differ from Llama's."""
        rope = yarn_keys(args.rope_scaling) | {
            "rope_theta": args.rope_theta,
            _BETA: args.beta,
        }
        return {
            "sliding_window": args.window,
            "rope_scaling": None,
            "rope_parameters": rope,
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        """Return the metadata keys that differ from Mistral's."""
        return super().gguf_keys(args) | {_GGUF_BETA: args.beta}


FAMILY = _Ministral3()
