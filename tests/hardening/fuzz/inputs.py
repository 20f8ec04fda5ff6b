"""Small valid inputs of each parser; the smaller, the more of them are tried in a
second.
"""

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from src.checkpoint.packed_weights import INT8_CONFIG, NF4_CONFIG
from src.cli.answer import Settings
from src.cli.saved_chat import SavedChat, chat_as_json
from src.cli.session import Turn
from tests.checkpoint.test_packed_weights import int8_parts, nf4_parts
from tests.hardening.fuzz.bed import Make
from tests.inference.published_templates import CHATML_BOS, LLAMA2, LLAMA3, TINYLLAMA
from tests.model.tiny import Tiny
from tests.support.adapters import (
    gguf_arrays,
    mlx_arrays,
    peft_arrays,
    peft_config,
    random_pairs,
    write_gguf,
)
from tests.support.gguf_writer import CODES, Typed, gguf_bytes, q8_0
from tests.support.hugging_face_writer import CONFIG
from tests.support.pth_writer import (
    SMALL_PARAMS,
    StoredZipWriter,
    dict_program,
    storage_id,
    tensor_call,
    write_archive,
    write_pth,
)
from tests.support.safetensors_writer import write_safetensors
from tests.support.sentencepiece_writer import NORMAL, RESERVED, model_message
from tests.tokenizer.conftest import tiktoken_lines
from tests.tokenizer.json_files import added, byte_level_file, changed

Json = dict[str, Any]
SHARDS = ("a.safetensors", "b.safetensors")


def small_tensors() -> "dict[str, np.ndarray[Any, Any]]":
    return {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b.weight": np.arange(3, dtype=np.float16),
    }


def program() -> bytes:
    whole = storage_id("FloatStorage", "0", 6)
    calls = {
        "a": tensor_call(whole, 0, [2, 3], [1, 2]),
        "b": tensor_call(whole, 5, [], []),
    }
    return dict_program(calls)


def archives(folder: Path) -> list[bytes]:
    path = folder / "made"
    write_archive(path, program(), {"0": bytes(24)}, prefix="m")
    shared = path.read_bytes()
    write_pth(path, small_tensors())
    return [shared, path.read_bytes()]


def small_archives(folder: Path) -> list[bytes]:
    stream = io.BytesIO()
    archive = StoredZipWriter(stream, "m")
    archive.record("a", 3, [b"abc"])
    archive.record("b", 0, [])
    archive.finish()
    return [stream.getvalue()]


def safetensors_bytes(folder: Path, arrays: "dict[str, np.ndarray[Any, Any]]") -> bytes:
    path = folder / "made"
    write_safetensors(path, arrays, {"format": "pt"})
    return path.read_bytes()


def safetensors(folder: Path) -> list[bytes]:
    return [safetensors_bytes(folder, small_tensors())]


def packed(folder: Path) -> list[bytes]:
    """Write one matrix as NF4, as NF4 with double quantization, and as int8."""
    matrix = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    weights = (
        nf4_parts("w", matrix, False),
        nf4_parts("w", matrix, True),
        int8_parts("w", matrix),
    )
    return [safetensors_bytes(folder, parts) for parts in weights]


def gguf(folder: Path) -> list[bytes]:
    """Write every type of value and of plain tensor, and a block."""
    keys = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.context_length": 8,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.feed_forward_length": 8,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.scaling.factor": 2.0,
    }
    table = np.ones((2, 32), np.float32)
    tensors = {
        "token_embd.weight": q8_0(table),
        "blk.0.attn_q.bias": small_tensors()["a"],
    }
    values = {str(kind): Typed(kind, 1) for kind in CODES} | {
        "texts": ["a", "b"],
        "n": [1, 2],
    }
    halves = {
        "token_embd.weight": table.astype(np.float16),
        "h": small_tensors()["b.weight"],
    }
    return [gguf_bytes(keys, tensors), gguf_bytes(keys | values, halves)]


WORDS = [("\u2581", -1.0, NORMAL), ("t", -2.0, NORMAL), ("h", -3.0, NORMAL)]
WORDS += [("th", -4.0, NORMAL), ("\u2581th", -5.0, NORMAL)]


def vocabularies(folder: Path) -> list[bytes]:
    """Write a vocabulary of pieces, and one of byte-level BPE."""
    prefix = "tokenizer.ggml."
    texts, scores, kinds = zip(*RESERVED, *WORDS, strict=True)
    pieces = {
        "model": "llama",
        "tokens": [*texts],
        "scores": [*scores],
        "token_type": [*kinds],
    }
    pieces |= {"add_space_prefix": True, "bos_token_id": 1}
    letters = {"model": "gpt2", "pre": "llama-bpe", "tokens": ["a", "b", "ab", "<|x|>"]}
    letters |= {"token_type": [1, 1, 1, 3], "merges": ["a b"], "eos_token_id": 3}
    return [
        gguf_bytes({prefix + k: v for k, v in keys.items()}) for keys in (pieces, letters)
    ]


def as_text(*texts: str) -> Make:
    return lambda folder: [text.encode() for text in texts]


def as_json(*values: object) -> Make:
    return lambda folder: [
        json.dumps(value, ensure_ascii=False).encode() for value in values
    ]


def as_ranks(*tokens: bytes) -> Make:
    return lambda folder: [b"".join(line + b"\n" for line in tiktoken_lines(tokens))]


FEW_TOKENS = (b"a", b"b", b"\x00", b"ab", b"\xff", b"abab", b"\xf0\x9f\x99\x82")


def pieces(folder: Path) -> list[bytes]:
    return [model_message([*RESERVED, *WORDS])]


def small_tokenizers(folder: Path) -> list[bytes]:
    """Write a file of eight tokens."""
    letters = {
        token: number
        for number, token in enumerate(("t", "h", "e", "\u0120", "th", "the"))
    }
    specials = [added(6, "<|endoftext|>", special=True), added(7, "<x>", lstrip=True)]
    return as_json(
        changed(byte_level_file(), model={"vocab": letters}, added_tokens=specials)
    )(folder)


def chats(folder: Path) -> list[bytes]:
    settings = Settings(0.5, 7, 0.8, 0.1, 1.2, 3, max_tokens=20, stop=("end",))
    turns = (Turn("H\u00e9llo \U0001f642", "\x1b[31mred\n"),)
    chat = SavedChat("m", False, settings, "Be short.", turns)
    return [chat_as_json(chat)]


TEMPLATES = (LLAMA3, LLAMA2, CHATML_BOS, TINYLLAMA)
PARAMS = SMALL_PARAMS | {"ffn_dim_multiplier": 1.3, "use_scaled_rope": True}
LLAMA_3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
OLDER = {k: v for k, v in CONFIG.items() if k not in ("rope_parameters", "dtype")}
OLDER |= {"rope_theta": 5e5, "rope_scaling": LLAMA_3_ROPE, "torch_dtype": "bfloat16"}
MISTRAL = CONFIG | {"model_type": "mistral", "sliding_window": None}
MISTRAL |= {"architectures": ["MistralForCausalLM"]}
for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
    MISTRAL.pop(key)
GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6, "top_p": 0.9}
DOUBLE = NF4_CONFIG | {
    "bnb_4bit_use_double_quant": True,
    "llm_int8_skip_modules": ["lm_head"],
}
QUANTIZATION: list[Json] = [DOUBLE, INT8_CONFIG]
TOKENIZER_CONFIG: Json = {
    "add_bos_token": True,
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "additional_special_tokens": ["<|im_end|>"],
    "added_tokens_decoder": {"264": {"content": "<|im_end|>", "special": True}},
    "chat_template": [{"name": "default", "template": "{{ bos_token }}"}],
    "legacy": True,
}
INDEX = {"metadata": {"total_size": 0}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
TEXTS = ("", "a\x1b[2J\x9b\u202eb", "\x1b]0;t\x07\r\n\t\u2028 \U0001f642")


ADAPTER_ARGS = Tiny("adapted", 8, 1, 2, 1, 12, 16).args()
ADAPTER_PAIRS = random_pairs(ADAPTER_ARGS, 2, modules="q_proj down_proj embed_tokens")
ADAPTER_MODULES = ["q_proj", "down_proj", "embed_tokens"]
PEFT_CONFIG = peft_config(2, 4, ADAPTER_MODULES)
PEFT_CONFIGS = (
    PEFT_CONFIG,
    PEFT_CONFIG
    | {
        "r": 3,
        "target_modules": r".*\.(q_proj|down_proj|embed_tokens)",
        "rank_pattern": {"q_proj": 2, ".*embed.*": 2, "down_proj": 2},
        "alpha_pattern": {r"layers\.0\..*": 9},
        "use_rslora": True,
        "exclude_modules": ["v_proj"],
        "layers_to_transform": [0],
    },
)
MLX_CONFIG: Json = {
    "fine_tune_type": "lora",
    "lora_parameters": {"rank": 2, "scale": 2.0, "keys": ["self_attn.q_proj"]},
}


def peft_adapters(folder: Path) -> list[bytes]:
    return [safetensors_bytes(folder, peft_arrays(ADAPTER_PAIRS))]


def mlx_adapters(folder: Path) -> list[bytes]:
    return [safetensors_bytes(folder, mlx_arrays(ADAPTER_PAIRS))]


def gguf_adapters(folder: Path) -> list[bytes]:
    path = folder / "made.gguf"
    path.unlink(missing_ok=True)
    write_gguf(path, gguf_arrays(ADAPTER_PAIRS, ADAPTER_ARGS, is_interleaved=True))
    return [path.read_bytes()]


def in_folder(make: Make) -> bytes:
    """Return the first input that a function makes."""
    with tempfile.TemporaryDirectory() as name:
        return make(Path(name))[0]
