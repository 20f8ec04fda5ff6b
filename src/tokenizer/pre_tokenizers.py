"""Split text into pieces for byte pair encoding, using known patterns."""

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import regex

# The character that represents a space in SentencePiece.
METASPACE = "\u2581"

# Long text is split in parts, so that only one part's pieces are in memory at a time.
PART_CHARS = 1 << 16

# A private-use character, which is not a letter, number or space in any Unicode version.
_PLACEHOLDER = "\ue000"


class PreTokenizer:
    """A pre-tokenizer whose pattern matches consecutive pieces of the text.

    The concatenated matches equal the text. `cut` matches the last character of one piece
    and the first character of the next one, where the text on one side cannot affect the
    pieces on the other.
    """

    def __init__(self, pattern: str, cut: str) -> None:
        self.pattern = regex.compile(pattern)
        self._cut = regex.compile(cut)

    def split(self, text: str) -> Iterator[list[str]]:
        """Split text without lone surrogates, yielding one list of pieces per part."""
        start = 0
        while start < len(text):
            cut = self._cut.search(text, start + PART_CHARS)
            end = cut.end() - 1 if cut else len(text)
            yield self._split_part(text[start:end])
            start = end

    def _split_part(self, text: str) -> list[str]:
        """Split one part, classifying every character as in Unicode 16.0.

        Newer versions of the `regex` package classify some characters as letters that
        Unicode 16.0 leaves unassigned, but ids must not depend on the package version.
        Such characters are therefore matched as if they were a private-use character.
        """
        unassigned = (
            [] if text.isascii() else [ord(c) for c in set(text) if is_unassigned(c)]
        )
        if not unassigned:
            return self.pattern.findall(text)  # type: ignore[no-any-return]
        replaced = text.translate(dict.fromkeys(unassigned, _PLACEHOLDER))
        return [
            text[match.start() : match.end()] for match in self.pattern.finditer(replaced)
        ]


class PreTokenizerSequence(PreTokenizer):
    """A pre-tokenizer that applies several patterns in sequence.

    Each pattern splits the pieces from the previous pattern into its matches and the text
    between them. Lookaheads do not see beyond the end of a piece.
    """

    def __init__(self, patterns: Sequence[str], cut: str) -> None:
        super().__init__(patterns[0], cut)
        self._patterns = [regex.compile(pattern) for pattern in patterns]

    def _split_part(self, text: str) -> list[str]:
        replaced = text
        if not text.isascii():
            replaced = "".join(_PLACEHOLDER if is_unassigned(c) else c for c in text)
        bounds = [0, len(text)]
        for pattern in self._patterns:
            inner: list[int] = []
            for start, end in pairwise(bounds):
                inner.append(start)
                for match in pattern.finditer(replaced, start, end):
                    inner += match.span()
            bounds = sorted({*inner, len(text)})
        return [text[start:end] for start, end in pairwise(bounds)]


# With the byte-level patterns, no piece contains a non-space followed by a space, and a
# piece that ends with a non-space does not depend on the text that follows.
_BEFORE_SPACE = r"\S "

# Source: meta-llama/llama-models models/llama3/tokenizer.py, commit
# a946b747aa1504b9cb07cfe95ee50180fa2e8b88 (`pat_str`). With `\s+(?!\S)`, the last of
# several spaces becomes part of the next word.
LLAMA_3 = PreTokenizer(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _BEFORE_SPACE,
)

# Qwen2 and Qwen3 use the Llama 3 pattern, except that each digit is a separate piece.
QWEN_2 = PreTokenizer(
    LLAMA_3.pattern.pattern.replace(r"\p{N}{1,3}", r"\p{N}"), _BEFORE_SPACE
)

# In Mistral NeMo, a new word begins where an uppercase letter follows a lowercase one.
# Contractions are not separate pieces. The pattern is copied from its `tokenizer.json`.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = PreTokenizer(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _BEFORE_SPACE,
)

# GPT-4o and gpt-oss split as Mistral NeMo does, except that a contraction belongs to the
# word before it, and that digits form groups of up to three. Source: openai/tiktoken
# tiktoken_ext/openai_public.py (`o200k_base`).
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = PreTokenizer(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _BEFORE_SPACE,
)

# Source: openai/gpt-2 src/encoder.py, commit 9b63575ef42771a015060c964af2c3da4cf7c8ab;
# the pattern is written as in huggingface/tokenizers
# src/pre_tokenizers/byte_level.rs, v0.23.
GPT_2 = PreTokenizer(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    _BEFORE_SPACE,
)

# In SmolLM2, every digit is a separate piece, and the GPT-2 pattern splits the text
# between digits. This single pattern does both. Because the GPT-2 pattern does not see
# the digit, white space in front of a digit is one piece.
DIGITS_THEN_GPT_2 = PreTokenizer(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+",
    _BEFORE_SPACE,
)

# The default for GGUF files that do not name a pattern, such as Llama 3 files from April
# 2024. It splits off punctuation, then words, then groups of three digits from the left.
# Source: ggml-org/llama.cpp src/llama-vocab.cpp (`llm_tokenizer_bpe`, `default`), commit
# 00ad355e009e83abf98f96a6ded7193b95763681.
LLAMA_CPP_DEFAULT = PreTokenizerSequence(
    (
        r"[\p{P}$+<=>^~|]+",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"\p{N}+",
        r"[0-9]{3}",
    ),
    _BEFORE_SPACE,
)

# SentencePiece words, each with the metaspaces in front of it.
METASPACE_WORDS = PreTokenizer(
    f"{METASPACE}*[^{METASPACE}]+|{METASPACE}+", f"[^{METASPACE}]{METASPACE}"
)

# Hexadecimal code points and ranges that Unicode 15.0 to 16.0 added to Unicode 14.0, the
# version in Python 3.11. A test compares them with tiktoken, whose split pattern uses
# Unicode 16.0. Source: Unicode Character Database, DerivedAge.txt.
_NEW_IN_16 = """
897 CF3 ECE 1B4E-1B4F 1B7F 1C89-1C8A 2427-2429 2FFC-2FFF 31E4-31E5 31EF A7CB-A7CD
A7DA-A7DC 105C0-105F3 10D40-10D65 10D69-10D85 10D8E-10D8F 10EC2-10EC4 10EFC-10EFF
1123F-11241 11380-11389 1138B 1138E 11390-113B5 113B7-113C0 113C2 113C5 113C7-113CA
113CC-113D5 113D7-113D8 113E1-113E2 116D0-116E3 11B00-11B09 11BC0-11BE1 11BF0-11BF9
11F00-11F10 11F12-11F3A 11F3E-11F5A 1342F 13439-13455 13460-143FA 16100-16139 16D40-16D79
18CFF 1B132 1B155 1CC00-1CCF9 1CD00-1CEB3 1D2C0-1D2D3 1DF25-1DF2A 1E030-1E06D 1E08F
1E4D0-1E4F9 1E5D0-1E5FA 1E5FF 1F6DC 1F774-1F776 1F77B-1F77F 1F7D9 1F8B2-1F8BB 1F8C0-1F8C1
1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF
1FAE8-1FAE9 1FAF7-1FAF8 1FBCB-1FBEF 2B739 2EBF0-2EE5D 31350-323AF
"""
# Code points that Unicode 17.0 and 18.0 added. A test fails on a Python version whose
# Unicode data are newer.
_NEW_AFTER_16 = """
558 58B-58C 5C8-5C9 88F B53-B54 C5C CDC 1ACF-1AF0 208F 209D-209F 20C1-20C4 2B96 2E60-2E63
A7CE-A7CF A7D2 A7D4 A7DD A7E2 A7F1 AB6C-AB6D FBC3-FBD2 FD90-FD91 FDC8-FDCE 107BB-107BF
10940-10959 10EC5-10EC7 10EC9-10EEE 10EF0-10EFB 11B0A 11B60-11B67 11DB0-11DDB 11DE0-11DE9
11DF0-11DF1 1246F 12475-1247F 12550-12686 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF
18CD6-18CDA 18D09-18D20 18D80-18DF2 18E00-19191 191A0-191D2 1B123-1B128 1B168 1CCFA-1CCFC
1CEBA-1CED0 1CED2-1CED4 1CEDD-1CEFD 1D127-1D128 1D1EB-1D1FF 1D250-1D281 1D6A6 1DB00-1DB1C
1DF1F-1DF24 1DF2B-1DF81 1DF90-1DF96 1DFCD-1DFFF 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 1F1AE
1F6D8-1F6D9 1F777-1F77A 1F7DA-1F7DB 1F7F1-1F7FF 1F8D0-1F8D8 1FA54-1FA57 1FA8A-1FA8E 1FAC8
1FACC-1FACD 1FADD 1FAEA-1FAEB 1FAEF 1FAF9-1FAFA 1FBFA 2B73A-2B73F 2B81E 2CEA2-2CEAD
323B0-33479 3D000-3FC3F
"""


def _bounds(ranges: str) -> list[int]:
    """Parse ranges into alternating start and stop bounds, in ascending order."""
    ends = ((each.split("-")[0], each.split("-")[-1]) for each in ranges.split())
    return [
        bound for first, last in ends for bound in (int(first, 16), int(last, 16) + 1)
    ]


_BOUNDS_IN_16 = _bounds(_NEW_IN_16)
_BOUNDS_AFTER_16 = _bounds(_NEW_AFTER_16)


def is_unassigned(character: str) -> bool:
    """Return whether a character is unassigned in Unicode 16.0, on any Python version."""
    code = ord(character)
    if character.isascii() or bisect_right(_BOUNDS_IN_16, code) % 2:
        return False
    return (
        unicodedata.category(character) == "Cn"
        or bisect_right(_BOUNDS_AFTER_16, code) % 2 == 1
    )
