"""Tiny models whose tokenizer has another number of tokens than the embeddings have
rows.
"""

import json
from dataclasses import replace
from pathlib import Path

from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import GROUPED
from tests.support.sentencepiece_writer import RESERVED, model_message

PIECES = len(RESERVED)
SPECIAL = PIECES
PLAIN = PIECES + 1
"""The ids of two tokens beyond the pieces: no text becomes the first one."""

SPECIAL_TEXT = "[PAD]"
PLAIN_TEXT = "<pad>"


def write_vocabulary(directory: Path, rows: int, **changes: object) -> Path:
    """Write a model of so many rows with two tokens more than a SentencePiece model has
    pieces.
    """
    config = replace(GROUPED, vocab=rows)
    write_tiny(directory, config, generation={"eos_token_id": 2}, **changes)
    (directory / "tokenizer.model").write_bytes(model_message(RESERVED))
    added = {SPECIAL_TEXT: SPECIAL, PLAIN_TEXT: PLAIN}
    (directory / "added_tokens.json").write_text(json.dumps(added))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": SPECIAL_TEXT})
    )
    return directory
