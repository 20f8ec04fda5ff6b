"""The tokens of a `tokenizer.json`: its vocabulary, its added tokens and its merges."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path

import numpy as np

from .added_tokens import AddedToken
from .bounded_files import MAX_TOKENS, described, expect_kind
from .bpe import MOST_IDS, PAIR_SHIFT, Merges, listed_merges
from .errors import mismatch, shown

MAX_TOKEN_CHARS = 4096

# In the order of the attributes of `AddedToken`.
_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")

# A marker of a turn or of a beginning is not text, whatever its flag says.
_MARKER = re.compile("<[|｜].*[|｜]>", re.DOTALL)


@dataclass(frozen=True)
class Vocabulary:
    """All tokens of a file.

    Attributes:
        names: The token of each id, as the file spells it.
        ids: The id of each token.
        tokens: The ids of those that text can become by merging.
        added: The added tokens.
        special: The ids of those that text never becomes.
    """

    names: Sequence[str]
    ids: Mapping[str, int]
    tokens: Mapping[str, int]
    added: Sequence[AddedToken]
    special: Mapping[str, int]


def read_vocabulary(
    path: Path, vocab: object, added_tokens: object, special_names: Collection[str]
) -> Vocabulary:
    """Check the tokens of a file: ids 0, 1, 2... without a gap, each once, each with one name.

    Args:
        path: The file, for errors.
        vocab: The `vocab` of its model.
        added_tokens: Its `added_tokens`.
        special_names: Tokens that are special besides those that say it themselves.

    Raises:
        TokenizerError: Something is wrong; it is named.
    """
    vocab = expect_kind(path, "vocab", vocab, dict)
    if not 0 < len(vocab) <= MAX_TOKENS:
        raise mismatch(path, "vocab", f"1 to {MAX_TOKENS} tokens", len(vocab))
    if set(map(type, vocab.values())) != {int}:
        wrong = next(name for name, number in vocab.items() if type(number) is not int)
        expect_kind(path, f"vocab: {shown(wrong)}", vocab[wrong], int)
    ids: dict[str, int] = dict(vocab)
    added = read_added_tokens(path, added_tokens, special_names)
    for token in added:
        if ids.setdefault(token.text, token.token_id) != token.token_id:
            what = f"added_tokens: id of {shown(token.text)}"
            raise mismatch(path, what, f"{ids[token.text]} as in vocab", token.token_id)
    check_names(path, ids)
    names = _by_id(path, ids)
    special = {name: ids[name] for name in special_names if name in ids}
    special |= {token.text: token.token_id for token in added if token.special}
    return Vocabulary(
        names=names,
        ids=ids,
        tokens={name: number for name, number in vocab.items() if name not in special},
        added=added,
        special=dict(sorted(special.items(), key=lambda item: item[1])),
    )


def read_added_tokens(
    path: Path, value: object, special_names: Collection[str]
) -> list[AddedToken]:
    """Check a list of added tokens: each an object with an id, a new content and flags.

    Args:
        path: The file, for errors.
        value: What the file says; null is an empty list.
        special_names: Tokens that are special besides those that say it themselves.

    Raises:
        TokenizerError: Something is wrong; it is named.
    """
    if value is None:
        return []
    found: dict[str, AddedToken] = {}
    for number, entry in enumerate(expect_kind(path, "added_tokens", value, list)):
        what = f"added_tokens[{number}]"
        entry = expect_kind(path, what, entry, dict)
        token_id = expect_kind(path, f"{what}: id", entry.get("id"), int)
        text = expect_kind(path, f"{what}: content", entry.get("content"), str)
        flags = {
            name: expect_kind(path, f"{what}: {name}", entry.get(name, False), bool)
            for name in _FLAGS
        }
        if text in found:
            raise mismatch(path, f"{what}: content", "a new text", f"{shown(text)} again")
        flags["special"] |= text in special_names or bool(_MARKER.fullmatch(text))
        if flags.pop("single_word") and not flags["special"]:
            raise mismatch(path, f"{what}: single_word", "false", "true")
        found[text] = AddedToken(text, token_id, *flags.values())
    return list(found.values())


def check_names(path: Path, names: Mapping[str, int]) -> None:
    """Check that tokens are text without surrogates, not empty and not too long.

    Args:
        path: The file, for errors.
        names: The tokens, at least one.

    Raises:
        TokenizerError: Something is wrong; it is named.
    """
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise mismatch(path, "vocab", "text without surrogates", "a lone surrogate") from None
    longest = max(names, key=len)
    if len(longest) > MAX_TOKEN_CHARS or "" in names:
        expected, got = f"1 to {MAX_TOKEN_CHARS} characters in each token", len(longest)
        raise mismatch(path, "vocab", expected, 0 if "" in names else got)


def _by_id(path: Path, ids: Mapping[str, int]) -> list[str]:
    """Order the tokens by their ids."""
    lowest, highest = min(ids.values()), max(ids.values())
    if lowest < 0 or highest >= MOST_IDS:
        wrong = lowest if lowest < 0 else highest
        raise mismatch(path, "ids", f"0 <= id < {MOST_IDS}", wrong)
    if highest + 1 != len(ids):
        problem = "a gap" if highest >= len(ids) else "one twice"
        what = f"{len(ids)} tokens up to id {highest}: {problem}"
        raise mismatch(path, "ids", "0, 1, 2... each once", what)
    names = [""] * len(ids)
    for name, number in ids.items():
        if names[number]:
            both = f"{shown(names[number])} and {shown(name)}"
            raise mismatch(path, f"id {number}", "one token", both)
        names[number] = name
    return names


def read_merges(
    path: Path, value: object, vocabulary: Vocabulary, unmerged: Sequence[int] = ()
) -> Merges:
    """Check a list of merges, each written as `"a b"` or as `["a", "b"]`.

    Merges that would make a special token are left out: text never becomes one.

    Args:
        path: The file, for errors.
        value: The `merges` of its model.
        vocabulary: Its tokens.
        unmerged: Ids of bytes and of the unknown token, which no merge may name.

    Raises:
        TokenizerError: A merge is wrong; it is named.
    """
    value = written = expect_kind(path, "merges", value, list)
    if value and isinstance(value[0], str):
        written = [merge.split(" ") if isinstance(merge, str) else merge for merge in value]
    if set(map(type, written)) - {list} or set(map(len, written)) - {2}:
        pairs_of_two = (type(pair) is list and len(pair) == 2 for pair in written)
        wrong = list(pairs_of_two).index(False)
        raise mismatch(path, f"merges[{wrong}]", "two tokens", described(value[wrong]))
    try:
        return _listed(path, written, vocabulary, unmerged)
    except (KeyError, TypeError):
        kept = [n for n in range(len(written)) if _is_mergeable(path, n, written[n], vocabulary)]
        return _listed(path, [written[n] for n in kept], vocabulary, unmerged)


def _listed(
    path: Path, pairs: list[list[str]], vocabulary: Vocabulary, unmerged: Sequence[int]
) -> Merges:
    """Look the tokens of merges up, all of which must be there."""
    lefts, rights = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    find = vocabulary.tokens.__getitem__
    left_ids = np.fromiter(map(find, lefts), np.int64, len(pairs))
    right_ids = np.fromiter(map(find, rights), np.int64, len(pairs))
    joined = list(map(find, map(add, lefts, rights)))
    barred = np.flatnonzero(np.isin(left_ids, unmerged) | np.isin(right_ids, unmerged))
    if unmerged and len(barred):
        got = " and ".join(shown(name) for name in pairs[barred[0]])
        raise mismatch(path, "merges", "no merge of bytes or of the unknown token", got)
    keys = (left_ids << PAIR_SHIFT | right_ids).tolist()
    merges = listed_merges(keys, joined)
    if len(merges.ranks) != len(keys):
        # The last of equal pairs gives the rank, so the first one is not where it says.
        twice = next(n for n, key in enumerate(keys) if merges.ranks[key] != n)
        got = " and ".join(shown(name) for name in pairs[twice])
        raise mismatch(path, "merges", "each once", f"{got} twice")
    return merges


def _is_mergeable(path: Path, number: int, pair: Sequence[object], vocabulary: Vocabulary) -> bool:
    """Tell whether a merge is one of text; refuse it where it names what is not a token."""
    left, right = pair
    if not isinstance(left, str) or not isinstance(right, str):
        raise mismatch(path, f"merges[{number}]", "two texts", described(pair))
    for name in (left, right, left + right):
        if name not in vocabulary.tokens and name not in vocabulary.special:
            expected = "tokens of the vocabulary"
            raise mismatch(path, f"merges[{number}]", expected, described(name))
    return all(name in vocabulary.tokens for name in (left, right, left + right))
