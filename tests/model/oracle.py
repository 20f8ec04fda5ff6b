"""transformers' Llama with the weights of a tiny model: what ours is compared with."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.model.tiny import Tiny, Weights

torch: Any = pytest.importorskip("torch", reason="needs the oracle extra")
transformers: Any = pytest.importorskip("transformers", reason="needs the oracle extra")

# Tiny matrices: a second thread costs more than it gives.
torch.set_num_threads(1)

_NAMES = {
    "attention.wo": "self_attn.o_proj",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "tok_embeddings": "model.embed_tokens",
    "output": "lm_head",
}


def llama_config(config: Tiny, max_positions: int = 16384) -> Any:
    """Returns the Hugging Face configuration of the same sizes."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.theta}
    if config.scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": config.scaling,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return transformers.LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.dim,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=config.eps,
        rope_parameters=rope,
        tie_word_embeddings=config.tied,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )


def build(config: Tiny, weights: Weights, dtype: str = "float32") -> Any:
    """Returns LlamaForCausalLM with the weights, in eval mode, computing in a dtype."""
    model = transformers.LlamaForCausalLM(llama_config(config))
    state = {}
    for name, weight in weights.items():
        if name.endswith((".wq.weight", ".wk.weight")):
            weight = _halves(weight, config.head_dim)
        state[_hugging_face_name(name)] = torch.from_numpy(weight.copy())
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tied else set())
    model.tie_weights()
    return model.to(getattr(torch, dtype)).eval()


def logits(model: Any, ids: list[int]) -> npt.NDArray[np.float32]:
    """Returns the logits of all positions, float32 [T, V]."""
    with torch.no_grad():
        result = model(torch.tensor([ids])).logits[0].float().numpy()
    assert isinstance(result, np.ndarray)
    return result


def _hugging_face_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "layers":
        return f"model.layers.{parts[1]}.{_NAMES['.'.join(parts[2:])]}.weight"
    return f"{_NAMES.get(parts[0], 'model.norm')}.weight"


def _halves(weight: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Reorders rows: Meta pairs neighbours (2j, 2j + 1), Hugging Face pairs halves (j, j + h/2)."""
    heads = weight.shape[0] // head_dim
    pairs = weight.reshape(heads, head_dim // 2, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(weight.shape)
