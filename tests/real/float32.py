"""SmolLM2 and Gemma 3 in float32, computed without this project: transformers on what the
package gguf reads.

gguf dequantizes the blocks with NumPy. transformers rotates the two halves of a head
where llama files have neighbours, so the rows of q and k are put into its order first.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _oracle(package: str) -> Any:
    return pytest.importorskip(package, reason="needs the oracle extra")


def _logits(model: Any, weights: dict[str, Any], ids: list[int]) -> Any:
    """Return the logits after each token, float32 [T, V], of a model of transformers
    with these weights and a tied output.
    """
    torch = _oracle("torch")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    with torch.inference_mode():
        return model.eval()(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def float32_logits(path: Path, ids: list[int]) -> Any:
    """Return the logits after each token, float32 [T, V], of a llama file with tied
    embeddings.
    """
    gguf, torch, transformers = map(_oracle, ("gguf", "torch", "transformers"))
    reader = gguf.GGUFReader(path)

    def key(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    heads = {
        "attn_q": key("attention.head_count"),
        "attn_k": key("attention.head_count_kv"),
    }
    config = transformers.LlamaConfig(
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=key("context_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")},
        vocab_size=key("vocab_size"),
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(
            np.float32
        )
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            weights[_NAMES[tensor.name]] = torch.from_numpy(values)
            continue
        _, layer, part, _ = parts
        if part in heads:
            neighbours = values.reshape(heads[part], -1, 2, values.shape[1])
            values = np.ascontiguousarray(neighbours.swapaxes(1, 2)).reshape(values.shape)
        weights[f"model.layers.{layer}.{_NAMES[part]}.weight"] = torch.from_numpy(values)
    return _logits(transformers.LlamaForCausalLM(config), weights, ids)


_GEMMA_NAMES = _NAMES | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def gemma_float32_logits(path: Path, ids: list[int]) -> Any:
    """Return the logits after each token, float32 [T, V], of a file of Gemma 3.

    The file contains the weights of norms increased by 1. Its base for layers with a
    window, the default of both programs, is not one of its keys.
    """
    gguf, torch, transformers = map(_oracle, ("gguf", "torch", "transformers"))
    reader = gguf.GGUFReader(path)

    def key(name: str) -> Any:
        return reader.fields[f"gemma3.{name}"].contents()

    config = transformers.Gemma3TextConfig(
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"),
        query_pre_attn_scalar=key("attention.key_length"),
        max_position_embeddings=key("context_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        sliding_window=key("attention.sliding_window"),
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].contents()),
        attn_implementation="eager",
    )
    assert config.rope_parameters["full_attention"]["rope_theta"] == key("rope.freq_base")
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(
            np.float32
        )
        if "norm" in tensor.name:
            values = values - 1
        parts = tensor.name.split(".")
        name = _GEMMA_NAMES.get(tensor.name)
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{_GEMMA_NAMES[parts[2]]}.weight"
        assert name is not None
        weights[name] = torch.from_numpy(values)
    return _logits(transformers.Gemma3ForCausalLM(config), weights, ids)


def divergence(logits: Any, exact: Any) -> float:
    """Return the mean over positions of KL(exact || logits), in nats.

    sum of p * (log p - log q) over the vocabulary, p and q the softmax of the two rows
    """
    total = 0.0
    for row, exact_row in zip(logits, exact, strict=True):
        log_q = log_softmax(row)
        log_p = log_softmax(exact_row)
        total += float(np.sum(np.exp(log_p) * (log_p - log_q)))
    return total / len(logits)


def perplexity(logits: Any, ids: list[int]) -> float:
    """Return exp(-mean log p) of each id but the first, by the logits after the one
    before it.
    """
    logs = [log_softmax(row)[token] for row, token in zip(logits, ids[1:], strict=False)]
    return float(np.exp(-np.mean(logs)))


def log_softmax(row: Any) -> Any:
    """Return the logarithms of the probabilities of a row of logits, float64 [V]."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    return wide - np.log(np.exp(wide).sum())
