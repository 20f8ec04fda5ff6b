import random
import time
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from src.tokenizer import encoders
from src.tokenizer.bpe import Merges, listed_merges, merge, spelled_merges
from src.tokenizer.encoders import (
    ByteLevelEncoder,
    ByteLevelPipeline,
    MetaspaceEncoder,
    MetaspacePipeline,
    PrependScheme,
    adjacent_bytes,
    character_symbols,
    words_are_independent,
)
from src.tokenizer.pre_tokenizers import GPT_2, LLAMA_3
from tests.tokenizer.conftest import TOKENS, ranks_of

PLAIN = ByteLevelPipeline(LLAMA_3)


def spelled(ranks: dict[bytes, int]) -> Merges:
    return spelled_merges(list(ranks), ranks, ranks)


def byte_level(*tokens: bytes, whole: bool = True) -> ByteLevelEncoder:
    ranks = ranks_of(*tokens)
    return ByteLevelEncoder(ranks, spelled(ranks), PLAIN, whole=whole)


def metaspace(*tokens: str, whole: bool = False) -> MetaspaceEncoder:
    """Tokens ranked in their order; the id of a byte is minus its number."""
    ids = {token: number for number, token in enumerate(tokens)}
    symbols = character_symbols(ids, len(ids))
    texts = [*tokens, *(c for c, number in symbols.items() if number >= len(ids))]
    merges = spelled_merges(texts, ids, ids)
    never = MetaspacePipeline(True, PrependScheme.NEVER, False, False)
    return MetaspaceEncoder(symbols, ids, merges, range(0, -256, -1), never, whole=whole)


@given(TOKENS, st.text(st.sampled_from("abcé"), min_size=1, max_size=120))
@settings(max_examples=150)
def test_a_piece_is_one_token_if_it_can_be_or_is_merged(tokens, piece):
    ranks = ranks_of(*tokens)
    merged = merge([*piece.encode()], spelled(ranks))
    whole = ranks.get(piece.encode())
    expected = merged if whole is None else [whole]
    assert byte_level(*tokens).encode_pieces([piece, piece]) == expected * 2
    assert byte_level(*tokens, whole=False).encode_pieces([piece, piece]) == merged * 2


def test_a_whole_piece_is_looked_up_before_anything_merges():
    """The token "abc" cannot be reached by merges: neither "ab" nor "bc" is a token.

    A part between two cuts is no whole piece: no token holds "c!", so "abc" is such a
    part.
    """
    encoder = byte_level(b"abc")
    marked = metaspace("a", "b", "c", "!", "abc", whole=True)
    assert encoder.encode_pieces(["abc"]) == [256]
    assert encoder.encode_pieces(["abcd"]) == [*b"abcd"]
    assert encoder.encode_pieces(["abc!"]) == [*b"abc!"]
    assert byte_level(b"abc", whole=False).encode_pieces(["abc"]) == [*b"abc"]
    assert marked.encode_pieces(["abc"]) == [4]
    assert marked.encode_pieces(["abc!"]) == [0, 1, 2, 3]
    assert metaspace("a", "b", "c", "abc").encode_pieces(["abc"]) == [0, 1, 2]


def test_bytes_are_adjacent_where_a_token_holds_them_so():
    assert adjacent_bytes(ranks_of(b"xyz", b"\xff\x00")) == {
        (ord("x"), ord("y")),
        (ord("y"), ord("z")),
        (0xFF, 0x00),
    }


def test_the_cache_is_bounded_in_entries_and_in_their_size():
    encoder = byte_level()
    encoder.encode_pieces(["x" * (encoders.CACHED_PIECE_CHARS + 1)])
    assert encoder._encode_cached.cache_info().currsize == 0
    encoder.encode_pieces(["x" * encoders.CACHED_PIECE_CHARS])
    assert encoder._encode_cached.cache_info().currsize == 1
    assert encoder._encode_cached.cache_info().maxsize == encoders.CACHED_PIECES


def test_a_byte_without_a_token_is_left_out_before_anything_merges():
    tokens = {b"a": 0, b"b": 1, b"ab": 2}
    encoder = ByteLevelEncoder(tokens, spelled(tokens), PLAIN, whole=True)
    assert encoder.encode_pieces(["a!b", "!", "b"]) == [2, 1]


def test_a_character_without_a_token_falls_back_where_it_is_left():
    """SentencePiece joins texts, so "x" may merge though it is no token itself."""
    assert metaspace("a", "b", "ab").encode_pieces(["a!b", "ab"]) == [0, -ord("!"), 1, 2]
    pieces = ["ax", "xa", "x", "aax"]
    assert metaspace("a", "ax").encode_pieces(pieces) == [1, -120, 0, -120, 0, 1]


@given(
    st.lists(st.text("ab\u2581", min_size=1, max_size=5), unique=True, max_size=20),
    st.text("ab\u2581c", max_size=100),
)
def test_cutting_a_piece_between_tokens_changes_no_id(tokens, piece):
    tokens = list(dict.fromkeys(["a", "b", "\u2581", "c", *tokens]))
    ids = {token: number for number, token in enumerate(tokens)}
    merged = (
        merge([ids[c] for c in piece], spelled_merges(tokens, ids, ids)) if piece else []
    )
    assert metaspace(*tokens).encode_pieces([piece] if piece else []) == merged


# Metaspaces


def test_words_are_independent_where_no_token_reaches_into_the_next():
    assert words_are_independent(["a", "▁", "▁▁", "▁▁ab", "ab"])
    assert not words_are_independent(["a", "a▁"])
    assert not words_are_independent(["▁a▁b"])


NFC = ByteLevelPipeline(GPT_2, composes=True)
COMPOSING = ByteLevelEncoder({b"a": 0}, listed_merges([], []), NFC, whole=False)


def test_long_runs_of_marks_are_composed_as_python_composes_them():
    marks_of_unicode = [
        c for c in map(chr, range(0x110000)) if unicodedata.category(c).startswith("M")
    ]
    source = random.Random(3)
    for _ in range(300):
        marks = "".join(source.choices(marks_of_unicode, k=source.randint(50, 300)))
        text = source.choice("aé각x ") + marks + "é"
        assert COMPOSING.normalize(text) == unicodedata.normalize("NFC", text)
    assert COMPOSING.normalize("e\u0301") == "é"


def test_a_million_marks_take_no_square_of_their_number():
    started = time.process_time()
    COMPOSING.normalize("a" + "\u0301\u0316" * 500_000)
    assert time.process_time() - started < 8
