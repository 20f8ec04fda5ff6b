"""Read Meta's `tokenizer.model` for Llama 3: one token per line, `<base64> <rank>`."""

import binascii
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from .added_tokens import PlainText
from .bpe import spelled_merges
from .byte_level_text import ByteLevelText
from .errors import TokenizerError, label, shown
from .files import MAX_TOKENS, read_bytes
from .pieces import BytePieces
from .special_tokens import BEGIN_OF_TEXT, END_OF_TEXT, SPECIAL_TOKEN_NAMES, STOP_TOKEN_NAMES
from .split import LLAMA_3
from .tokenizer import Decoding, Roles, Tokenizer

# Llama 3's own file has tokens of up to 128 bytes.
MAX_TOKEN_BYTES = 4096

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def read_tiktoken_file(path: Path) -> dict[bytes, int]:
    """Read all tokens of a file of base64 ranks, or none.

    Stricter than tiktoken, which skips empty lines, lets a later line overwrite an earlier one
    and takes ranks with holes: a vocabulary that lacks a token gives other ids without a word.
    Line i (from 0) must be the canonical base64 of a new token, one space, and i in decimal. (A
    file cut off between two lines is a smaller vocabulary like any other; it shows when its
    size is compared with the model's.)

    Args:
        path: the file.

    Returns:
        Every token's bytes with its rank, in the order of ranks 0, 1, 2...

    Raises:
        TokenizerError: naming the file and the line, where the file is not exactly that.
    """
    data = read_bytes(path)
    if not data:
        raise _error(path, 1, "'<base64> <rank>'", "an empty file")
    if data.startswith(_BYTE_ORDER_MARKS):
        raise _error(path, 1, "base64 text", f"a byte order mark ({data[:3].hex(' ')})")
    count = data.count(b"\n")
    if not data.endswith(b"\n"):
        raise _error(path, count + 1, "a newline at the end", "the end of the file")
    ranks: dict[bytes, int] = {}
    for number, ended in enumerate(BytesIO(data)):  # one at a time: the first that is wrong ends it
        line = ended[:-1]
        text, _, rank = line.partition(b" ")
        if number == MAX_TOKENS:
            raise _error(path, number + 1, f"at most {MAX_TOKENS} tokens", "more")
        try:
            token = binascii.a2b_base64(text)
        except binascii.Error:
            token = b""
        if (
            rank != b"%d" % number
            or not 0 < len(token) <= MAX_TOKEN_BYTES
            or binascii.b2a_base64(token, newline=False) != text
            or token in ranks
        ):
            raise _line_error(path, number, line, ranks)
        ranks[token] = number
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        got = f"none for byte 0x{missing[0]:02x} by the last line"
        raise _error(path, count, "a token for every single byte", got)
    return ranks


def llama3_tokenizer(ranks: Mapping[bytes, int]) -> Tokenizer:
    """Form the tokenizer of Llama 3: base ranks first, then 256 special ids.

    Args:
        ranks: every token's bytes with its rank, which is also its id, in the order of ranks
            0, 1, 2..., as `read_tiktoken_file` gives them; all 256 single bytes are among them.
    """
    tokens = list(ranks)
    pieces = BytePieces(ranks, spelled_merges(tokens, ranks, ranks), whole=True)
    special = {name: number for number, name in enumerate(SPECIAL_TOKEN_NAMES, start=len(ranks))}
    return Tokenizer(
        [*tokens, *(name.encode() for name in SPECIAL_TOKEN_NAMES)],
        special,
        PlainText(ByteLevelText(pieces, LLAMA_3)),
        Roles(
            bos_id=special[BEGIN_OF_TEXT],
            eos_id=special[END_OF_TEXT],
            stop_ids=frozenset(special[name] for name in STOP_TOKEN_NAMES),
            adds_bos=True,
        ),
        Decoding(),
    )


def _line_error(path: Path, number: int, line: bytes, ranks: dict[bytes, int]) -> TokenizerError:
    """Say what is wrong with a line that is known to be wrong."""
    text, space, rank = line.partition(b" ")
    where = number + 1
    if not space or not rank:
        return _error(path, where, "'<base64> <rank>'", f"'{shown(line)}'")
    try:
        token = binascii.a2b_base64(text)
    except binascii.Error:
        token = b""
    if not token or binascii.b2a_base64(token, newline=False) != text:
        return _error(path, where, "a token in base64", f"'{shown(text)}'")
    if len(token) > MAX_TOKEN_BYTES:
        return _error(path, where, f"a token of at most {MAX_TOKEN_BYTES} bytes", str(len(token)))
    if rank != b"%d" % number:
        return _error(path, where, f"rank {number}", f"'{shown(rank)}'")
    return _error(path, where, "a new token", f"'{shown(text)}' of line {ranks[token] + 1} again")


def _error(path: Path, line: int, expected: str, got: str) -> TokenizerError:
    return TokenizerError(f"{label(path)}: line {line}: expected {expected}, got {got}")
