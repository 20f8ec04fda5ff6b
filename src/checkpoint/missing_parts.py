"""Model families that cannot be loaded, and the parts of a network that they need."""

from collections.abc import Mapping

_SHARED = "experts that all tokens use"
_LINEAR = "layers of linear attention"

# (the name in `config.json`, the name in GGUF files or "", the missing part)
_FAMILIES = (
    ("deepseek_v2", "deepseek2", "attention with compressed keys and values"),
    ("deepseek_v3", "deepseek2", "attention with compressed keys and values"),
    ("gemma3n", "gemma3n", "embeddings for each layer"),
    ("gemma3n_text", "gemma3n", "embeddings for each layer"),
    ("gemma4", "gemma4", "heads of several sizes"),
    ("gemma4_text", "gemma4", "heads of several sizes"),
    ("gpt_oss", "gpt-oss", "experts with biases and sinks"),
    ("granitemoehybrid", "granitehybrid", "layers of a state space model"),
    ("granitemoeshared", "", _SHARED),
    ("lfm2", "lfm2", "layers of convolutions"),
    ("lfm2_moe", "lfm2moe", "layers of convolutions"),
    ("llama4", "llama4", "attention in chunks, and experts that all tokens use"),
    ("llama4_text", "llama4", "attention in chunks, and experts that all tokens use"),
    ("ministral", "", "windows in some layers"),
    ("qwen2_moe", "qwen2moe", _SHARED),
    ("qwen3_5", "qwen35", _LINEAR),
    ("qwen3_5_moe", "qwen35moe", _LINEAR),
    ("qwen3_5_text", "qwen35", _LINEAR),
    ("qwen3_next", "qwen3next", _LINEAR),
)
MISSING_PARTS: Mapping[str, str] = {name: part for name, _, part in _FAMILIES}
"""The missing part of each family, by the name in `config.json`."""
MISSING_PARTS_OF_GGUF: Mapping[str, str] = {
    name: part for _, name, part in _FAMILIES if name
}
"""The missing part of each family, by the name in GGUF files."""
