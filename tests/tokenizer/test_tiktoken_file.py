import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from src.tokenizer import TokenizerError
from src.tokenizer import tiktoken_file as reader
from src.tokenizer.config_files import MAX_TOKEN_LENGTH
from src.tokenizer.tiktoken_file import SPECIAL_TOKEN_NAMES
from tests.support.shared_data import shared_data
from tests.tokenizer.conftest import SINGLE_BYTES, check_refused, tiktoken_lines

Write = Callable[[bytes], Path]
read = reader.read_tiktoken_file

TOKENS = (*SINGLE_BYTES, b"he", b"hel", b"hello")
LINES = tiktoken_lines(TOKENS)
# lines of single bytes, counted from 0
A = 65
E = 69


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def with_line(line: bytes, index: int = A) -> bytes:
    return joined([*LINES[:index], line, *LINES[index + 1 :]])


def token_of(size: int) -> bytes:
    return base64.b64encode(b"x" * size) + b" 258"


# (what is wrong, the file, the line named, what the message says)
MALFORMED = [
    ("empty", b"", 1, "an empty file"),
    ("only a newline", b"\n", 1, "base64 of a new token"),
    (
        "UTF-8 mark",
        b"\xef\xbb\xbf" + joined(LINES),
        1,
        r"a new token .*, got '\\ufeffAA== 0'",
    ),
    ("UTF-16 mark", joined(LINES).decode().encode("utf-16"), 260, "a newline at the end"),
    ("base64: bad letter", with_line(b"Q!== 65"), 66, "base64 of a new token"),
    ("base64: no padding", with_line(b"QQ 65"), 66, "a new token .*, got 'QQ 65'"),
    ("base64: bits beyond the token", with_line(b"QR== 65"), 66, "base64 of a new token"),
    ("base64: padding within", with_line(b"QQ==QQ== 65"), 66, "base64 of a new token"),
    ("base64: URL letters", with_line(b"_w== 255", 255), 256, "base64 of a new token"),
    ("empty token", with_line(b" 65"), 66, "base64 of a new token"),
    ("missing rank", with_line(b"QQ=="), 66, "base64 of a new token"),
    ("negative rank", with_line(b"QQ== -65"), 66, "and rank 65, got '"),
    ("rank with a plus", with_line(b"QQ== +65"), 66, "and rank 65, got '"),
    ("rank with leading zero", with_line(b"QQ== 065"), 66, "and rank 65, got '"),
    ("rank in other digits", with_line("QQ== ٦٥".encode()), 66, "rank 65"),
    ("rank is no number", with_line(b"QQ== x"), 66, "and rank 65, got '"),
    ("rank of 5 000 digits", with_line(b"QQ== " + b"6" * 5000), 66, "and rank 65, got '"),
    ("duplicate rank", with_line(b"QQ== 64"), 66, "and rank 65, got '"),
    ("gap", joined([*LINES[:257], LINES[258]]), 258, "and rank 257, got '"),
    (
        "out of order",
        joined([*LINES[:256], LINES[257], LINES[256], LINES[258]]),
        257,
        "rank 256",
    ),
    ("duplicate token", with_line(b"QQ== 69", E), 70, "a new token .*, got 'QQ== 69'"),
    ("two spaces", with_line(b"QQ==  65"), 66, "and rank 65, got '"),
    ("carriage return", with_line(b"QQ== 65\r"), 66, "and rank 65, got '"),
    (
        "blank line within",
        joined([*LINES[:A], b"", *LINES[A:]]),
        66,
        "base64 of a new token",
    ),
    ("blank line at the end", joined([*LINES, b""]), 260, "base64 of a new token"),
    ("no newline at the end", joined(LINES)[:-1], 259, "a newline at the end"),
    ("text after the end", joined(LINES) + b"x", 260, "a newline at the end"),
    ("NUL", with_line(b"QQ==\0 65"), 66, r"a new token .*, got 'QQ==\\x00 65'"),
    ("control characters", with_line(b"\x1b[2J\xff 65"), 66, r"got '\\x1b\[2J� 65'"),
    (
        "a single byte missing",
        joined(tiktoken_lines([*TOKENS[:A], *TOKENS[A + 1 :]])),
        258,
        "a token for every single byte, got none for byte 0x41",
    ),
    ("token too long", with_line(token_of(4097), 258), 259, "of 1 to 4096 bytes"),
]


@pytest.mark.parametrize(
    ("data", "line", "message"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED]
)
def test_a_malformed_file_is_refused_by_its_line(write_model, data, line, message):
    path = write_model(data)
    with pytest.raises(
        TokenizerError, match=rf"tokenizer\.model: line {line}: .*{message}"
    ) as got:
        read(path)
    assert str(got.value).isprintable()
    assert len(str(got.value)) < 400
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        SINGLE_BYTES,  # nothing ever merges
        TOKENS[::-1],  # single bytes last
        (*TOKENS, b"x" * MAX_TOKEN_LENGTH),
        (*TOKENS, b"\0\n\r \xff"),
    ],
)
def test_the_valid_twin_loads_with_every_token(write_model, tokens):
    ranks = read(write_model(joined(tiktoken_lines(tokens))))
    assert list(ranks.items()) == [(token, rank) for rank, token in enumerate(tokens)]


def test_a_file_cut_off_anywhere_never_gives_a_short_vocabulary(write_model):
    """Between two lines of merged tokens the rest is a vocabulary of its own; nowhere
    else.

    Of the single bytes, each place in a line is met, in every seventh line.
    """
    data = joined(LINES)
    whole_lines = {len(joined(LINES[:count])) for count in range(256, 260)}
    for size in (*range(0, len(data), 7), *range(min(whole_lines) - 20, len(data) + 1)):
        path = write_model(data[:size])
        if size in whole_lines:
            read(path)
        else:
            with pytest.raises(TokenizerError, match=r"line \d+: expected"):
                read(path)


def test_as_many_tokens_as_the_limit_are_read_and_one_more_is_refused(
    write_model, monkeypatch
):
    path = write_model(joined(LINES))
    monkeypatch.setattr(reader, "MAX_TOKENS", len(LINES))
    assert len(read(path)) == len(LINES)
    monkeypatch.setattr(reader, "MAX_TOKENS", len(LINES) - 1)
    with pytest.raises(
        TokenizerError, match=rf"line {len(LINES)}: expected at most .* got more"
    ):
        read(path)


HOSTILE = {
    "newlines": b"\n" * (1 << 20),
    "one line": b"A" * (1 << 20) + b"\n",
    "the same line": b"QQ== 0\n" * 149_796,
    "spaces": b" " * (1 << 20) + b"\n",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_of_1_mib_is_refused_within_a_second_and_64_mib(write_model, data):
    check_refused(read, write_model(data))


def test_metas_file_reads_as_tiktoken_reads_it():
    tiktoken = pytest.importorskip("tiktoken.load", reason="needs the oracle extra")
    path = shared_data("llama3/tokenizer.model")
    ranks = read(path)
    assert ranks == tiktoken.load_tiktoken_bpe(str(path))
    assert reader.llama3_tokenizer(ranks).vocab_size == 128256


# The special tokens of Llama 3


def test_the_named_ones_stand_where_meta_has_them():
    assert SPECIAL_TOKEN_NAMES[:12] == (
        "<|begin_of_text|>",  # 128000
        "<|end_of_text|>",  # 128001
        "<|reserved_special_token_0|>",  # 128002
        "<|reserved_special_token_1|>",  # 128003
        "<|finetune_right_pad_id|>",  # 128004
        "<|step_id|>",  # 128005
        "<|start_header_id|>",  # 128006
        "<|end_header_id|>",  # 128007
        "<|eom_id|>",  # 128008
        "<|eot_id|>",  # 128009
        "<|python_tag|>",  # 128010
        "<|reserved_special_token_2|>",  # 128011
    )
    assert SPECIAL_TOKEN_NAMES[-1] == "<|reserved_special_token_246|>"  # 128255


def test_all_names_are_those_of_the_file_in_hugging_faces_format():
    tokens = json.loads(shared_data("llama3/tokenizer.json").read_bytes())["added_tokens"]
    names = {token["id"]: token["content"] for token in tokens}
    assert names == dict(enumerate(SPECIAL_TOKEN_NAMES, start=128000))
