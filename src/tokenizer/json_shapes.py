"""What a `tokenizer.json` says besides its tokens, recognised from tables of known shapes.

Nothing from the file is run: pattern, normalizer, pre-tokenizer, post-processor and decoder are
compared with the known ones, and refused by name where they are none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .errors import TokenizerError, mismatch
from .files import described, kind_of
from .marked_text import SPACE_MARK, Prefix
from .roles import Template
from .split import DIGITS_THEN_GPT_2, GPT_2, LLAMA_3, Splitter

_T = TypeVar("_T")


@dataclass(frozen=True)
class ByteLevelShape:
    """Byte-level BPE.

    Attributes:
        splitter: cuts a text into pieces.
        prefix_space: whether a space goes before a text that does not start with one.
    """

    splitter: Splitter
    prefix_space: bool = False


@dataclass(frozen=True)
class MarkedShape:
    """SentencePiece-style BPE.

    Attributes:
        normalizes: whether spaces are marked before added tokens are looked for in a text.
        prefix: when a space mark goes before a text.
        words: whether words are encoded apart.
        drops_first_space: whether decoding drops one space at the beginning.
    """

    normalizes: bool
    prefix: Prefix
    words: bool
    drops_first_space: bool


def _sequence(name: str, *parts: object) -> object:
    return {"type": "Sequence", name: list(parts)}


def _byte_level(*, prefix_space: bool, use_regex: bool) -> object:
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "use_regex": use_regex}


def _split(pattern: str, behavior: str, *, invert: bool) -> object:
    pattern_of = {"Regex": pattern}
    return {"type": "Split", "pattern": pattern_of, "behavior": behavior, "invert": invert}


# The patterns as files spell them. They are compared, never compiled.
_PATTERNS = (
    (LLAMA_3.pattern.pattern, LLAMA_3),
    (GPT_2.pattern.pattern, GPT_2),
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", GPT_2),
)
# Known shapes are not deeper than this.
_DEEPEST = 8

_AFTER_SPLIT = _byte_level(prefix_space=False, use_regex=False)

# What comes before byte-level BPE. Both ways of splitting keep every match as a piece, and the
# patterns match all of a text.
_BYTE_LEVEL: list[tuple[object, ByteLevelShape]] = [
    (_byte_level(prefix_space=False, use_regex=True), ByteLevelShape(GPT_2)),
    (_byte_level(prefix_space=True, use_regex=True), ByteLevelShape(GPT_2, prefix_space=True)),
    (
        _sequence(
            "pretokenizers",
            {"type": "Digits", "individual_digits": True},
            _byte_level(prefix_space=False, use_regex=True),
        ),
        ByteLevelShape(DIGITS_THEN_GPT_2),
    ),
    *(
        (
            _sequence("pretokenizers", _split(pattern, behavior, invert=invert), _AFTER_SPLIT),
            ByteLevelShape(splitter),
        )
        for pattern, splitter in _PATTERNS
        for behavior, invert in (("Isolated", False), ("Removed", True))
    ),
]

_PREPEND = {"type": "Prepend", "prepend": SPACE_MARK}
_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
_UNMARK = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_TO_BYTES = ({"type": "ByteFallback"}, {"type": "Fuse"})

# What comes before SentencePiece-style BPE: a normalizer or a pre-tokenizer.
_MARKING_NORMALIZERS: list[tuple[object, Prefix]] = [
    (_sequence("normalizers", _PREPEND, _MARK), Prefix.ALWAYS),
    (_sequence("normalizers", _MARK), Prefix.NEVER),
    (_MARK, Prefix.NEVER),
]
_PREPEND_SCHEMES = {
    "always": Prefix.UNMARKED,
    "first": Prefix.FIRST_UNMARKED,
    "never": Prefix.NEVER,
}
_METASPACES: list[tuple[object, tuple[Prefix, bool]]] = [
    (
        {"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": name, "split": words},
        (prefix, words),
    )
    for name, prefix in _PREPEND_SCHEMES.items()
    for words in (False, True)
]

# What turns marked tokens into text, and whether it drops a space at the beginning.
_MARKED_DECODERS: list[tuple[object, bool]] = [
    (_sequence("decoders", _UNMARK, *_TO_BYTES, _STRIP), True),
    (_sequence("decoders", _UNMARK, *_TO_BYTES), False),
]


def read_shape(path: Path, file: Mapping[str, object]) -> ByteLevelShape | MarkedShape:
    """Recognise how text becomes symbols, and tokens become text again.

    Args:
        path: the file, for errors.
        file: its `normalizer`, `pre_tokenizer` and `decoder` are looked at.

    Raises:
        TokenizerError: naming what is not known.
    """
    normalizer = _plain(file.get("normalizer"))
    before = _plain(file.get("pre_tokenizer"))
    decoder = _plain(file.get("decoder"))
    byte_level = _look_up(_BYTE_LEVEL, before)
    if byte_level is not None:
        if normalizer is not None:
            raise _unknown(path, "normalizer", "null (byte level)", normalizer)
        if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
            raise _unknown(path, "decoder", "ByteLevel", decoder)
        return byte_level
    metaspace = _look_up(_METASPACES, before)
    if metaspace is None and before is not None:
        raise _unknown(path, "pre_tokenizer", "a known one", before)
    if metaspace is not None and normalizer is not None:
        raise _unknown(path, "normalizer", "null (Metaspace)", normalizer)
    drops = _look_up(_MARKED_DECODERS, decoder)
    if drops is None:
        raise _unknown(path, "decoder", "Replace, ByteFallback, Fuse and Strip", decoder)
    if metaspace is not None:
        prefix, words = metaspace
        return MarkedShape(False, prefix, words, drops)
    marking = _look_up(_MARKING_NORMALIZERS, normalizer)
    if marking is None:
        raise _unknown(path, "normalizer", "a known one", normalizer)
    return MarkedShape(True, marking, False, drops)


def read_template(path: Path, processor: object) -> Template | None:
    """Recognise what is put around a text.

    Args:
        path: the file, for errors.
        processor: its `post_processor`.

    Returns:
        The names of the tokens around a text, or None where the file says nothing about them.

    Raises:
        TokenizerError: naming what is not known.
    """
    value = _plain(processor)
    if isinstance(value, dict) and value.get("type") == "Sequence":
        parts = value.get("processors")
        if not isinstance(parts, list) or None in parts:
            got = kind_of(parts) if not isinstance(parts, list) else "null among them"
            raise mismatch(path, "post_processor: processors", "a list of processors", got)
        templates = [part for part in parts if not _is_type(part, "ByteLevel")]
        if len(templates) > 1:
            raise _unknown(path, "post_processor", "at most one TemplateProcessing", value)
        value = templates[0] if templates else None
    if value is None or _is_type(value, "ByteLevel"):
        return None
    if not isinstance(value, dict) or value.get("type") != "TemplateProcessing":
        raise _unknown(path, "post_processor", "TemplateProcessing or ByteLevel", value)
    single = value.get("single")
    names = [_template_name(item) for item in single] if isinstance(single, list) else []
    if names.count("") != 1 or None in names or len(names) > 3:
        raise mismatch(
            path, "post_processor: single", "at most one token before and after A", "another shape"
        )
    at = names.index("")
    if at > 1 or len(names) - at > 2:
        raise mismatch(
            path, "post_processor: single", "at most one token before and after A", "more"
        )
    return Template(begin=names[0] if at else None, end=names[-1] if at < len(names) - 1 else None)


def _template_name(item: object) -> str | None:
    """Give the name of a special token in a template, "" for the text, None for what is neither."""
    if isinstance(item, dict) and len(item) == 1:
        (kind, inner), *_ = item.items()
        name = inner.get("id") if isinstance(inner, dict) else None
        if kind == "SpecialToken" and isinstance(name, str) and name:
            return name
        if kind == "Sequence" and name == "A":
            return ""
    return None


def _is_type(value: object, name: str) -> bool:
    return isinstance(value, dict) and value.get("type") == name


def _plain(value: object, depth: int = 0) -> object:
    """Write a shape as the tables do: without what concerns offsets only, with all defaults."""
    if depth > _DEEPEST:
        return "too deep to be known"
    if isinstance(value, list):
        return [_plain(part, depth + 1) for part in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(part, depth + 1) for key, part in value.items() if key != "trim_offsets"}
    if plain.get("type") == "ByteLevel":
        plain.setdefault("use_regex", True)
    if plain.get("type") == "Metaspace":
        _write_metaspace_anew(plain)
    if plain.get("type") == "Sequence" and [] in plain.values():
        return None
    return plain


def _write_metaspace_anew(plain: dict[str, object]) -> None:
    """Write the older flag for a prefix as the newer scheme, unless the two contradict."""
    plain.pop("str_rep", None)
    flag = plain.pop("add_prefix_space", True)
    scheme = plain.setdefault("prepend_scheme", "always" if flag else "never")
    if not flag and scheme != "never":
        plain["add_prefix_space"] = flag
    plain.setdefault("split", True)


def _look_up(table: list[tuple[object, _T]], value: object) -> _T | None:
    return next((result for shape, result in table if shape == value), None)


def _unknown(path: Path, what: str, expected: str, value: object) -> TokenizerError:
    return mismatch(path, what, expected, _described(value))


def _described(value: object) -> str:
    """Name a shape: its type, that of its parts, and a pattern where there is one."""
    if not isinstance(value, dict):
        return described(value)
    parts = [part for listed in value.values() if isinstance(listed, list) for part in listed]
    parts = [part for part in parts[:5] if isinstance(part, dict)]
    inner = ", ".join(described(part.get("type")) for part in parts)
    patterns = [
        f", pattern {described(text)}"
        for part in (value, *parts)
        if isinstance(part.get("pattern"), dict)
        for text in list(part["pattern"].values())[:1]
    ]
    return described(value.get("type")) + (f" of {inner}" if inner else "") + "".join(patterns)
