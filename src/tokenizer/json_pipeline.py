"""Recognize the components in a `tokenizer.json`, such as the normalizer and the decoder.

Nothing in the file is executed. Each component is looked up in the tables below, and an
unknown component is rejected with an error that shows it.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..untrusted import escape_line, is_same_json
from .config_files import Template, expect_kind
from .encoders import ByteLevelPipeline, MetaspacePipeline, PrependScheme
from .errors import TokenizerError, mismatch
from .pre_tokenizers import (
    DIGITS_THEN_GPT_2,
    GPT_2,
    LLAMA_3,
    METASPACE,
    O200K,
    QWEN_2,
    TEKKEN,
)

_T = TypeVar("_T")


def _sequence(name: str, *parts: object) -> object:
    return {"type": "Sequence", name: list(parts)}


def _split(pattern: str, behavior: str, *, invert: bool) -> object:
    pattern_of = {"Regex": pattern}
    return {
        "type": "Split",
        "pattern": pattern_of,
        "behavior": behavior,
        "invert": invert,
    }


# The patterns exactly as files spell them. They are compared but never compiled.
_PATTERNS = (
    (LLAMA_3.pattern.pattern, LLAMA_3),
    (QWEN_2.pattern.pattern, QWEN_2),
    (TEKKEN.pattern.pattern, TEKKEN),
    (O200K.pattern.pattern, O200K),
    (GPT_2.pattern.pattern, GPT_2),
    (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        GPT_2,
    ),
)
# Maximum nesting depth of a component. No known component is nested this deeply.
_DEEPEST = 8
_MOST_SHOWN = 200  # maximum length of an unknown component in an error message

_NFC = {"type": "NFC"}
_DIGITS = {"type": "Digits", "individual_digits": True}
_ALONE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_AFTER_SPLIT = _ALONE | {"use_regex": False}

# Pre-tokenizers for byte-level BPE. Both behaviors keep every match as a piece, because
# the patterns match the whole text.
_BYTE_LEVEL: list[tuple[object, ByteLevelPipeline]] = [
    (_ALONE, ByteLevelPipeline(GPT_2)),
    (_sequence("pretokenizers", _DIGITS, _ALONE), ByteLevelPipeline(DIGITS_THEN_GPT_2)),
    *(
        (
            _sequence(
                "pretokenizers", _split(pattern, behavior, invert=invert), _AFTER_SPLIT
            ),
            ByteLevelPipeline(pre_tokenizer),
        )
        for pattern, pre_tokenizer in _PATTERNS
        for behavior, invert in (("Isolated", False), ("Removed", True))
    ),
]

_PREPEND = {"type": "Prepend", "prepend": METASPACE}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}
_RESTORE = {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_TO_BYTES = ({"type": "ByteFallback"}, {"type": "Fuse"})

# A SentencePiece-style file has either one of these normalizers or one of the Metaspace
# pre-tokenizers below.
_NORMALIZERS: list[tuple[object, PrependScheme]] = [
    (_sequence("normalizers", _PREPEND, _REPLACE), PrependScheme.ALWAYS),
    (_sequence("normalizers", _REPLACE), PrependScheme.NEVER),
    (_REPLACE, PrependScheme.NEVER),
]
_PREPEND_SCHEMES = {
    "always": PrependScheme.UNLESS_THERE,
    "first": PrependScheme.FIRST_UNLESS_THERE,
    "never": PrependScheme.NEVER,
}
_METASPACES: list[tuple[object, tuple[PrependScheme, bool] | None]] = [
    (None, None),
    # The normalizer has replaced all spaces, so that this splits nothing.
    (
        {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        None,
    ),
    *(
        (
            {
                "type": "Metaspace",
                "replacement": METASPACE,
                "prepend_scheme": name,
                "split": words,
            },
            (scheme, words),
        )
        for name, scheme in _PREPEND_SCHEMES.items()
        for words in (False, True)
    ),
]

# Decoders for SentencePiece-style BPE, with whether each drops the first space.
_METASPACE_DECODERS: list[tuple[object, bool]] = [
    (_sequence("decoders", _RESTORE, *_TO_BYTES, _STRIP), True),
    (_sequence("decoders", _RESTORE, *_TO_BYTES), False),
]


# Known templates, as sequences of parts: True for the text, False for a special token.
_TEMPLATES = ((True,), (False, True), (True, False), (False, True, False))


def read_pipeline(
    path: Path, file: Mapping[str, object]
) -> ByteLevelPipeline | MetaspacePipeline:
    """Return the pipeline that the normalizer, pre-tokenizer and decoder describe.

    Raises:
        TokenizerError: A component is unknown.
    """
    normalizer = _plain(file.get("normalizer"))
    before = _plain(file.get("pre_tokenizer"))
    decoder = _plain(file.get("decoder"))
    byte_level = next(
        (each for component, each in _BYTE_LEVEL if is_same_json(before, component)), None
    )
    if byte_level is not None:
        if normalizer is not None and not is_same_json(normalizer, _NFC):
            raise _unknown(path, "normalizer", "null or NFC (byte level)", normalizer)
        if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
            raise _unknown(path, "decoder", "ByteLevel", decoder)
        return replace(byte_level, composes=normalizer is not None)
    metaspace = _look_up(path, "pre_tokenizer", "a known one", _METASPACES, before)
    rule = "Replace, ByteFallback, Fuse and Strip"
    drops = _look_up(path, "decoder", rule, _METASPACE_DECODERS, decoder)
    if metaspace is None:
        prepended = _look_up(path, "normalizer", "a known one", _NORMALIZERS, normalizer)
        return MetaspacePipeline(True, prepended, False, drops)
    if normalizer is not None:
        raise _unknown(path, "normalizer", "null (Metaspace)", normalizer)
    return MetaspacePipeline(False, *metaspace, drops)


def byte_level_component(pipeline: ByteLevelPipeline) -> object | None:
    """Return a pipeline's pre-tokenizer as JSON, or None if it has no JSON form."""
    expected = replace(pipeline, composes=False)
    return next(
        (_whole(component) for component, other in _BYTE_LEVEL if other == expected), None
    )


def _whole(component: object) -> object:
    """Look a component up in the tables by the keys that files use, and return it."""
    if isinstance(component, list):
        return [_whole(part) for part in component]
    if not isinstance(component, dict):
        return component
    offsets = {"trim_offsets": True} if component.get("type") == "ByteLevel" else {}
    return {key: _whole(part) for key, part in component.items()} | offsets


def read_template(path: Path, processor: object) -> Template | None:
    """Return the template in a file's `post_processor`, or None if it has no template.

    Raises:
        TokenizerError: The component is unknown.
    """
    value = _plain(processor)
    parts = [] if value is None else [value]
    if isinstance(value, dict) and value.get("type") == "Sequence":
        parts = expect_kind(
            path, "post_processor: processors", value.get("processors"), list
        )
    match [
        p for p in parts if not (isinstance(p, dict) and p.get("type") == "ByteLevel")
    ]:
        case []:
            return None
        case [{"type": "TemplateProcessing", "single": list(single)}]:
            names = [*map(_template_name, single)]
        case _:
            rule = "at most one TemplateProcessing, ByteLevel"
            raise _unknown(path, "post_processor", rule, value)
    is_text = tuple(name == "" for name in names)
    if None in names or is_text not in _TEMPLATES:
        rule = "at most one token before and after A"
        raise mismatch(path, "post_processor: single", rule, "another template")
    return names[0] or None, names[-1] or None


def _template_name(item: object) -> str | None:
    """Return a template item's special token, "" for the text, or None if unknown."""
    match item:
        case {"SpecialToken": {"id": str(name)}, **rest} if name and not rest:
            return name
        case {"Sequence": {"id": "A"}, **rest} if not rest:
            return ""
    return None


def _plain(value: object, depth: int = 0) -> object:
    """Return a component in the form used by the tables.

    Offset keys are removed, and missing defaults are filled in.
    """
    if depth > _DEEPEST:
        return "too deeply nested"
    if isinstance(value, list):
        return [_plain(part, depth + 1) for part in value]
    if not isinstance(value, dict):
        return value
    plain = {
        key: _plain(part, depth + 1)
        for key, part in value.items()
        if key != "trim_offsets"
    }
    if plain.get("type") == "ByteLevel":
        plain.setdefault("use_regex", True)
    if plain.get("type") == "Metaspace":
        # The older flag `add_prefix_space` is dropped if it agrees with the newer
        # `prepend_scheme`. It is kept if it contradicts the scheme, so that no component
        # in the tables matches.
        plain.pop("str_rep", None)
        flag = plain.pop("add_prefix_space", True)
        scheme = plain.setdefault("prepend_scheme", "always" if flag else "never")
        if not flag and scheme != "never":
            plain["add_prefix_space"] = flag
        plain.setdefault("split", True)
    if plain.get("type") == "Sequence" and [] in plain.values():
        return None
    return plain


def _look_up(
    path: Path, key: str, rule: str, table: list[tuple[object, _T]], value: object
) -> _T:
    for component, result in table:
        if is_same_json(value, component):
            return result
    raise _unknown(path, key, rule, value)


def _unknown(path: Path, key: str, expected: str, value: object) -> TokenizerError:
    return mismatch(path, key, expected, escape_line(json.dumps(value), _MOST_SHOWN))
