"""tiktoken's encoding of Llama 3, the reference for ids from a `tokenizer.model`."""

import base64
from pathlib import Path

import tiktoken

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The split pattern of Llama 3.

Source: meta-llama/llama-models, models/llama3/tokenizer.py.
"""


def load_encoding(path: Path) -> tiktoken.Encoding:
    """Return a tiktoken encoding with the ranks from a file and Llama 3's pattern."""
    lines = (line.split() for line in path.read_text().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding(
        path.name, pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
