"""Llama: all versions, and models by other authors with the same keys and tensors."""

from collections.abc import Mapping

from ...checkpoint.gguf_config import GgufSchema
from ...checkpoint.hugging_face_config import BIASES, ConfigSchema
from ...checkpoint.names import LAYER_MATRICES
from . import Family


class _Llama(Family):
    config = ConfigSchema("LlamaForCausalLM", rules=BIASES)
    gguf = GgufSchema(
        "llama", "interleaved", biases=LAYER_MATRICES, has_rope_factors=True
    )

    def reads_gguf(self, keys: Mapping[str, object]) -> bool:
        """Return whether a file has no experts, which another family reads."""
        return not keys.get("llama.expert_count")


FAMILY = _Llama()
