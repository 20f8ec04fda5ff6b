"""Read Meta's `tokenizer.model` for Llama 3, which has one `<base64> <rank>` per line."""

import binascii
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from ..untrusted import read_whole, shown
from .bpe import spelled_merges
from .config_files import MAX_FILE_BYTES, MAX_TOKEN_LENGTH, MAX_TOKENS
from .encoders import ByteLevelEncoder, ByteLevelPipeline
from .errors import TokenizerError, mismatch
from .pre_tokenizers import LLAMA_3
from .tokenizer import Decoding, Roles, Tokenizer

# The names of Llama 3.1's 256 special tokens. Their ids follow the ranks in the file, so
# the first name has id V - 256. Source: meta-llama/llama-models
# models/llama3/api/tokenizer.py, commit e046ca91d9cb3217dc0a1b4874cac3273fbe1ad1. (Later
# commits name the twelfth token `<|image|>`, for Llama 3.2 Vision, which shifts the
# reserved tokens by one. The ids of all other names are the same.)
STOP_TOKEN_NAMES = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")

_NAMED = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)

SPECIAL_TOKEN_NAMES = _NAMED + tuple(
    f"<|reserved_special_token_{number}|>" for number in range(2, 2 + 256 - len(_NAMED))
)


def read_tiktoken_file(path: Path) -> dict[bytes, int]:
    """Read a file of base64 tokens with ranks.

    Line i (counting from 0) must consist of a new token in canonical base64, one space,
    and i in decimal. tiktoken is less strict: it skips empty lines, lets a later line
    replace an earlier one, and accepts gaps between ranks. These are errors here, because
    a vocabulary that lacks a token would silently produce different ids.

    A file that is truncated between two lines is a valid smaller vocabulary. The
    truncation shows only when the vocabulary size is compared with the model's.

    Returns:
        A mapping from each token to its rank, in rank order.

    Raises:
        TokenizerError: A line is invalid, or a single byte has no token.
    """
    data = read_whole(path, MAX_FILE_BYTES, TokenizerError)
    if not data:
        raise mismatch(path, "line 1", "'<base64> <rank>'", "an empty file")
    count = data.count(b"\n")
    if not data.endswith(b"\n"):
        raise mismatch(
            path, f"line {count + 1}", "a newline at the end", "the end of the file"
        )
    ranks: dict[bytes, int] = {}
    # Lines are split lazily, because the first invalid line ends the loop.
    for number, terminated_line in enumerate(BytesIO(data)):
        line = terminated_line[:-1]
        text, _, rank = line.partition(b" ")
        if number == MAX_TOKENS:
            raise mismatch(
                path, f"line {number + 1}", f"at most {MAX_TOKENS} tokens", "more"
            )
        try:
            token = binascii.a2b_base64(text)
        except binascii.Error:
            token = b""
        if (
            rank != b"%d" % number
            or not 0 < len(token) <= MAX_TOKEN_LENGTH
            or binascii.b2a_base64(token, newline=False) != text
            or token in ranks
        ):
            expected = (
                f"base64 of a new token of 1 to {MAX_TOKEN_LENGTH} bytes, and rank "
                f"{number}"
            )
            actual = shown(line.decode(errors="replace"))
            raise mismatch(path, f"line {number + 1}", expected, actual)
        ranks[token] = number
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        actual = f"none for byte 0x{missing[0]:02x} by the last line"
        raise mismatch(path, f"line {count}", "a token for every single byte", actual)
    return ranks


def llama3_tokenizer(ranks: Mapping[bytes, int]) -> Tokenizer:
    """Build the Llama 3 tokenizer from ranks, which are the ids of ordinary tokens.

    The ids of the 256 special tokens follow the ranks.
    """
    tokens = list(ranks)
    merges = spelled_merges(tokens, ranks, ranks)
    special = {
        name: number for number, name in enumerate(SPECIAL_TOKEN_NAMES, start=len(ranks))
    }
    return Tokenizer(
        [*tokens, *(name.encode() for name in SPECIAL_TOKEN_NAMES)],
        special,
        ByteLevelEncoder(ranks, merges, ByteLevelPipeline(LLAMA_3), whole=True),
        Roles(
            bos_id=special["<|begin_of_text|>"],
            eos_id=special["<|end_of_text|>"],
            stop_ids=frozenset(special[name] for name in STOP_TOKEN_NAMES),
            adds_bos=True,
        ),
        Decoding(),
    )
