"""Qwen2, Qwen2.5 and R1-Distill-Qwen: Llama with query, key and value biases.

Source: transformers, models/qwen2/modeling_qwen2.py.
"""

from typing import Any

from ...checkpoint.gguf_config import GgufSchema
from ...checkpoint.hugging_face_config import WINDOWS, ConfigSchema
from ...checkpoint.params import MOST_LAYERS, integer_in
from . import Family

QWEN_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN_WINDOWS = WINDOWS | {"max_window_layers": integer_in(0, MOST_LAYERS)}


class _Qwen2(Family):
    config = ConfigSchema("Qwen2ForCausalLM", QWEN_DEFAULTS, QWEN_WINDOWS)
    gguf = GgufSchema("qwen2", "halves", heads_fill_dim=True)
    biases = ("wq", "wk", "wv")

    def config_keys(self, _args: Any) -> dict[str, object]:
        """Return False for all bias keys, because the family's biases are implied."""
        return {"attention_bias": False, "mlp_bias": False}


FAMILY = _Qwen2()
