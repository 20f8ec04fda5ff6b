"""Convert the tokenizer files in a model directory to GGUF keys.

A tokenizer is built from the keys again, and compared with the original tokenizer.

Source: llama.cpp `convert_hf_to_gguf.py` (`_set_vocab_gpt2`,
`_create_vocab_sentencepiece`); transformers `convert_slow_tokenizer.py`
(`TikTokenConverter`) for deriving merges from ranks.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..untrusted import label_of, shown
from . import load_tokenizer, tokenizer_file
from .added_tokens import AddedToken
from .config_files import (
    is_sentencepiece_file,
    read_added_tokens,
    read_added_tokens_of_config,
    read_json,
)
from .encoders import ByteLevelPipeline
from .errors import TokenizerError, mismatch
from .gguf_keys import PRE_TOKENIZERS, gguf_tokenizer
from .json_pipeline import read_pipeline
from .sentencepiece_model import Kind, read_sentencepiece_model
from .tiktoken_file import read_tiktoken_file
from .tokenizer import Tokenizer
from .tokenizer_json import letters_of_bytes

_ADDED_SCORE = -1000.0
_SPACE_WARNING = """\
GGUF files have no key for the way this tokenizer prepends a space: with the GGUF file, \
each text gets one, also if it begins with a space or follows a special token"""


def gguf_tokenizer_keys(directory: Path, rows: int) -> dict[str, Any]:
    """Return the GGUF keys that describe the tokenizer in a directory.

    Args:
        directory: The model directory.
        rows: The model's vocabulary size. Ids beyond the last token become unused tokens,
            and special tokens beyond the last row are dropped.

    Raises:
        TokenizerError: A file is damaged, or GGUF cannot represent this tokenizer.
    """
    path = tokenizer_file(directory)
    tokenizer = load_tokenizer(directory)
    keys = _of_json(path) if path.name.endswith(".json") else _of_model(path, tokenizer)
    # GGUF cannot represent SentencePiece-style merges, only the original model.
    if keys is None:
        path = directory / "tokenizer.model"
        if not path.is_file() or not is_sentencepiece_file(path):
            raise mismatch(
                directory, "tokenizer", "tokenizer.model next to tokenizer.json", "none"
            )
        keys = _of_model(path, tokenizer)
    if tokenizer.vocab_size > rows:
        try:
            tokenizer = tokenizer.cut_to(rows)
        except TokenizerError as error:
            raise TokenizerError(f"{label_of(path)}: {error}") from None
        for name in {"tokens", "token_type", "scores"} & keys.keys():
            keys[name] = keys[name][:rows]
    names = keys["tokens"]
    kinds = keys["token_type"]
    for number, name in enumerate(names):
        if name in tokenizer.special_tokens and kinds[number] in (
            Kind.NORMAL,
            Kind.USER_DEFINED,
        ):
            kinds[number] = Kind.CONTROL
    unused = range(len(names), rows)
    names += [f"[PAD{number}]" for number in unused]
    kinds += [Kind.UNUSED] * len(unused)
    if "scores" in keys:
        keys["scores"] += [_ADDED_SCORE] * len(unused)
    keys |= {f"{role}_token_id": number for role, number in _roles(tokenizer).items()}
    keys["add_bos_token"] = tokenizer.adds_bos
    result = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    written = gguf_tokenizer(path, result)
    assert written is not None
    _check(path, tokenizer.padded_to(rows), written)
    return result


def _of_json(path: Path) -> dict[str, Any] | None:
    """Return the keys for a `tokenizer.json`, or None if it is not byte-level BPE."""
    file: dict[str, Any] = read_json(path)
    pipeline = read_pipeline(path, file)
    model = file["model"]
    if not isinstance(pipeline, ByteLevelPipeline):
        return None
    expected = (pipeline, bool(model.get("ignore_merges", False)))
    pre = next(
        (n for n, p in PRE_TOKENIZERS.items() if (p.pipeline, p.whole) == expected), None
    )
    if pre is None:
        raise mismatch(
            path, "split pattern", f"one of {', '.join(PRE_TOKENIZERS)}", "another one"
        )
    added = read_added_tokens(path, file.get("added_tokens"), ())
    ids = model["vocab"] | {token.text: token.token_id for token in added}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return _byte_level(pre, sorted(ids, key=ids.__getitem__), added, merges)


def _byte_level(
    pre: str, names: list[str], added: Sequence[AddedToken], merges: list[str]
) -> dict[str, Any]:
    """Return the keys that describe a byte-level BPE tokenizer."""
    added_texts = {token.text for token in added}
    kinds = [Kind.USER_DEFINED if name in added_texts else Kind.NORMAL for name in names]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": names,
        "token_type": kinds,
        "merges": merges,
    }


def _of_model(path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the keys for a `tokenizer.model` with ranks or a SentencePiece model."""
    if not is_sentencepiece_file(path):
        return _of_ranks(read_tiktoken_file(path), tokenizer)
    model = read_sentencepiece_model(path)
    added = read_added_tokens_of_config(path.parent, model.ids, model.special)
    new = [token for token in added if token.text not in model.ids]
    return {
        "model": "llama",
        "pre": "default",
        "tokens": [
            *(piece.text for piece in model.pieces),
            *(token.text for token in new),
        ],
        "scores": [*(piece.score for piece in model.pieces), *[_ADDED_SCORE] * len(new)],
        "token_type": [
            *(piece.kind for piece in model.pieces),
            *[Kind.USER_DEFINED] * len(new),
        ],
        "unknown_token_id": next(
            n for n, p in enumerate(model.pieces) if p.kind == Kind.UNKNOWN
        ),
        "add_space_prefix": model.add_dummy_prefix,
        "remove_extra_whitespaces": False,
    }


def _of_ranks(ranks: Mapping[bytes, int], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the keys for a vocabulary of ranks.

    Every way to split a token into two tokens becomes a merge. Merges are in the order of
    the resulting tokens.
    """
    letters = letters_of_bytes()
    merges = list[str]()
    names = ["".join(map(letters.__getitem__, token)) for token in ranks]
    for token in ranks:
        cuts = [
            (ranks.get(token[:cut]), ranks.get(token[cut:]))
            for cut in range(1, len(token))
        ]
        pairs = [(a, b) for a, b in cuts if a is not None and b is not None]
        merges += [f"{names[left]} {names[right]}" for left, right in sorted(pairs)]
    return _byte_level("llama-bpe", [*names, *tokenizer.special_tokens], (), merges)


def _roles(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the `bos`, `eos`, `eot` and `eom` ids.

    `eot` and `eom` are the first two other ids that end an answer.
    """
    roles: dict[str, int] = {}
    for role in ("bos", "eos"):
        with suppress(TokenizerError):
            roles[role] = tokenizer.bos_id if role == "bos" else tokenizer.eos_id
    last = tokenizer.special_tokens.get("<|eom_id|>")
    ends = sorted(tokenizer.stop_ids - {roles.get("eos")}, key=lambda n: (n == last, n))
    return roles | dict(zip(("eot", "eom"), ends, strict=False))


def _check(path: Path, source: Tokenizer, written: Tokenizer) -> None:
    """Compare the tokenizer built from the keys with the original tokenizer.

    Warn if the two treat leading spaces differently, and raise a TokenizerError for any
    other difference.
    """
    difference = first_difference(source, written)
    if difference is not None:
        raise mismatch(
            path,
            f"keys of a GGUF file: {difference}",
            "the value of the files",
            "another",
        )
    spaces = [(" a", True), ("a", False), (" a", False)]
    for text, first in spaces:
        ids = source.encode(text, bos=False, eos=False, first=first)
        if ids != written.encode(text, bos=False, eos=False, first=first):
            warnings.warn(f"{label_of(path)}: {_SPACE_WARNING}", stacklevel=2)
            break


def first_difference(source: Tokenizer, written: Tokenizer) -> str | None:
    """Return the name of the first property in which two tokenizers differ, or None.

    `kept_space_ids` is not compared. No text encodes to the byte token for a space, and
    SentencePiece and `tokenizers` decode it differently.
    """
    if source.special_tokens != written.special_tokens:
        return "special tokens"
    if source.stop_ids != written.stop_ids:
        return "ids that end an answer"
    if source.adds_bos != written.adds_bos:
        return "begin of text"
    if replace(source.decoding, kept_space_ids=frozenset()) != replace(
        written.decoding, kept_space_ids=frozenset()
    ):
        return "decoding"
    token = source.first_difference(written)
    if token is not None:
        return f"text of token {token}"
    probes = [
        "Hello  world 123\n\n it's",
        "",
        *(f"a {n}b" for n in source.special_tokens),
    ]
    for text in probes[:300]:
        ids = source.encode(text, bos=False, eos=False)
        if ids != written.encode(text, bos=False, eos=False):
            return f"ids of {shown(text)}"
        if source.decode(ids) != written.decode(ids):
            return f"text of the ids of {shown(text)}"
    return None
