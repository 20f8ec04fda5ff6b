"""Malformed tokenizer.json files: what is wrong, the file, and what the message says."""

from typing import Any

from src.tokenizer.pre_tokenizers import LLAMA_3
from tests.tokenizer.json_files import (
    BYTE_LEVEL,
    METASPACE_DECODER,
    SPLIT,
    Json,
    added,
    byte_level_file,
    changed,
    metaspace,
    metaspace_file,
    sequence,
    template,
)

B = byte_level_file()
M = metaspace_file()
NEXT = len(B["model"]["vocab"]) + 3
FIRST_WORDS = metaspace("first", split=True)
DIGITS = {"type": "Digits", "individual_digits": False}
NFKC = {"type": "NFKC"}
STRIP_TWO = {"type": "Strip", "content": " ", "start": 2, "stop": 0}
STRIPS_TWO = {
    "type": "Sequence",
    "decoders": [*METASPACE_DECODER["decoders"][:-1], STRIP_TWO],
}
STRIP_ONE = {"type": "Strip", "content": " ", "start": 1.0, "stop": 0}
STRIPS_ONE_POINT_ZERO = STRIPS_TWO | {
    "decoders": [*STRIPS_TWO["decoders"][:-1], STRIP_ONE]
}
PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": "AA=="}
OTHER_KIND = template("A") | {"single": [{"Token": {"id": "A"}}]}
DEEP: Any = {"type": "Sequence", "pretokenizers": []}
for _ in range(300):
    DEEP = {"type": "Sequence", "pretokenizers": [DEEP]}


def b(**model: Any) -> Json:
    """Give the byte-level file with keys of its model changed."""
    return changed(B, model=model)


def m(**model: Any) -> Json:
    """Give the file in SentencePiece's style with keys of its model changed."""
    return changed(M, model=model)


def before(split: Json, **level: Any) -> Json:
    """Give the byte-level file with this before the step that makes bytes."""
    return changed(B, pre_tokenizer=sequence(split, BYTE_LEVEL | level))


def split_by(**changes: Any) -> Json:
    return before(SPLIT | changes, use_regex=False)


def words_by(**changes: Any) -> Json:
    return changed(M, normalizer=None, pre_tokenizer=FIRST_WORDS | changes)


def after(*processors: Any) -> Json:
    many = {"type": "Sequence", "processors": [*processors]}
    return changed(M, post_processor=processors[0] if len(processors) == 1 else many)


def around(*names: str) -> Json:
    return after(template(*names))


def also(*tokens: Any) -> Json:
    return changed(B, added_tokens=[*tokens])


def without(file: Json, *keys: str) -> Json:
    return {key: value for key, value in file.items() if key not in keys}


def vocab_with(file: Json, **entries: Any) -> Json:
    return changed(file, model={"vocab": {**file["model"]["vocab"], **entries}})


def merged(*merges: tuple[str, str]) -> Json:
    """Give the second file with these merges alone, and the tokens that merges with bytes
    make.
    """
    joined = [left + right for left, right in merges if "<0x" in left + right]
    entries = {token: 266 + number for number, token in enumerate(joined)}
    return vocab_with(m(merges=[*map(list, merges)]), **entries)


NO_BYTE_7 = m(vocab=without(M["model"]["vocab"], "<0x07>"))
NO_LETTERS = changed(byte_level_file(names=()), model={"vocab": {"日": 0}, "merges": []})

MALFORMED: list[tuple[str, Json | bytes, str]] = [
    ("nothing", b"", "content: expected JSON"),
    ("an empty object", b"{}", "model: expected an object, got null"),
    ("a list", b"[]", "content: expected a JSON object, got a list"),
    ("cut off", b'{"version": "1.0"', "content: expected JSON"),
    ("unknown key", changed(B, spell="x"), r"keys: expected .*, got 'spell'"),
    ("unknown model key", b(alpha=1), "model: keys: expected .*got 'alpha'"),
    ("no model", without(B, "model"), "model: expected an object, got null"),
    ("model is a list", {**B, "model": []}, "model: expected an object, got a list"),
    ("WordPiece", b(type="WordPiece"), "type: expected BPE, got 'WordPiece'"),
    ("dropout", b(dropout=0.1), "dropout: expected null, got [0-9]"),
    ("dropout of false", b(dropout=False), "dropout: expected null, got (true|false)"),
    ("suffix of 0", b(end_of_word_suffix=0), "null, got [0-9]"),
    ("suffix", b(end_of_word_suffix="</w>"), "null, got '</w>'"),
    ("prefix", b(continuing_subword_prefix="##"), "null, got '##'"),
    ("flag", b(ignore_merges=1), "true or false, got [0-9]"),
    ("unknown token", m(unk_token=3), "unk_token: expected a text, got [0-9]"),
    ("unknown token of byte level", b(unk_token="<no>"), "vocabulary, got '<no>'"),
    ("no bytes", m(byte_fallback=False), "byte_fallback: expected true, got false"),
    (
        "nothing of bytes",
        m(byte_fallback=None),
        "byte_fallback: expected true or false, got null",
    ),
    ("no vocabulary", b(vocab={}), "vocab: expected 1 to 524288 tokens, got 0"),
    ("vocabulary is a list", b(vocab=[]), "vocab: expected an object, got a list"),
    (
        "id is a text",
        vocab_with(B, the="256"),
        "vocab: 'the': expected a whole number, got '",
    ),
    (
        "id is true",
        vocab_with(B, the=True),
        "'the': expected a whole number, got (true|false)",
    ),
    ("negative id", vocab_with(B, the=-1), "'the': expected 0, .*once, got -1"),
    ("huge id", vocab_with(B, the=1 << 40), "expected 257, .*once, got 258"),
    ("sparse ids", vocab_with(B, the=1 << 20), "expected 257, .*once, got 258"),
    ("gap of one id", vocab_with(B, the=NEXT), "expected 257, .*once, got 258"),
    ("id twice", vocab_with(B, extra=5), "'extra': expected 6, .* got 5"),
    ("id twice and a gap", vocab_with(B, the=5), "'the': expected 6, .*once, got 5"),
    (
        "empty token",
        vocab_with(B, **{"": NEXT}),
        "1 to 4096 characters in each token, got 0",
    ),
    ("long token", vocab_with(B, **{"x" * 4097: NEXT}), "each token, got 4097"),
    (
        "surrogate",
        vocab_with(B, **{"\ud800": NEXT}),
        "without surrogates, got a lone surrogate",
    ),
    ("a far byte", vocab_with(M, **{"<0x0A>": 99999}), "each once, got 14"),
    (
        "no letters for bytes",
        NO_LETTERS,
        "vocab: expected tokens in GPT-2's letters for bytes, got none",
    ),
    ("merges missing", b(merges=None), "merges: expected a list, got null"),
    ("merge of one", b(merges=[["t", "h"], ["th"]]), r"merges\[1\]: .*two tok"),
    ("merge of three", b(merges=["t h", "t h e"]), r"merges\[1\]: .*'t h e'"),
    ("one and three", b(merges=["t", "t h e"]), r"merges\[0\]: .*got 't'"),
    ("merge of numbers", b(merges=[[1, 2]]), r"merges\[0\]: .*two texts"),
    ("merge with a number", b(merges=[["t", 5]]), r"merges\[0\]: .*two texts"),
    ("merge is a number", b(merges=[["t", "h"], 7]), r"\[1\]: .*got 7"),
    ("unknown left", b(merges=[["zz", "h"]]), r"vocabulary, got 'zz'"),
    ("unknown right", b(merges=[["t", "zz"]]), r"vocabulary, got 'zz'"),
    ("unknown joined", b(merges=[["h", "t"]]), r"vocabulary, got 'ht'"),
    ("merge twice", b(merges=[["t", "h"]] * 2), "once, got 't' and 'h' twice"),
    ("merge of bytes", merged(("<0x01>", "<0x02>")), "no merge of byte tokens"),
    ("merge of a byte and a letter", merged(("<0x01>", "t")), "no merge of byte tokens"),
    ("merge of a letter and a byte", merged(("t", "<0x01>")), "no merge of byte tokens"),
    (
        "later merges of bytes",
        merged(("t", "h"), ("<0x01>", "t"), ("t", "<0x02>")),
        "got '<0x01>'",
    ),
    ("added is an object", changed(B, added_tokens={}), "added_tokens: expected a list"),
    ("added is a text", also("x"), r"added_tokens\[0\]: expected an object"),
    ("added without id", also({"content": "x"}), r"\[0\]: id: .*got null"),
    ("added without text", also(added(261, "")), "in each token, got 0"),
    ("added twice", also(added(258, "x!"), added(259, "x!")), "'x!' again"),
    ("added clashes in id", also(added(5, "<x>")), "'<x>': expected 6, .*once, got 5"),
    ("added clashes in text", also(added(258, "th")), "256 as in vocab, got 258"),
    ("added flag", also({"id": 258, "content": "x!", "special": "no"}), "true or"),
    ("added word", also(added(258, "x!", single_word=True)), "single_word: exp"),
    (
        "pattern",
        split_by(pattern={"Regex": "(a+)+$"}),
        r'pre_tokenizer: .*"Regex": "\(a\+\)\+\$"',
    ),
    (
        "pattern string",
        split_by(pattern={"String": LLAMA_3.pattern.pattern}),
        "a known one",
    ),
    ("behavior", split_by(behavior="MergedWithNext"), "pre_tokenizer: expected a known"),
    ("split and GPT-2", before(SPLIT), '"Sequence", .*"Split", '),
    ("digits in groups", before(DIGITS), '"Digits"'),
    (
        "whitespace",
        changed(B, pre_tokenizer={"type": "Whitespace"}),
        'got {"type": "Whitespace"',
    ),
    (
        "type is an object",
        changed(B, pre_tokenizer={"type": {"a": 1}}),
        '{"type": {"a": 1}}',
    ),
    ("deep", changed(B, pre_tokenizer=DEEP), 'a known one, got {"type": "Sequence"'),
    (
        "a flag of 0",
        changed(B, pre_tokenizer=BYTE_LEVEL | {"add_prefix_space": 0}),
        "a known one",
    ),
    ("strips 1.0", changed(M, decoder=STRIPS_ONE_POINT_ZERO), "decoder: expected"),
    ("none", changed(B, pre_tokenizer=None), "decoder: expected Replace"),
    ("metaspace at odds", words_by(add_prefix_space=False), 'got {"type": "Metaspace"'),
    ("another mark", words_by(replacement="_"), 'got {"type": "Metaspace"'),
    (
        "normalizer beside bytes",
        changed(B, normalizer=NFKC),
        r'byte level\), got {"type": "NFKC"',
    ),
    (
        "normalizer",
        changed(M, normalizer=NFKC),
        'normalizer: expected a known one, .*"NFKC"',
    ),
    ("two ways of marking", changed(M, pre_tokenizer=FIRST_WORDS), r"null \(Metaspace\)"),
    ("precompiled", changed(M, normalizer=PRECOMPILED), '"Precompiled"'),
    ("decoder", changed(B, decoder=FIRST_WORDS), 'ByteLevel, got {"type": "Metaspace"'),
    ("no decoder", changed(B, decoder=None), "decoder: expected ByteLevel, got null"),
    (
        "marked decoder",
        changed(M, decoder=FIRST_WORDS),
        'Strip, got {"type": "Metaspace"',
    ),
    ("strips two", changed(M, decoder=STRIPS_TWO), "decoder: expected"),
    ("processor", after({"type": "BertProcessing"}), "post_processor: .*BertPr"),
    ("two templates", after(template("A"), template("A")), "at most one"),
    (
        "processors are null",
        after({"type": "Sequence", "processors": None}),
        "a list, got null",
    ),
    (
        "a processor is null",
        after(template("A"), None),
        "at most one TemplateProcessing, ",
    ),
    ("template without text", around("<s>"), "another template"),
    ("template with two begins", around("<s>", "<s>", "A"), "another template"),
    (
        "template of four",
        around("<s>", "A", "</s>", "</s>"),
        "before and after A, got another",
    ),
    ("template of another kind", after(OTHER_KIND), "another template"),
    ("template of texts", after(template("A") | {"single": ["A"]}), "another"),
    (
        "a byte is missing",
        vocab_with(NO_BYTE_7, other=10),
        "every single byte, got no <0x07>",
    ),
    ("template with two texts", around("A", "A"), "another template"),
    ("template of none", around("<x>", "A"), "vocabulary, got '<x>'"),
]
