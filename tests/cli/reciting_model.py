"""A model whose answer is known: it recites given bytes, one token each, then ends its
turn.

Each token has a dimension of its own, attention and feed-forward add nothing, and the
output matrix says which token follows which. So the next token depends on the last one
alone, with a lead that no sampling setting overturns.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.model.tiny import write_byte_tokenizer
from tests.support.pth_writer import write_pth

VOCABULARY = 512  # 256 single bytes and 256 special tokens
EOT_ID = 256 + 9
HEADS = 4
KV_HEADS = 2
FFN = 8
LONGEST_CONTEXT = 1 << 20
_LEAD = 10.0


def write_reciting_directory(
    directory: Path, answer: bytes, *, endless: bool = False, poisoned: bool = False
) -> Path:
    """Writes a model in Meta's layout; its answer may start anew at its end, its logits
    be NaN.

    The bytes of the answer differ from each other and from the newline, after which it
    starts.
    """
    assert len(set(answer)) == len(answer)
    assert b"\n" not in answer
    directory.mkdir(parents=True, exist_ok=True)
    params = {
        "dim": VOCABULARY,
        "n_layers": 1,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "use_scaled_rope": True,
        "max_seq_len": LONGEST_CONTEXT,
    }
    (directory / "params.json").write_text(json.dumps(params))
    write_byte_tokenizer(directory / "tokenizer.model")
    output = _successors(answer, endless) * (np.nan if poisoned else 1.0)
    write_pth(directory / "consolidated.00.pth", _tensors(output))
    return directory


def _tensors(successors: "np.ndarray") -> "dict[str, np.ndarray]":
    D = VOCABULARY
    h = VOCABULARY // HEADS
    shapes = {
        "layers.0.attention.wq.weight": (D, D),
        "layers.0.attention.wk.weight": (KV_HEADS * h, D),
        "layers.0.attention.wv.weight": (KV_HEADS * h, D),
        "layers.0.attention.wo.weight": (D, D),
        "layers.0.feed_forward.w1.weight": (FFN, D),
        "layers.0.feed_forward.w3.weight": (FFN, D),
        "layers.0.feed_forward.w2.weight": (D, FFN),
    }
    tensors: dict[str, np.ndarray[Any, Any]] = {"tok_embeddings.weight": np.eye(D)}
    tensors |= {name: np.zeros(shape) for name, shape in shapes.items()}
    for norm in ("layers.0.attention_norm", "layers.0.ffn_norm", "norm"):
        tensors[f"{norm}.weight"] = np.ones(D)
    tensors["output.weight"] = _LEAD * successors
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}


def _successors(answer: bytes, endless: bool) -> "np.ndarray":
    """Returns [V, V] with a one at (next token, token)."""
    follows = np.full(VOCABULARY, answer[0])
    follows[list(answer)] = [*answer[1:], answer[0] if endless else EOT_ID]
    return np.eye(VOCABULARY)[follows].T
