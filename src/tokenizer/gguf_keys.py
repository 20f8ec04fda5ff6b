"""Make the tokenizer that the keys of a GGUF file describe.

`tokenizer.ggml.model` is `llama` for a SentencePiece model of the kind BPE, and `gpt2` for
byte-level BPE with merges. Of the latter, `tokenizer.ggml.pre` names the pattern that splits a
text.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `src/llama-vocab.cpp` (`impl::load`) and
`convert_hf_to_gguf.py` (`get_vocab_base`, `_create_vocab_sentencepiece`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..untrusted import described, is_integer, shown
from .added_tokens import AddedToken
from .config_files import MARKER, MAX_TOKENS, TokenSettings, check_names, expect_kind
from .encoders import ByteLevelPipeline
from .errors import mismatch
from .pre_tokenizers import DIGITS_THEN_GPT_2, GPT_2, LLAMA_3, QWEN_2, TEKKEN
from .sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    check_model,
    sentencepiece_tokenizer,
)
from .tokenizer import Decoding, Tokenizer
from .tokenizer_json import Vocabulary, byte_level, collector_paused, with_added_tokens

_T = TypeVar("_T")

_PREFIX = "tokenizer.ggml."
_TOKEN_ID = "_token_id"
_KNOWN_KEYS = {
    *("model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token"),
    *("add_space_prefix", "remove_extra_whitespaces"),
    # What an answer of a chat ends with is a matter of its format; a prompt never ends with this.
    *("add_eos_token", "add_sep_token", "token_type_count"),
}
_ROLES = ("bos", "eos", "eot", "eom")


@dataclass(frozen=True)
class _Pre:
    """What the name of a split pattern implies."""

    pipeline: ByteLevelPipeline  # how a text is split
    whole: bool = False  # whether a piece that is a token becomes that token, whatever merges give
    adds_bos: bool = False  # whether texts begin with `bos`, where no key says it


PRE_TOKENIZERS: Mapping[str, _Pre] = {
    "llama-bpe": _Pre(ByteLevelPipeline(LLAMA_3), whole=True, adds_bos=True),
    "dbrx": _Pre(ByteLevelPipeline(LLAMA_3)),  # OLMo 2
    "tekken": _Pre(ByteLevelPipeline(TEKKEN), whole=True, adds_bos=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Pre(ByteLevelPipeline(QWEN_2, composes=True))),
    **dict.fromkeys(("smollm", "refact"), _Pre(ByteLevelPipeline(DIGITS_THEN_GPT_2))),  # Granite
    "gpt-2": _Pre(ByteLevelPipeline(GPT_2)),
}
"""The values of `tokenizer.ggml.pre` that are known."""


def gguf_tokenizer(path: Path, keys: Mapping[str, object]) -> Tokenizer | None:
    """Make the tokenizer of a GGUF file; None where the file says that it holds none.

    `keys` are all that begin with `tokenizer.`: int, float, bool, str, or lists of these.
    TokenizerError where one is missing, unknown, or contradicts another one.
    """
    values = {key.removeprefix(_PREFIX): v for key, v in keys.items() if key.startswith(_PREFIX)}
    kind = values.get("model")
    if kind in (None, "no_vocab", "none"):
        return None
    if kind not in ("llama", "gpt2"):
        raise mismatch(path, f"key '{_PREFIX}model'", "'llama' or 'gpt2'", described(kind))
    for key in values:
        if key not in _KNOWN_KEYS and not key.endswith(_TOKEN_ID):
            raise mismatch(path, "keys", "only known ones", shown(_PREFIX + key))
    with collector_paused():
        names = _listed(path, values, "tokens", str)
        kinds = _listed(path, values, "token_type", int, len(names))
        ids: dict[str, int] = {}
        for number, (name, of_kind) in enumerate(zip(names, kinds, strict=True)):
            if ids.setdefault(name, number) != number:
                got = f"{shown(name)} of token {ids[name]} again"
                raise mismatch(path, f"token {number}", "a new text", got)
            if not NORMAL <= of_kind <= BYTE:
                rule = f"a number from {NORMAL} to {BYTE}"
                raise mismatch(path, f"token {number}: type", rule, of_kind)
        check_names(path, ids)
        roles: dict[str, int] = {}
        for role in _ROLES:
            token_id = values.get(f"{role}{_TOKEN_ID}")
            if token_id is None:
                continue
            if not is_integer(token_id, 0, len(names) - 1):
                what, rule = f"key '{_PREFIX}{role}{_TOKEN_ID}'", f"0 <= id < {len(names)}"
                raise mismatch(path, what, rule, described(token_id))
            roles[role] = token_id
            # A token with a role is not text.
            kinds[token_id] = UNKNOWN if kinds[token_id] == UNKNOWN else CONTROL
        if kind == "llama":
            return _sentencepiece(path, values, names, kinds, roles)
        return _byte_level(path, values, ids, kinds, roles)


def _value(path: Path, values: Mapping[str, object], key: str, default: _T) -> _T:
    """Return the value of a key, which must be of the type of its default."""
    if key not in values:
        return default
    return expect_kind(path, f"key '{_PREFIX}{key}'", values[key], type(default))


def _listed(
    path: Path, values: Mapping[str, object], key: str, kind: type[_T], count: int | None = None
) -> list[_T]:
    """Return the list of a key, whose values are of one type; `count` is how many there must be."""
    what, found = f"key '{_PREFIX}{key}'", values.get(key)
    if not isinstance(found, list) or (found and type(found[0]) is not kind):
        got = described(found)
        if isinstance(found, list):
            got += f" of {type(found[0]).__name__}"
        raise mismatch(path, what, f"a list of {kind.__name__}", got)
    if not 0 < len(found) <= MAX_TOKENS:
        raise mismatch(path, what, f"1 to {MAX_TOKENS} values", len(found))
    if count is not None and len(found) != count:
        raise mismatch(path, what, f"{count} values, as there are tokens", len(found))
    return found


def _settings(
    path: Path, values: Mapping[str, object], roles: Mapping[str, int], adds_bos: bool
) -> TokenSettings:
    return TokenSettings(
        names={},
        adds_bos=_value(path, values, "add_bos_token", adds_bos),
        end_ids=frozenset(roles[role] for role in ("eot", "eom") if role in roles),
        end_ids_source=path,
    )


def _sentencepiece(
    path: Path,
    values: Mapping[str, object],
    names: Sequence[str],
    kinds: Sequence[int],
    roles: Mapping[str, int],
) -> Tokenizer:
    """Make the SentencePiece model that a `tokenizer.model` would have held, and its tokenizer."""
    if _value(path, values, "remove_extra_whitespaces", False):
        raise mismatch(path, f"key '{_PREFIX}remove_extra_whitespaces'", "false", "true")
    scores = _listed(path, values, "scores", float, len(names))
    begin, end = (names[roles[role]] if role in roles else None for role in ("bos", "eos"))
    model = SentencePieceModel(
        pieces=tuple(map(Piece, names, scores, kinds)),
        bos_piece=begin or "<s>",
        eos_piece=end or "</s>",
        add_dummy_prefix=_value(path, values, "add_space_prefix", True),
    )
    check_model(path, model)
    return sentencepiece_tokenizer(model, _settings(path, values, roles, adds_bos=True))


def _byte_level(
    path: Path,
    values: Mapping[str, object],
    ids: Mapping[str, int],
    kinds: Sequence[int],
    roles: Mapping[str, int],
) -> Tokenizer:
    """Make the tokenizer of the vocabulary and the merges."""
    pre = values.get("pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        rule = f"one of {', '.join(PRE_TOKENIZERS)}"
        raise mismatch(path, f"key '{_PREFIX}pre'", rule, described(pre))
    known, names, tokens = PRE_TOKENIZERS[pre], [*ids], dict(ids)
    added, special, unused = list[AddedToken](), dict[str, int](), list[int]()
    for n, kind in enumerate(kinds):
        if kind == NORMAL:
            continue
        name = names[n]
        del tokens[name]
        if kind in (CONTROL, UNKNOWN) or (kind == USER_DEFINED and MARKER.fullmatch(name)):
            special[name] = n
        if name in special or kind == USER_DEFINED:
            added.append(AddedToken(name, n, special=name in special))
        if kind == UNUSED:
            unused.append(n)
    vocabulary = Vocabulary(names, ids, tokens, added, special)
    merges = {"merges": values.get("merges"), "ignore_merges": known.whole}
    encoder, token_bytes = byte_level(path, merges, vocabulary, known.pipeline)
    for n in unused:
        token_bytes[n] = b""
    begin, end = (names[roles[role]] if role in roles else None for role in ("bos", "eos"))
    settings = _settings(path, values, roles, known.adds_bos)
    return Tokenizer(
        token_bytes,
        special,
        with_added_tokens(encoder, vocabulary),
        settings.roles(special, len(names), (begin, end)),
        Decoding(),
    )
