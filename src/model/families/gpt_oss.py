"""gpt-oss 20B and 120B: Llama with experts, a window in every second layer, a sink for
each head, and biases of all matrices.

The activation of the experts has limits. Hugging Face's files store the gate and up
matrices of all experts in one tensor, whose rows alternate. The matrices are transposed,
or quantized to MXFP4. They are copied, because the kernels need rows of one matrix.

The models were trained with a transition of YaRN between fractional indices. llama.cpp
rounds the indices to whole numbers, so that it rotates some pairs by other angles.

Source: transformers, models/gpt_oss/modeling_gpt_oss.py; llama.cpp,
src/models/openai-moe.cpp.
"""

from dataclasses import replace
from typing import Any

from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import (
    LAYER_MATRICES,
    SINKS,
    TensorRow,
    joined_expert_rows,
    tensor_row,
    with_experts,
)
from ...checkpoint.params import MOST_LAYERS, SIZE, integer_in, off, one_of, value_of
from ..errors import mismatch
from ..experts import (
    EXPERT_KEYS,
    GGUF_EXPERTS,
    MixtureOfExperts,
    expert_fields,
    gguf_expert_fields,
    gguf_expert_keys,
)
from ..llama import LlamaTransformer, LlamaTransformerBlock
from ..windows import WindowArgs, WindowAttention
from . import (
    GGUF_WINDOW_RULES,
    LAYER_TYPES,
    Family,
    all_but_every,
    layer_types,
    layer_windows,
)

_PERIOD = 2  # by default, every second layer has no window
_WINDOW = 128
_ALPHA = 1.702
_LIMIT = 7.0
_GGUF_DIM = "expert_feed_forward_length"
_GGUF_WINDOW = "attention.sliding_window"
_GGUF_PATTERN = "attention.sliding_window_pattern"


class GptOssExperts(MixtureOfExperts):
    """Experts with limits of gate and up: w2((up + 1) * gate * sigmoid(1.702 gate))."""

    activation = "clamped_swiglu"


class GptOssBlock(LlamaTransformerBlock):
    """Llama's layer with sinks, a window in every second layer, and experts."""

    attention_class = WindowAttention
    feed_forward_class = GptOssExperts


class GptOssTransformer(LlamaTransformer):
    """Llama's network with the layers of gpt-oss."""

    block_class = GptOssBlock


def _interleaved_rows() -> tuple[TensorRow, ...]:
    """Return the table rows for experts, with gate and up in one stored tensor."""
    return tuple(
        replace(
            row,
            hugging_face=row.hugging_face.removesuffix(".weight"),
            transposed_in=("hugging_face",),
            is_interleaved=bool(row.joined),
        )
        for row in joined_expert_rows("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    )


class _GptOss(Family):
    config = ConfigSchema(
        "GptOssForCausalLM",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "sliding_window": _WINDOW,
            "num_experts_per_tok": 4,
        },
        rules=EXPERT_KEYS
        | {
            "attention_bias": one_of(True),
            "sliding_window": SIZE,
            "layer_types": LAYER_TYPES,
            "swiglu_alpha": one_of(_ALPHA),
            "swiglu_limit": one_of(_LIMIT),
        },
        per_layer=("layer_types",),
        default_rope={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    )
    gguf = GgufSchema(
        "gpt-oss",
        "halves",
        rules={
            **GGUF_EXPERTS,
            **GGUF_WINDOW_RULES,
            _GGUF_DIM: SIZE,
            _GGUF_WINDOW: SIZE,
            _GGUF_PATTERN: integer_in(1, MOST_LAYERS),
            "rope.freq_base_swa": off("a separate rotary embedding"),
        },
        biases=LAYER_MATRICES,
        yarn_truncates=False,
        has_own_output=True,
    )
    layer_rows = with_experts(
        "mlp.router",
        _interleaved_rows(),
        SINKS,
        tensor_row(
            "ffn_norm", "post_attention_layernorm", "post_attention_norm", "none", "D"
        ),
        TensorRow(
            "feed_forward.router.bias",
            "mlp.router.bias",
            "ffn_gate_inp.bias",
            "none",
            ("E",),
        ),
    )
    biases = LAYER_MATRICES
    args_class = WindowArgs
    transformer = GptOssTransformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        values: Any = config.values
        layers = all_but_every(_PERIOD, values["num_hidden_layers"])
        windows = layer_windows(config, layers)
        return windows | expert_fields(values, default_count=128)

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        for key in (_GGUF_WINDOW, _GGUF_DIM):
            if key not in config.given:
                raise mismatch(key, "a value, as in llama.cpp", "none")
        period = value_of(config.given, _GGUF_PATTERN, _PERIOD)
        layers = all_but_every(period, config.sizes["n_layers"])
        return gguf_expert_fields(config.given) | {
            "ffn_dim": config.given[_GGUF_DIM],
            "window": config.given[_GGUF_WINDOW] if layers else None,
            "window_layers": layers,
        }

    def config_keys(self, args: Any) -> dict[str, object]:
        return {
            "attention_bias": True,
            "num_local_experts": args.n_experts,
            "num_experts_per_tok": args.n_active_experts,
            "sliding_window": args.window or _WINDOW,
            "layer_types": layer_types(args),
            "swiglu_limit": _LIMIT,
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        return gguf_expert_keys(args) | {
            _GGUF_DIM: args.ffn_dim,
            _GGUF_WINDOW: args.window,
        }

    def check_gguf(self, args: Any) -> None:
        if args.window_layers != all_but_every(_PERIOD, args.n_layers):
            rule = f"a window in all but every {_PERIOD}nd layer, as GGUF files require"
            raise mismatch("save", rule, "other layers")


FAMILY = _GptOss()
