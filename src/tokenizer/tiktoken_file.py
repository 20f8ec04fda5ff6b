"""Read Meta's `tokenizer.model` for Llama 3: one token per line, `<base64> <rank>`."""

import binascii
import stat
from pathlib import Path

from .errors import TokenizerError, shown

# Llama 3's own file has 2.2 MB, 128 000 ranks and tokens of up to 128 bytes.
MAX_FILE_BYTES = 64 << 20
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
    data = _read_bytes(path)
    if data.startswith(_BYTE_ORDER_MARKS):
        raise _error(path, 1, "base64 text", f"a byte order mark ({data[:3].hex(' ')})")
    lines = data.split(b"\n")
    if lines.pop():
        raise _error(path, len(lines) + 1, "a newline at the end", "the end of the file")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines):
        text, _, rank = line.partition(b" ")
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
        raise _error(path, len(lines), "a token for every single byte", got)
    return ranks


def is_sentencepiece_file(path: Path) -> bool:
    """Tell whether a `tokenizer.model` is a SentencePiece model, as Llama 2 has.

    Such a file is a protobuf message: it begins with field 1, a piece, whose first field is the
    piece's text; the piece of id 0 is `<unk>`.
    """
    head = _read_bytes(path)[:64]
    return head.startswith(b"\n") and b"\n\x05<unk>" in head


def _read_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for a writer
            raise TokenizerError(f"{shown(path)}: expected a regular file, got something else")
        if status.st_size > MAX_FILE_BYTES:
            raise TokenizerError(
                f"{shown(path)}: size: expected at most {MAX_FILE_BYTES} bytes, "
                f"got {status.st_size}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{shown(path)}: cannot be read: {error.strerror}") from error
    if not data:
        raise _error(path, 1, "'<base64> <rank>'", "an empty file")
    return data


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
    return TokenizerError(f"{shown(path)}: line {line}: expected {expected}, got {got}")
