"""Malformed tokenizer.json files: what is wrong, the file, and what the message says."""

from typing import Any

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

BARE_BYTES = BYTE_LEVEL | {"use_regex": False}
FIRST_WORDS = metaspace("first", split=True)


def pre_tokenized(*parts: Json) -> Json:
    return changed(B, pre_tokenizer=sequence(*parts))


def pre_tokenized_by(shape: Json) -> Json:
    return changed(M, normalizer=None, pre_tokenizer=shape)


def without(file: Json, *keys: str) -> Json:
    return {key: value for key, value in file.items() if key not in keys}


def vocab_with(file: Json, **entries: Any) -> Json:
    return changed(file, model={"vocab": {**file["model"]["vocab"], **entries}})


def without_token(file: Json, token: str) -> Json:
    return changed(file, model={"vocab": without(file["model"]["vocab"], token)})


B, M = byte_level_file(), metaspace_file()
NEXT = len(B["model"]["vocab"]) + 3
DEEP: Any = {"type": "Sequence", "pretokenizers": []}
for _ in range(300):
    DEEP = {"type": "Sequence", "pretokenizers": [DEEP]}

MALFORMED: list[tuple[str, Json, str]] = [
    ("unknown key", changed(B, spell="x"), r"keys: expected .*, got 'spell'"),
    ("unknown model key", changed(B, model={"alpha": 1}), "model: keys: expected .*got 'alpha'"),
    ("no model", without(B, "model"), "model: expected an object, got null"),
    ("model is a list", {**B, "model": []}, "model: expected an object, got a list"),
    ("WordPiece", changed(B, model={"type": "WordPiece"}), "type: expected BPE, got 'WordPiece'"),
    ("Unigram", changed(M, model={"type": "Unigram"}), "type: expected BPE, got 'Unigram'"),
    ("dropout", changed(B, model={"dropout": 0.1}), "dropout: expected null, got [0-9]"),
    ("dropout of all", changed(B, model={"dropout": 1}), "dropout: expected null, got [0-9]"),
    ("suffix", changed(B, model={"end_of_word_suffix": "</w>"}), "null, got '</w>'"),
    ("prefix", changed(B, model={"continuing_subword_prefix": "##"}), "null, got '##'"),
    ("flag", changed(B, model={"ignore_merges": 1}), "true or false, got [0-9]"),
    (
        "unknown token",
        changed(M, model={"unk_token": 3}),
        "unk_token: expected a text, got [0-9]",
    ),
    (
        "unknown token of byte level",
        changed(B, model={"unk_token": "<no>"}),
        "vocabulary, got '<no>'",
    ),
    (
        "unknown token beside bytes",
        changed(M, model={"unk_token": "<no>"}),
        "vocabulary, got '<no>'",
    ),
    (
        "no unknown token and no bytes",
        changed(M, model={"unk_token": None, "byte_fallback": False}),
        "as byte_fallback is off, got null",
    ),
    ("unknown token is none", changed(M, model={"unk_token": "?", "byte_fallback": False}), "'?'"),
    ("no vocabulary", changed(B, model={"vocab": {}}), "vocab: expected 1 to 524288 tokens, got 0"),
    (
        "vocabulary is a list",
        changed(B, model={"vocab": []}),
        "vocab: expected an object, got a list",
    ),
    ("id is a text", vocab_with(B, the="256"), "vocab: 'the': expected a whole number, got '"),
    ("id is true", vocab_with(B, the=True), "'the': expected a whole number, got (true|false)"),
    ("id is a fraction", vocab_with(B, the=257.0), "'the': expected a whole number, got [0-9]"),
    ("negative id", vocab_with(B, the=-1), "ids: expected 0 <= id < 16777216, got -1"),
    ("huge id", vocab_with(B, the=1 << 40), "got 1099511627776"),
    ("sparse ids", vocab_with(B, the=1 << 20), "each once, got 261 tokens up to id 1048576: a gap"),
    ("gap of one id", vocab_with(B, the=NEXT), "each once, got 261 tokens up to id 261: a gap"),
    ("id twice", vocab_with(B, extra=5), "each once, got 262 tokens up to id 260: one twice"),
    ("id twice and a gap", vocab_with(B, the=5), "id 5: expected one token, got .* and 'the'"),
    ("empty token", vocab_with(B, **{"": NEXT}), "1 to 4096 characters in each token, got 0"),
    ("long token", vocab_with(B, **{"x" * 4097: NEXT}), "each token, got 4097"),
    ("surrogate", vocab_with(B, **{"\ud800": NEXT}), "without surrogates, got a lone surrogate"),
    ("no bytes", vocab_with(M, **{"<0x0A>": 99999}), "ids: "),
    (
        "no letters for bytes",
        changed(byte_level_file(names=()), model={"vocab": {"日": 0}, "merges": []}),
        "vocab: expected tokens in letters for bytes, got none",
    ),
    ("merges missing", changed(B, model={"merges": None}), "merges: expected a list, got null"),
    ("merge of one", changed(B, model={"merges": [["t", "h"], ["th"]]}), r"merges\[1\]: .*two tok"),
    ("merge of three", changed(B, model={"merges": ["t h", "t h e"]}), r"merges\[1\]: .*'t h e'"),
    ("one and three", changed(B, model={"merges": ["t", "t h e"]}), r"merges\[0\]: .*got 't'"),
    ("merge of numbers", changed(B, model={"merges": [[1, 2]]}), r"merges\[0\]: .*two texts"),
    ("merge with a number", changed(B, model={"merges": [["t", 5]]}), r"merges\[0\]: .*two texts"),
    ("merge from a number", changed(B, model={"merges": [[5, "h"]]}), r"merges\[0\]: .*two texts"),
    ("merge is a number", changed(B, model={"merges": [["t", "h"], 7]}), r"\[1\]: .*got 7"),
    ("unknown left", changed(B, model={"merges": [["zz", "h"]]}), r"vocabulary, got 'zz'"),
    ("unknown right", changed(B, model={"merges": [["t", "zz"]]}), r"vocabulary, got 'zz'"),
    ("unknown joined", changed(B, model={"merges": [["h", "t"]]}), r"vocabulary, got 'ht'"),
    ("merge twice", changed(B, model={"merges": [["t", "h"]] * 2}), "once, got 't' and 'h' twice"),
    (
        "merge of bytes",
        vocab_with(changed(M, model={"merges": [["<0x01>", "<0x02>"]]}), **{"<0x01><0x02>": 266}),
        "no merge of bytes",
    ),
    (
        "merge of a byte and a letter",
        vocab_with(changed(M, model={"merges": [["<0x01>", "t"]]}), **{"<0x01>t": 266}),
        "no merge of bytes",
    ),
    (
        "merge of a letter and a byte",
        vocab_with(changed(M, model={"merges": [["t", "<0x01>"]]}), **{"t<0x01>": 266}),
        "no merge of bytes",
    ),
    (
        "two merges of bytes after one of letters",
        vocab_with(
            changed(M, model={"merges": [["t", "h"], ["<0x01>", "t"], ["t", "<0x02>"]]}),
            **{"<0x01>t": 266, "t<0x02>": 267},
        ),
        "no merge of bytes or of the unknown token, got '<0x01>' and 't'",
    ),
    ("added is an object", changed(B, added_tokens={}), "added_tokens: expected a list"),
    ("added is a text", changed(B, added_tokens=["x"]), r"added_tokens\[0\]: expected an object"),
    ("added without id", changed(B, added_tokens=[{"content": "x"}]), r"\[0\]: id: .*got null"),
    ("added without text", changed(B, added_tokens=[added(261, "")]), "in each token, got 0"),
    ("added twice", changed(B, added_tokens=[added(258, "x!"), added(259, "x!")]), "'x!' again"),
    ("added clashes in id", changed(B, added_tokens=[added(5, "<x>")]), "one twice"),
    (
        "added clashes in text",
        changed(B, added_tokens=[added(258, "th")]),
        "256 as in vocab, got 258",
    ),
    (
        "added flag",
        changed(B, added_tokens=[{"id": 258, "content": "x!", "special": "no"}]),
        "true or",
    ),
    (
        "added word",
        changed(B, added_tokens=[added(258, "x!", single_word=True)]),
        "single_word: exp",
    ),
    (
        "pattern",
        pre_tokenized(SPLIT | {"pattern": {"Regex": "(a+)+$"}}, BARE_BYTES),
        r"pre_tokenizer: .*pattern '\(a\+\)\+\$'",
    ),
    (
        "pattern string",
        pre_tokenized(SPLIT | {"pattern": {"String": SPLIT["pattern"]["Regex"]}}, BARE_BYTES),
        "pre_tokenizer: expected a known one",
    ),
    (
        "behavior",
        pre_tokenized(SPLIT | {"behavior": "MergedWithNext"}, BARE_BYTES),
        "pre_tokenizer: expected a known",
    ),
    ("split and GPT-2", pre_tokenized(SPLIT, BYTE_LEVEL), "'Sequence' of 'Split', 'ByteLevel'"),
    (
        "digits in groups",
        pre_tokenized({"type": "Digits", "individual_digits": False}, BYTE_LEVEL),
        "'Digits'",
    ),
    ("whitespace", changed(B, pre_tokenizer={"type": "Whitespace"}), "got 'Whitespace'"),
    ("type is an object", changed(B, pre_tokenizer={"type": {"a": 1}}), "got an object"),
    ("deep", changed(B, pre_tokenizer=DEEP), "pre_tokenizer: expected a known one, got 'Sequence'"),
    ("none", changed(B, pre_tokenizer=None), "decoder: expected Replace"),
    (
        "metaspace at odds",
        pre_tokenized_by(FIRST_WORDS | {"add_prefix_space": False}),
        "got 'Metaspace'",
    ),
    ("another mark", pre_tokenized_by(FIRST_WORDS | {"replacement": "_"}), "got 'Metaspace'"),
    (
        "normalizer beside bytes",
        changed(B, normalizer={"type": "NFKC"}),
        r"normalizer: expected null or NFC \(byte level\), got 'NFKC'",
    ),
    (
        "normalizer",
        changed(M, normalizer={"type": "NFKC"}),
        "normalizer: expected a known one, got 'NFKC'",
    ),
    (
        "two ways of marking",
        changed(M, pre_tokenizer=metaspace("first", split=True)),
        r"null \(Metaspace\)",
    ),
    (
        "precompiled",
        changed(M, normalizer={"type": "Precompiled", "precompiled_charsmap": "AA=="}),
        "'Precompiled'",
    ),
    (
        "decoder",
        changed(B, decoder={"type": "WordPiece"}),
        "decoder: expected ByteLevel, got 'WordPiece'",
    ),
    ("no decoder", changed(B, decoder=None), "decoder: expected ByteLevel, got null"),
    ("marked decoder", changed(M, decoder={"type": "Metaspace"}), "Strip, got 'Metaspace'"),
    (
        "strips two",
        changed(
            M,
            decoder={
                "type": "Sequence",
                "decoders": [
                    *METASPACE_DECODER["decoders"][:-1],
                    {"type": "Strip", "content": " ", "start": 2, "stop": 0},
                ],
            },
        ),
        "decoder: expected",
    ),
    (
        "processor",
        changed(M, post_processor={"type": "BertProcessing"}),
        "post_processor: .*'BertPr",
    ),
    (
        "two templates",
        changed(M, post_processor={"type": "Sequence", "processors": [template("A")] * 2}),
        "at most one",
    ),
    (
        "processors are null",
        changed(M, post_processor={"type": "Sequence", "processors": None}),
        "post_processor: processors: expected a list, got null",
    ),
    (
        "a processor is null",
        changed(M, post_processor={"type": "Sequence", "processors": [template("A"), None]}),
        "post_processor: processors: expected no null among them, got null",
    ),
    ("template without text", changed(M, post_processor=template("<s>")), "another template"),
    (
        "template with two begins",
        changed(M, post_processor=template("<s>", "<s>", "A")),
        "another template",
    ),
    (
        "template of four",
        changed(M, post_processor=template("<s>", "A", "</s>", "</s>")),
        "post_processor: .*at most one token before and after A, got another template",
    ),
    (
        "template of another kind",
        changed(M, post_processor=template("A") | {"single": [{"Token": {"id": "A"}}]}),
        "another template",
    ),
    ("template of texts", changed(M, post_processor=template("A") | {"single": ["A"]}), "another"),
    (
        "a byte is missing",
        vocab_with(without_token(M, "<0x07>"), other=10),
        "a token for every single byte, got no <0x07>",
    ),
    ("template with two texts", changed(M, post_processor=template("A", "A")), "another template"),
    ("template of none", changed(M, post_processor=template("<x>", "A")), "vocabulary, got '<x>'"),
]
