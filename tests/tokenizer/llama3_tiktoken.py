"""tiktoken as Meta sets it up for Llama 3: the oracle for ids."""

from pathlib import Path
from typing import Any

# Source: meta-llama/llama-models models/llama3/tokenizer.py, commit
# a946b747aa1504b9cb07cfe95ee50180fa2e8b88. Written out again, so that the oracle shares nothing.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama3_encoding(path: Path) -> Any:
    """Read the file with tiktoken's own reader."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    return tiktoken.Encoding(
        "llama3",
        pat_str=PATTERN,
        mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens={},
    )
