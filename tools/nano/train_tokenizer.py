"""Train the byte-level BPE vocabulary of the bundled model and write it as
`tokenizer.model`.

Run `python -m tools.nano.train_tokenizer`. Needs the `oracle` extra (tokenizers,
tiktoken).
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path

from src.cli.reference_encoding import SPLIT_PATTERN
from src.model.sources import BUNDLED_MODEL

from .documents import tokenizer_texts

RANK_COUNT = 3840
SPECIAL_COUNT = 256
TEXT_SEED = 31
BEGIN_OF_TEXT = 0
END_OF_TEXT = 1
START_HEADER = 6
END_HEADER = 7
END_OF_TURN = 9
"""Offsets of special tokens behind the ranks, in the order of Llama 3.1."""


def _byte_letters() -> dict[str, int]:
    """Return the letters of byte-level BPE: printable bytes as they are, others from 256
    up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


def train_ranks() -> list[bytes]:
    """Return the tokens in rank order: the 256 single bytes, then the merges as they were
    found.

    Digits are kept apart while merges are found, so a number is always a row of single
    digits.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=RANK_COUNT,
        initial_alphabet=sorted(_byte_letters()),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(tokenizer_texts(TEXT_SEED), trainer)
    letters = _byte_letters()
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(letters[letter] for letter in text) for text, _ in by_id]
    if sorted(tokens[:256]) != [bytes([byte]) for byte in range(256)]:
        raise ValueError("the first 256 ranks must be the single bytes")
    return tokens


def write_tokenizer(tokens: list[bytes], path: Path) -> None:
    """Write one line `base64(token) rank` per token."""
    lines = (
        f"{base64.b64encode(token).decode()} {rank}\n"
        for rank, token in enumerate(tokens)
    )
    path.write_text("".join(lines))


def main() -> None:
    """Train the ranks and write `tokenizer.model` into the model directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=BUNDLED_MODEL, help="the model directory"
    )
    path = parser.parse_args().output / "tokenizer.model"
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens = train_ranks()
    write_tokenizer(tokens, path)
    print(f"{len(tokens)} ranks written to {path}")


if __name__ == "__main__":
    main()
