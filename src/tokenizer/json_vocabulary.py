"""The tokens of a `tokenizer.json`: its vocabulary, its added tokens and its merges."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path

import numpy as np

from .added_tokens import AddedToken
from .bpe import MOST_IDS, PAIR_SHIFT, Merges, listed_merges
from .errors import mismatch, shown
from .files import MAX_TOKENS, described, kind_of

MAX_TOKEN_CHARS = 4096

_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")

# What marks a turn or a begin is no text, whatever its flag says.
_MARKER = re.compile("<[|｜].*[|｜]>", re.DOTALL)


@dataclass(frozen=True)
class Vocabulary:
    """All tokens of a file.

    Attributes:
        names: the token of each id, as the file spells it.
        ids: the id of each token.
        tokens: the ids of those that text can become by merging.
        added: the added tokens.
        special: the ids of those that text never becomes.
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
        path: the file, for errors.
        vocab: the `vocab` of its model.
        added_tokens: its `added_tokens`.
        special_names: tokens that are special besides those that say it themselves.

    Raises:
        TokenizerError: naming what is wrong.
    """
    if not isinstance(vocab, dict) or not vocab:
        raise mismatch(path, "vocab", "an object with tokens", kind_of(vocab))
    if len(vocab) > MAX_TOKENS:
        raise mismatch(path, "vocab", f"at most {MAX_TOKENS} tokens", len(vocab))
    if set(map(type, vocab.values())) != {int}:
        wrong = next(name for name, number in vocab.items() if type(number) is not int)
        what = f"vocab: '{shown(wrong)}'"
        raise mismatch(path, what, "a whole number", kind_of(vocab[wrong]))
    added = read_added_tokens(path, added_tokens, special_names)
    ids: dict[str, int] = dict(vocab)
    for token in added:
        if ids.setdefault(token.text, token.token_id) != token.token_id:
            what = f"added_tokens: id of '{shown(token.text)}'"
            raise mismatch(path, what, f"{ids[token.text]} as in vocab", token.token_id)
    check_names(path, ids)
    names = _by_id(path, ids)
    special = {name: ids[name] for name in special_names if name in ids}
    special |= {token.text: token.token_id for token in added if token.special}
    return Vocabulary(
        names=names,
        ids=ids,
        tokens=_without(vocab, special),
        added=added,
        special=dict(sorted(special.items(), key=lambda item: item[1])),
    )


def _without(vocab: dict[str, int], names: Mapping[str, int]) -> dict[str, int]:
    if names.keys().isdisjoint(vocab):
        return vocab
    return {name: number for name, number in vocab.items() if name not in names}


def read_added_tokens(
    path: Path, value: object, special_names: Collection[str]
) -> list[AddedToken]:
    """Check a list of added tokens: each an object with an id, a content of its own and flags.

    Args:
        path: the file, for errors.
        value: what the file says; null is an empty list.
        special_names: tokens that are special besides those that say it themselves.

    Raises:
        TokenizerError: naming what is wrong.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise mismatch(path, "added_tokens", "a list", kind_of(value))
    found: dict[str, AddedToken] = {}
    for number, entry in enumerate(value):
        what = f"added_tokens[{number}]"
        if not isinstance(entry, dict):
            raise mismatch(path, what, "an object", kind_of(entry))
        token_id, text = entry.get("id"), entry.get("content")
        flags = {name: entry.get(name, False) for name in _FLAGS}
        if type(token_id) is not int:
            raise mismatch(path, f"{what}: id", "a whole number", kind_of(token_id))
        if not isinstance(text, str) or not text:
            raise mismatch(path, f"{what}: content", "a text of one character or more", "none")
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise mismatch(path, f"{what}: {name}", "true or false", kind_of(flag))
        if text in found:
            raise mismatch(path, f"{what}: content", "a new text", f"'{shown(text)}' again")
        special = flags["special"] or text in special_names or bool(_MARKER.fullmatch(text))
        if flags["single_word"] and not special:
            raise mismatch(path, f"{what}: single_word", "false", "true")
        found[text] = AddedToken(
            text, token_id, special, flags["normalized"], flags["lstrip"], flags["rstrip"]
        )
    return list(found.values())


def check_names(path: Path, names: Mapping[str, int]) -> None:
    """Check that tokens are text without surrogates, not empty and not too long.

    Args:
        path: the file, for errors.
        names: the tokens, at least one.

    Raises:
        TokenizerError: naming what is wrong.
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
            both = f"'{shown(names[number])}' and '{shown(name)}'"
            raise mismatch(path, f"id {number}", "one token", both)
        names[number] = name
    return names


def read_merges(
    path: Path, value: object, vocabulary: Vocabulary, unmerged: Sequence[int] = ()
) -> Merges:
    """Check a list of merges, each written as `"a b"` or as `["a", "b"]`.

    Merges that would make a special token are left out: text never becomes one.

    Args:
        path: the file, for errors.
        value: the `merges` of its model.
        vocabulary: its tokens.
        unmerged: ids that are not put together from characters, so that no merge may name them.

    Raises:
        TokenizerError: naming the merge that is wrong.
    """
    if not isinstance(value, list):
        raise mismatch(path, "merges", "a list", kind_of(value))
    written = value
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
        got = " and ".join(f"'{shown(name)}'" for name in pairs[barred[0]])
        raise mismatch(path, "merges", "no merge of bytes or of the unknown token", got)
    keys = (left_ids << PAIR_SHIFT | right_ids).tolist()
    merges = listed_merges(keys, joined)
    if len(merges.ranks) != len(keys):
        # The last of equal pairs gives the rank, so the first one is not where it says.
        twice = next(n for n, key in enumerate(keys) if merges.ranks[key] != n)
        got = " and ".join(f"'{shown(name)}'" for name in pairs[twice])
        raise mismatch(path, "merges", "each once", f"{got} twice")
    return merges


def _is_mergeable(path: Path, number: int, pair: Sequence[object], vocabulary: Vocabulary) -> bool:
    """Tell whether a merge is one of text; refuse it where it names what is no token."""
    left, right = pair
    if not isinstance(left, str) or not isinstance(right, str):
        raise mismatch(path, f"merges[{number}]", "two texts", described(pair))
    for name in (left, right, left + right):
        if name not in vocabulary.tokens and name not in vocabulary.special:
            expected = "tokens of the vocabulary"
            raise mismatch(path, f"merges[{number}]", expected, described(name))
    return all(name in vocabulary.tokens for name in (left, right, left + right))
