import gc
import re
from pathlib import Path

import pytest

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.json_pipeline import read_template
from src.tokenizer.tokenizer_json import bytes_of_byte_level
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked
from tests.tokenizer.conftest import check_refused, encode
from tests.tokenizer.json_files import (
    BYTE_LEVEL,
    METASPACE_DECODER,
    SPLIT,
    Json,
    added,
    byte_letters,
    byte_level_file,
    changed,
    metaspace,
    metaspace_file,
    sequence,
    template,
    write_json,
)
from tests.tokenizer.malformed_json import FIRST_WORDS, MALFORMED, B, M

LETTERS = byte_letters()
THE = 257
METASPACE_THE = 265


def load(directory: Path, file: Json) -> Tokenizer:
    return load_tokenizer(write_json(directory, file))


# Byte level


def test_a_byte_level_file_encodes_by_its_merges(tmp_path):
    tokenizer = load(tmp_path, B)
    assert encode(tokenizer, "the é1") == [THE, 0x20, 0xC3, 0xA9, 0x31]
    assert tokenizer.decode([THE, 0xC3, 0xA9]) == "theé"
    assert tokenizer.vocab_size == 256 + 2 + 3


OLDER = changed(B, model={"unk_token": "", "end_of_word_suffix": ""})
del OLDER["model"]["type"]  # as in GPT-2's file
SAME = {
    "merges as one string": changed(B, model={"merges": ["t h", "th e"]}),
    "no model type": OLDER,
    "dropout 0": changed(B, model={"dropout": 0.0}),
    "no normalizers": changed(B, normalizer={"type": "Sequence", "normalizers": []}),
    "no added tokens": changed(B, added_tokens=None),
}


@pytest.mark.parametrize("file", SAME.values(), ids=SAME)
def test_other_spellings_of_a_file_say_the_same(tmp_path, file):
    assert encode(load(tmp_path, file), "the") == [THE]


def test_what_is_not_listed_does_not_merge_though_it_is_a_token(tmp_path):
    file = changed(B, model={"merges": [["t", "h"]]})
    assert encode(load(tmp_path, file), "the") == [256, ord("e")]
    whole = load(tmp_path, changed(file, model={"ignore_merges": True}))
    assert encode(whole, "the") == [THE]
    assert encode(whole, "them") == [256, ord("e"), ord("m")]


BARE = BYTE_LEVEL | {"use_regex": False}
REMOVED = {"behavior": "Removed", "invert": True}


@pytest.mark.parametrize(
    ("pre_tokenizer", "text", "pieces"),
    [
        (BYTE_LEVEL, "a 12", ["a", " 12"]),
        (BYTE_LEVEL | {"use_regex": True}, "a 12", ["a", " 12"]),
        (
            sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
            "a 12",
            "a 12",
        ),
        (sequence(SPLIT, BARE), "a 1234", ["a", " ", "123", "4"]),
        (sequence(SPLIT | REMOVED, BARE), "a 1234", ["a", " ", "123", "4"]),
    ],
)
def test_every_known_split_is_recognised(tmp_path, pre_tokenizer, text, pieces):
    """Whole pieces are tokens here, so the ids show where the text was split."""
    merges = [("Ġ", "1"), ("Ġ1", "2"), ("1", "2"), ("12", "3"), ("3", "4"), ("Ġ", "a")]
    tokenizer = load(
        tmp_path, changed(byte_level_file(merges), pre_tokenizer=pre_tokenizer)
    )
    assert [tokenizer.decode([number]) for number in encode(tokenizer, text)] == list(
        pieces
    )


def test_gpt_2s_letters_are_read_as_bytes_and_all_others_as_text():
    """U+0143 is the letter of the last byte that is not printable,
    U+0144 is no letter.
    """
    names = ["".join(LETTERS), "Ġthe", "日", "Ġ日", "é", "\u0143", "\u0144"]
    tokens, foreign = bytes_of_byte_level(names)
    assert tokens[:2] == [bytes(range(256)), b" the"]
    assert tokens[2:] == [
        *map(str.encode, ("日", "Ġ日")),
        b"\xe9",
        b"\xad",
        "\u0144".encode(),
    ]
    assert foreign == {2, 3, 6}


def test_a_token_in_other_letters_takes_no_text_from_one_of_bytes(tmp_path):
    file = byte_level_file([("Ġ", "a")], names=())
    file["model"]["vocab"] |= {" a": 257, "日": 258}
    file["model"]["ignore_merges"] = True
    tokenizer = load(tmp_path, file)
    assert encode(tokenizer, " a") == [256]
    assert encode(tokenizer, "日") == [*"日".encode()]
    assert tokenizer.decode([258]) == "日"


def test_a_byte_that_the_vocabulary_lacks_is_left_out_as_tokenizers_does(tmp_path):
    tokenizer = load(tmp_path, without_letters("xy"))
    assert tokenizer.decode(encode(tokenizer, "axbyyc")) == "abc"
    with pytest.raises(TokenizerError, match="single byte, got none for byte 0x78"):
        load(tmp_path, without_letters("xy", unk_token="a"))


def test_bytes_that_are_in_no_text_need_no_token(tmp_path):
    never = "".join(LETTERS[byte] for byte in (0xC0, 0xC1, *range(0xF5, 0x100)))
    assert (
        load(tmp_path, without_letters(never, unk_token="a")).vocab_size == 256 - 13 + 2
    )
    with pytest.raises(TokenizerError, match="none for byte 0xf4"):
        load(tmp_path, without_letters(never + LETTERS[0xF4], unk_token="a"))


def without_letters(letters: str, **model: str) -> Json:
    file = byte_level_file(names=())
    tokens = [token for token in file["model"]["vocab"] if token not in letters]
    vocab = {token: number for number, token in enumerate(tokens)}
    return changed(file, model={"vocab": vocab} | model)


# SentencePiece style


def test_a_metaspace_file_encodes_words_with_their_spaces(tmp_path):
    tokenizer = load(tmp_path, M)
    assert encode(tokenizer, "the the") == [METASPACE_THE, METASPACE_THE]
    assert tokenizer.decode([METASPACE_THE, METASPACE_THE]) == "the the"
    assert encode(tokenizer, "") == []
    assert encode(tokenizer, "é") == [M["model"]["vocab"]["▁"], 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.adds_bos


def test_a_token_may_reach_into_the_next_word_where_nothing_splits_words(tmp_path):
    file = metaspace_file((("t", "h"), ("th", "▁")))
    tokenizer = load(tmp_path, file)
    assert file["model"]["vocab"]["th▁"] in encode(tokenizer, "th th")


@pytest.mark.parametrize(
    ("data", "text", "of_byte_level"),
    [
        (b"\xff", "\ufffd", "\ufffd"),
        (b"\xe2\x82", "\ufffd\ufffd", "\ufffd"),
        (b"\xf0\x9f\x98!", "\ufffd\ufffd\ufffd!", "\ufffd!"),
        (b"\xe2\x82\xe2\x82\xac", "\ufffd\ufffd\u20ac", "\ufffd\u20ac"),
        (b"\xe2\x82\xac", "\u20ac", "\u20ac"),
    ],
)
def test_each_byte_that_is_no_character_is_marked_as_in_the_twin_tokenizer_model(
    tmp_path, data, text, of_byte_level
):
    ids = [3 + byte for byte in data]
    (tmp_path / "tokenizer.model").write_bytes(model_message([*RESERVED, *ranked("▁")]))
    twin = load_tokenizer(tmp_path)
    assert load(tmp_path / "marked", M).decode(ids) == twin.decode(ids) == text
    assert load(tmp_path / "byte_level", B).decode(data) == of_byte_level


def marked_by(pre_tokenizer: Json) -> Json:
    return changed(M, normalizer=None, pre_tokenizer=pre_tokenizer)


OLDER_MARKS = {"type": "Metaspace", "replacement": "▁"}


@pytest.mark.parametrize(
    ("pre_tokenizer", "at_start", "later"),
    [
        *((metaspace("always", split=split), "▁the", "▁the") for split in (True, False)),
        *((metaspace("first", split=split), "▁the", "the") for split in (True, False)),
        *((metaspace("never", split=split), "the", "the") for split in (True, False)),
        (OLDER_MARKS | {"add_prefix_space": True}, "▁the", "▁the"),
        (OLDER_MARKS | {"add_prefix_space": False}, "the", "the"),
        (FIRST_WORDS | {"add_prefix_space": True, "str_rep": "▁"}, "▁the", "the"),
    ],
)
def test_metaspace_puts_a_mark_where_its_scheme_says(
    tmp_path, pre_tokenizer, at_start, later
):
    """Also in older spellings."""
    tokenizer = load(tmp_path, marked_by(pre_tokenizer))
    names = {number: name for name, number in M["model"]["vocab"].items()}

    def spelled(text: str, *, first: bool) -> str:
        return "".join(names[number] for number in encode(tokenizer, text, first=first))

    assert spelled("the", first=True) == at_start
    assert spelled("the", first=False) == later
    assert spelled(" the", first=True) == spelled(" the", first=False) == "▁the"


def test_decoding_keeps_the_first_space_where_the_file_does_not_strip_it(tmp_path):
    decoder = {"type": "Sequence", "decoders": METASPACE_DECODER["decoders"][:-1]}
    assert load(tmp_path, changed(M, decoder=decoder)).decode([METASPACE_THE]) == " the"


# Special and added tokens

SPECIAL_TEXTS = [
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|endoftext|>",
    "<｜User｜>",
    "a<s>b",
]


@pytest.mark.parametrize("file", [B, M], ids=["byte level", "marked"])
def test_text_never_becomes_a_special_id(tmp_path, file):
    tokenizer = load(tmp_path, file)
    for text in SPECIAL_TEXTS:
        ids = encode(tokenizer, text)
        assert not any(tokenizer.is_special(number) for number in ids)
        assert tokenizer.decode(ids) == text


def test_merges_that_would_make_a_special_token_are_left_out(tmp_path):
    merges = (("<", "s"), ("<s", ">"), ("t", "h"))
    file = metaspace_file(merges, "▁the<s>/")
    del file["model"]["vocab"]["<s>"]
    tokens = list(file["model"]["vocab"])
    tokens.insert(1, "<s>")
    file["model"]["vocab"] = {token: number for number, token in enumerate(tokens)}
    tokenizer = load(tmp_path, file)
    ids = encode(tokenizer, "<s>th")
    assert [tokenizer.token_bytes(number) for number in ids] == [b" ", b"<s", b">", b"th"]


def test_a_whole_piece_never_is_a_special_token(tmp_path):
    file = changed(
        marked_by(metaspace("never", split=False)), model={"ignore_merges": True}
    )
    tokenizer = load(tmp_path, file)
    assert tokenizer.decode(encode(tokenizer, "</s>")) == "</s>"
    assert not any(map(tokenizer.is_special, encode(tokenizer, "</s>")))


def with_added(*tokens: Json) -> Json:
    return changed(byte_level_file(names=()), added_tokens=[*tokens])


def test_added_tokens_that_are_not_special_are_found_in_text(tmp_path):
    tokenizer = load(
        tmp_path, with_added(added(258, "<think>"), added(259, "<thinking>"))
    )
    assert encode(tokenizer, "a<think>the<thinking>") == [ord("a"), 258, THE, 259]
    assert tokenizer.decode([258, THE]) == "<think>the"
    assert not tokenizer.is_special(258)


def test_added_tokens_take_the_spaces_beside_them_as_their_flags_say(tmp_path):
    left = added(258, "<l>", lstrip=True)
    right = added(259, "<r>", rstrip=True)
    tokenizer = load(tmp_path, with_added(left, right, added(260, "<n>")))
    a = ord("a")
    space = ord(" ")
    assert encode(tokenizer, "a \n<l> a") == [a, 258, space, a]
    assert encode(tokenizer, "a <r>\u3000 a") == [a, space, 259, a]
    assert encode(tokenizer, "a <n> a") == [a, space, 260, space, a]
    assert encode(tokenizer, "<r> <l>") == [259, 258]


@pytest.mark.parametrize("name", ["<|User|>", "<｜User｜>", "<｜tool▁calls▁begin｜>"])
def test_what_looks_like_a_marker_is_special_whatever_its_flag(tmp_path, name):
    tokenizer = load(tmp_path, with_added(added(258, name)))
    assert tokenizer.special_tokens == {name: 258}
    assert 258 not in encode(tokenizer, name)


def test_whole_pieces_are_looked_up_only_where_the_file_says_so(tmp_path):
    file = metaspace_file()
    file["model"]["merges"] = [["t", "h"]]
    assert len(encode(load(tmp_path, file), "the")) == 3
    assert (
        len(encode(load(tmp_path, changed(file, model={"ignore_merges": True})), "the"))
        == 1
    )


def test_a_template_names_the_begin_and_the_end(tmp_path):
    tokenizer = load(tmp_path, M)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (1, 2, True)
    for processor, adds in (
        (template("<s>", "A", "</s>"), True),
        ({"type": "Sequence", "processors": [BYTE_LEVEL, template("<s>", "A")]}, True),
        (template("A"), False),
        (BYTE_LEVEL, True),  # says nothing; the name does
        (None, True),
    ):
        assert load(tmp_path, changed(M, post_processor=processor)).adds_bos == adds


def test_both_ends_of_a_template_are_read_whatever_their_names(tmp_path):
    for names, ends in (
        (("[B]", "A", "[E]"), ("[B]", "[E]")), (("[B]", "A"), ("[B]", None)),
        (("A", "[E]"), (None, "[E]")), (("A",), (None, None)),
    ):  # fmt: skip
        found = read_template(tmp_path, template(*names))
        assert found is not None
        assert found == ends


# What is refused


@pytest.mark.parametrize(
    ("file", "message"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED]
)
def test_a_bad_file_is_refused_by_what_is_wrong(tmp_path, file, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        load(tmp_path, file)
    assert re.fullmatch(r".*tokenizer\.json: .+: expected .+, got .+", str(caught.value))


@pytest.mark.parametrize("file", [B, M], ids=["byte level", "marked"])
def test_the_valid_twins_load(tmp_path, file):
    tokenizer = load(tmp_path, file)
    assert tokenizer.decode(encode(tokenizer, "the twin é\n")) == "the twin é\n"


HOSTILE = {
    "every id 0": changed(B, model={"vocab": {f"{n:x}": 0 for n in range(70_000)}}),
    "the same merge": changed(B, model={"merges": ["t h"] * 120_000}),
    "unknown merges": changed(B, model={"merges": ["zz h"] * 120_000}),
    "added tokens": changed(B, added_tokens=[added(n, f"{n:x}") for n in range(8_000)]),
    "lists": b"[" + b"[]," * 340_000 + b"[]]",
    "one text": b'{"version": "' + b"x" * (1 << 20) + b'"}',
    "keys": b"{" + b",".join(b'"%x":1' % n for n in range(100_000)) + b"}",
}


@pytest.mark.parametrize("file", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_of_1_mib_is_refused_within_a_second_and_64_mib(tmp_path, file):
    check_refused(load_tokenizer, write_json(tmp_path, file))


def test_text_of_a_file_is_shown_escaped(tmp_path):
    with pytest.raises(TokenizerError) as caught:
        load(tmp_path, changed(B, pre_tokenizer={"type": "\x1b[2J\u202e"}))
    assert r"\u001b[2J\u202e" in str(caught.value)


def test_the_collector_is_on_or_off_as_it_was_before(tmp_path):
    with pytest.raises(TokenizerError):
        load(tmp_path, changed(B, decoder=None))
    assert gc.isenabled()
    gc.disable()
    try:
        load(tmp_path, B)
        assert not gc.isenabled()
    finally:
        gc.enable()
