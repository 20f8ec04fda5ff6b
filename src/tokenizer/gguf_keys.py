"""Build a tokenizer from the keys in a GGUF file.

`tokenizer.ggml.model` is `llama` for a SentencePiece BPE model, and `gpt2` for byte-level
BPE with merges. In the latter case, `tokenizer.ggml.pre` names the pattern that splits
the text.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `src/llama-vocab.cpp` (`impl::load`) and
`convert_hf_to_gguf.py` (`get_vocab_base`, `_create_vocab_sentencepiece`).
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..untrusted import described, is_integer, label_of, shown
from .added_tokens import AddedToken
from .config_files import MARKER, MAX_TOKENS, TokenSettings, check_names, expect_kind
from .encoders import ByteLevelPipeline
from .errors import TokenizerError, mismatch
from .pre_tokenizers import (
    DIGITS_THEN_GPT_2,
    GPT_2,
    LLAMA_3,
    LLAMA_CPP_DEFAULT,
    O200K,
    QWEN_2,
    TEKKEN,
)
from .sentencepiece_model import (
    Kind,
    Piece,
    SentencePieceModel,
    check_model,
    sentencepiece_tokenizer,
)
from .tokenizer import Decoding, Tokenizer
from .tokenizer_json import Vocabulary, byte_level, collector_paused

_T = TypeVar("_T")

_PREFIX = "tokenizer.ggml."
_KNOWN_KEYS = {
    *("model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token"),
    *("add_space_prefix", "remove_extra_whitespaces"),
    # These keys have no effect: the chat format determines where an answer ends, and no
    # EOS or separator token is appended to a prompt. A file may only have
    # `suppress_tokens` if it is empty.
    *("add_eos_token", "add_sep_token", "token_type_count", "suppress_tokens"),
}
ARRAYS = {
    f"{_PREFIX}tokens": MAX_TOKENS,
    f"{_PREFIX}token_type": MAX_TOKENS,
    f"{_PREFIX}scores": MAX_TOKENS,
    f"{_PREFIX}suppress_tokens": MAX_TOKENS,
    f"{_PREFIX}merges": 4 * MAX_TOKENS,  # Llama 3 has 280,147 merges for 128,000 tokens
}
"""A mapping from each key whose array is read to its maximum number of values."""
_ROLES = ("bos", "eos", "eot", "eom")


@dataclass(frozen=True)
class _SplitPattern:
    """The properties that a split pattern's name implies."""

    pipeline: ByteLevelPipeline  # the steps that split the text
    # Whether a piece that is itself a token bypasses the merges.
    whole: bool = False
    adds_bos: bool = False  # the default of `add_bos_token`


_LLAMA_3 = ByteLevelPipeline(LLAMA_3)
_DIGITS_THEN_GPT_2 = ByteLevelPipeline(DIGITS_THEN_GPT_2)
_GPT_2 = ByteLevelPipeline(GPT_2)
_QWEN_2 = ByteLevelPipeline(QWEN_2)
_COMPOSED_QWEN_2 = ByteLevelPipeline(QWEN_2, composes=True)

# When a file is written, the first name of a group is used.
_GROUPS: Sequence[tuple[_SplitPattern, str]] = (
    (
        _SplitPattern(_LLAMA_3, whole=True, adds_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (
        _SplitPattern(_LLAMA_3),
        "dbrx smaug-bpe chatglm-bpe",
    ),  # dbrx: OLMo 2; smaug-bpe: SmolLM3 and fine-tuned Llama 3
    (_SplitPattern(ByteLevelPipeline(TEKKEN), whole=True, adds_bos=True), "tekken"),
    (_SplitPattern(ByteLevelPipeline(O200K)), "gpt-4o llama4 kanana2 talkie"),
    # llama.cpp does not apply normalization form C, but these two models' tokenizers do.
    (_SplitPattern(_COMPOSED_QWEN_2), "qwen2 deepseek-r1-qwen"),
    (_SplitPattern(_QWEN_2), "stablelm2 kormo f2llmv2 megrez hunyuan solar-open grok-2"),
    (
        _SplitPattern(_DIGITS_THEN_GPT_2),  # smollm: SmolLM2; refact: Granite
        "smollm refact starcoder command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        _SplitPattern(_GPT_2),
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 "
        "mellum modern-bert jina-es jina-de jina-v2-es jina-v2-de jina-v1-en "
        "jina-v2-code roberta-bpe",
    ),
    (_SplitPattern(ByteLevelPipeline(LLAMA_CPP_DEFAULT)), "default"),
)
PRE_TOKENIZERS: Mapping[str, _SplitPattern] = {
    name: pre for pre, names in _GROUPS for name in names.split()
}
"""The supported values of `tokenizer.ggml.pre`, with their split patterns.

The names and their meanings are llama.cpp's. If a file lacks the key, `default` is used.
"""

_FIRST_NAMES = ", ".join(names.split()[0] for _, names in _GROUPS)
_PRE_RULE = f"one of {_FIRST_NAMES}, or one of their other names"
_PRE_ADVICE = """\
; load the Hugging Face directory of the model, or, if it has one of these patterns, \
write it into a new file with gguf-new-metadata --pre-tokenizer"""
_NO_PRE = """\
the key 'tokenizer.ggml.pre' is missing: text is split by the default pattern of \
llama.cpp, which can differ from the pattern of the training; newer files of the model \
have the key"""


@dataclass(frozen=True)
class _Keys:
    path: Path
    values: Mapping[str, object]  # key without the prefix -> value

    def value(self, key: str, default: _T) -> _T:
        """Return a key's value, which must have the same type as the default."""
        value = self.values.get(key, default)
        return expect_kind(self.path, f"key '{_PREFIX}{key}'", value, type(default))

    def listed(self, key: str, kind: type[_T], count: int | None = None) -> list[_T]:
        """Return a key's list after checking its length and the type of its values."""
        values = self.values.get(key)
        if not isinstance(values, list) or (values and type(values[0]) is not kind):
            of_kind = (
                f" of {type(values[0]).__name__}" if isinstance(values, list) else ""
            )
            raise self.mismatch(
                key, f"a list of {kind.__name__}", described(values) + of_kind
            )
        if not 0 < len(values) <= MAX_TOKENS:
            raise self.mismatch(key, f"1 to {MAX_TOKENS} values", len(values))
        if count not in (None, len(values)):
            raise self.mismatch(key, f"{count} values, one per token", len(values))
        return values

    def mismatch(self, key: str, expected: str, actual: object) -> TokenizerError:
        return mismatch(self.path, f"key '{_PREFIX}{key}'", expected, actual)


def ignored_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the tokenizer keys that have no effect, as in llama.cpp."""
    return tuple(
        key
        for key in keys
        if key.startswith(_PREFIX)
        and key.removeprefix(_PREFIX) not in _KNOWN_KEYS
        and not key.endswith("_token_id")
    )


def gguf_tokenizer(path: Path, keys: Mapping[str, object]) -> Tokenizer | None:
    """Build the tokenizer from a GGUF file's keys.

    Args:
        path: The file, for error messages.
        keys: All keys that begin with `tokenizer.`. Scalars are int, float, bool or str,
            and the arrays in `ARRAYS` are lists.

    Returns:
        The tokenizer, or None if the file has no tokenizer. None is also returned, with a
        warning, for a SentencePiece vocabulary without byte tokens or an unknown token.

    Raises:
        TokenizerError: A key is missing or unsupported, or contradicts another key.
    """
    values = {
        key.removeprefix(_PREFIX): v for key, v in keys.items() if key.startswith(_PREFIX)
    }
    file = _Keys(path, values)
    kind = values.get("model")
    if kind in (None, "no_vocab", "none"):
        return None
    if kind not in ("llama", "gpt2"):
        raise file.mismatch("model", "'llama' or 'gpt2'", described(kind))
    if suppressed := values.get("suppress_tokens"):
        expected = "no tokens, because this engine cannot suppress tokens"
        actual = (
            len(suppressed) if isinstance(suppressed, list) else described(suppressed)
        )
        raise file.mismatch("suppress_tokens", expected, actual)
    with collector_paused():
        names = file.listed("tokens", str)
        kinds = file.listed("token_type", int, len(names))
        ids: dict[str, int] = {}
        for number, (name, token_kind) in enumerate(zip(names, kinds, strict=True)):
            if ids.setdefault(name, number) != number:
                actual = f"{shown(name)} of token {ids[name]} again"
                raise mismatch(path, f"token {number}", "a new text", actual)
            if not Kind.NORMAL <= token_kind <= Kind.BYTE:
                expected = f"a value from {Kind.NORMAL} to {Kind.BYTE}"
                raise mismatch(path, f"token {number}: type", expected, token_kind)
        check_names(path, ids)
        roles: dict[str, int] = {}
        for role in _ROLES:
            token_id = values.get(f"{role}_token_id")
            if token_id is None:
                continue
            if not is_integer(token_id, 0, len(names) - 1):
                expected = f"0 <= id < {len(names)}"
                raise file.mismatch(f"{role}_token_id", expected, described(token_id))
            roles[role] = token_id
            # Text must not encode to a token with a role.
            kinds[token_id] = (
                Kind.UNKNOWN if kinds[token_id] == Kind.UNKNOWN else Kind.CONTROL
            )
        unknown = values.get("unknown_token_id")
        lacks_unknown = kind == "llama" and Kind.UNKNOWN not in kinds
        if (
            lacks_unknown
            and is_integer(unknown, 0, len(names) - 1)
            and kinds[unknown] == Kind.CONTROL
        ):
            # The files of some models mark the unknown token as a control token.
            kinds[unknown] = Kind.UNKNOWN
        make = _sentencepiece if kind == "llama" else _byte_level
        return make(file, ids, kinds, roles)


def _settings(file: _Keys, roles: Mapping[str, int], adds_bos: bool) -> TokenSettings:
    return TokenSettings(
        names={},
        adds_bos=file.value("add_bos_token", adds_bos),
        end_ids=frozenset(roles[role] for role in ("eot", "eom") if role in roles),
        end_ids_source=file.path,
    )


def _sentencepiece(
    file: _Keys, ids: Mapping[str, int], kinds: Sequence[int], roles: Mapping[str, int]
) -> Tokenizer | None:
    """Build the tokenizer from the equivalent SentencePiece model.

    Return None, with a warning, if the vocabulary has no byte tokens or no unknown token,
    because it cannot encode every string.
    """
    for kind, tokens in (
        (Kind.UNKNOWN, "unknown token"),
        (Kind.BYTE, "byte tokens"),
    ):
        if kind not in kinds:
            warnings.warn(
                f"{label_of(file.path)}: the vocabulary has no {tokens}: the model is "
                "loaded without a tokenizer",
                stacklevel=2,
            )
            return None
    if file.value("remove_extra_whitespaces", False):
        raise file.mismatch("remove_extra_whitespaces", "false", "true")
    # Files contain the spaces of user-defined pieces; SentencePiece writes U+2581.
    names = [
        name.replace(" ", "\u2581") if kind == Kind.USER_DEFINED else name
        for name, kind in zip(ids, kinds, strict=True)
    ]
    model = SentencePieceModel(
        pieces=tuple(map(Piece, names, file.listed("scores", float, len(names)), kinds)),
        bos_piece=names[roles["bos"]] if "bos" in roles else "<s>",
        eos_piece=names[roles["eos"]] if "eos" in roles else "</s>",
        add_dummy_prefix=file.value("add_space_prefix", True),
    )
    check_model(file.path, model)
    return sentencepiece_tokenizer(model, _settings(file, roles, adds_bos=True))


def _byte_level(
    file: _Keys, ids: Mapping[str, int], kinds: Sequence[int], roles: Mapping[str, int]
) -> Tokenizer:
    """Build the byte-level tokenizer from the vocabulary and the merges."""
    if "pre" not in file.values:
        warnings.warn(f"{label_of(file.path)}: {_NO_PRE}", stacklevel=2)
    pre = file.values.get("pre", "default")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise file.mismatch("pre", _PRE_RULE, described(pre) + _PRE_ADVICE)
    pattern = PRE_TOKENIZERS[pre]
    names = [*ids]
    tokens = dict(ids)
    added = list[AddedToken]()
    special = dict[str, int]()
    unused = list[int]()
    for n, kind in enumerate(kinds):
        if kind == Kind.NORMAL:
            continue
        name = names[n]
        del tokens[name]
        is_word = kind == Kind.USER_DEFINED
        if kind in (Kind.CONTROL, Kind.UNKNOWN) or (is_word and MARKER.fullmatch(name)):
            special[name] = n
        if name in special or is_word:
            added.append(AddedToken(name, n, special=name in special))
        if kind == Kind.UNUSED:
            unused.append(n)
    vocabulary = Vocabulary(names, ids, tokens, added, special)
    merges = {"merges": file.values.get("merges"), "ignore_merges": pattern.whole}
    encoder, token_bytes = byte_level(file.path, merges, vocabulary, pattern.pipeline)
    for n in unused:
        token_bytes[n] = b""
    begin, end = (
        names[roles[role]] if role in roles else None for role in ("bos", "eos")
    )
    return Tokenizer(
        token_bytes,
        special,
        encoder,
        _settings(file, roles, pattern.adds_bos).roles(special, len(names), (begin, end)),
        Decoding(),
    )
