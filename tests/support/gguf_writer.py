"""Write GGUF files without the gguf package: good ones, and deliberately bad ones from
their parts.

A value is written by its Python type: bool, int as uint32, float as float32, str, and
lists of one of these, integers as int32; `Typed` says another type.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from src.tokenizer.sentencepiece_model import SentencePieceModel

(
    UINT8,
    INT8,
    UINT16,
    INT16,
    UINT32,
    INT32,
    FLOAT32,
    BOOL,
    STRING,
    ARRAY,
    UINT64,
    INT64,
    FLOAT64,
) = range(13)
CODES = {
    UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f",
    BOOL: "?", UINT64: "Q", INT64: "q", FLOAT64: "d",
}  # fmt: skip
F32 = 0
F16 = 1
Q4_0 = 2
Q8_0 = 8
BF16 = 30
TYPE_OF_DTYPE = {
    np.dtype(np.float32): F32,
    np.dtype(np.float16): F16,
    np.dtype(ml_dtypes.bfloat16): BF16,
}
NAMES = {
    "tok_embeddings": "token_embd",
    "norm": "output_norm",
    "output": "output",
    "attention.wq": "attn_q",
    "attention.wk": "attn_k",
    "attention.wv": "attn_v",
    "attention.wo": "attn_output",
    "attention_norm": "attn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "ffn_norm": "ffn_norm",
}
Array = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Typed:
    """A value and the number of its type; of an array, that of its values."""

    kind: int
    value: Any


@dataclass(frozen=True)
class Stored:
    """A tensor by its shape, `[out, in]`, the number of its type, and its bytes."""

    shape: tuple[int, ...]
    kind: int
    content: bytes


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(f"<{CODES[kind]}", value)


def array(kind: int, values: Sequence[Any]) -> bytes:
    """Form the bytes of an array after its type `ARRAY`."""
    head = struct.pack("<IQ", kind, len(values))
    if kind == STRING:
        return head + b"".join(map(text, values))
    return head + struct.pack(f"<{len(values)}{CODES[kind]}", *values)


def key(name: str | bytes, value: Any) -> bytes:
    """Form the bytes of a key; a value of bytes is written as it is, with its type."""
    if isinstance(value, bytes):
        return text(name) + value
    typed = value if isinstance(value, Typed) else Typed(_kind_of(value), value)
    if isinstance(typed.value, list):
        return text(name) + struct.pack("<I", ARRAY) + array(typed.kind, typed.value)
    return text(name) + struct.pack("<I", typed.kind) + scalar(typed.kind, typed.value)


def _kind_of(value: Any) -> int:
    is_list = isinstance(value, list)
    kinds = {str: STRING, float: FLOAT32, bool: BOOL, int: INT32 if is_list else UINT32}
    return kinds[type(value[0] if is_list else value)]


def entry(name: str | bytes, sizes: Sequence[int], kind: int, offset: int) -> bytes:
    """Form the bytes of a tensor's entry; `sizes` as in the file, the contiguous one
    first.
    """
    form = f"<I{len(sizes)}QIQ"
    return text(name) + struct.pack(form, len(sizes), *sizes, kind, offset)


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def stored(values: Any) -> Stored:
    """Describe an array of float32, float16 or bfloat16."""
    return Stored(
        values.shape, TYPE_OF_DTYPE[values.dtype], np.ascontiguousarray(values).tobytes()
    )


def q8_0(values: Any) -> Stored:
    """Quantize a float32 matrix: in each block of 32, the scale is the largest / 127."""
    blocks = values.astype(np.float32).reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    codes = np.round(blocks / np.where(scales, scales, 1)).astype(np.int8)
    parts = (scales.astype(np.float16).view(np.uint8), codes.view(np.uint8))
    return Stored(values.shape, Q8_0, np.concatenate(parts, axis=1).tobytes())


def gguf_bytes(
    keys: Mapping[str, Any] | Iterable[tuple[str, Any]],
    tensors: Mapping[str, Any] | None = None,
    *,
    version: int = 3,
) -> bytes:
    """Form a whole file; tensors are arrays or `Stored`, at multiples of 32 bytes."""
    pairs = list(keys.items() if isinstance(keys, Mapping) else keys)
    described = {
        n: t if isinstance(t, Stored) else stored(t) for n, t in (tensors or {}).items()
    }
    head = header(len(described), len(pairs), version) + b"".join(
        key(*pair) for pair in pairs
    )
    data = bytearray()
    for name, tensor in described.items():
        data += bytes(-len(data) % 32)
        head += entry(name, tensor.shape[::-1], tensor.kind, len(data))
        data += tensor.content
    return head + bytes(-len(head) % 32) + bytes(data)


def llama_keys(sizes: Any, context_length: int = 4096) -> dict[str, Any]:
    """Give the keys of a Llama of the sizes that `Tiny` has."""
    return {
        "general.architecture": "llama",
        "llama.context_length": context_length,
        "llama.embedding_length": sizes.dim,
        "llama.block_count": sizes.layers,
        "llama.feed_forward_length": sizes.ffn,
        "llama.attention.head_count": sizes.heads,
        "llama.attention.head_count_kv": sizes.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": sizes.eps,
        "llama.rope.freq_base": sizes.theta,
        "llama.rope.dimension_count": sizes.dim // sizes.heads,
    }


def gguf_name(name: str) -> str:
    """Give the name in GGUF files of a tensor with Meta's name."""
    parts = name.split(".")
    layer = f"blk.{parts[1]}." if parts[0] == "layers" else ""
    return f"{layer}{NAMES['.'.join(parts[2 if layer else 0 : -1])]}.{parts[-1]}"


def llama_tensors(weights: Mapping[str, Any], dtype: Any = np.float32) -> dict[str, Any]:
    """Give the tensors of a Llama as converters write them: matrices of a dtype, norms
    float32.
    """
    return {
        gguf_name(name): array.astype(dtype if array.ndim == 2 else np.float32)
        for name, array in weights.items()
    }


def byte_level_keys(file: dict[str, Any]) -> dict[str, Any]:
    """Give the keys that llama.cpp's converter makes of a `tokenizer.json` of byte-level
    BPE.
    """
    added = {token["content"]: token for token in file["added_tokens"]}
    ids = file["model"]["vocab"] | {name: token["id"] for name, token in added.items()}
    kinds = {name: 3 if token["special"] else 4 for name, token in added.items()}
    names = sorted(ids, key=ids.__getitem__)
    merges = file["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [kinds.get(name, 1) for name in names],
        "tokenizer.ggml.merges": [
            m if isinstance(m, str) else " ".join(m) for m in merges
        ],
    }


def sentencepiece_keys(model: SentencePieceModel) -> dict[str, Any]:
    """Give the keys that llama.cpp's converter makes of a SentencePiece model."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece.text for piece in model.pieces],
        "tokenizer.ggml.scores": [piece.score for piece in model.pieces],
        "tokenizer.ggml.token_type": [piece.kind for piece in model.pieces],
        "tokenizer.ggml.bos_token_id": model.ids[model.bos_piece],
        "tokenizer.ggml.eos_token_id": model.ids[model.eos_piece],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": model.add_dummy_prefix,
    }
