"""Tokenizer files of other models' shapes, made by the `tokenizers` trainers from real
text.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.tokenizer.json_files import Json, added, write_json
from tests.tokenizer.strings import source_text

_OTHER_TEXT = "naïve café 東京は日本 привет мир 😀🚀 ١٢٣ don't 12345   x\t\n\n y "
_PARTS = [source_text()[start : start + 2000] for start in range(0, 400_000, 2000)]
_CORPUS = _PARTS + [_OTHER_TEXT] * 20
_SIZE = 3000

Tokens = Sequence[Mapping[str, Any]]

# Tokens that are found in text, with every flag that matters, and one that is not.
ADDED: Tokens = [
    {"content": "<think>"},
    {"content": "</think>", "lstrip": True},
    {"content": "two words", "rstrip": True},
    {"content": "klass", "normalized": True},
    {"content": " deff", "normalized": True, "lstrip": True, "rstrip": True},
    {"content": "<tool>", "special": True},
    {"content": "tool"},
    {"content": "  "},
]


# As the files of Qwen2 to Qwen3 and of SmolLM3, which has Llama 3's, spell them.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SMOLLM3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

# As that of Mistral NeMo spells it.
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# As that of gpt-oss spells it.
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(
    pattern: str, *, composes: bool = False, whole: bool = False, tokens: Tokens = ()
) -> Json:
    """A pattern, perhaps after NFC, byte level, special tokens first."""
    return with_added(_byte_level(pattern, composes, whole), tokens)


def smollm2(*, tokens: Tokens = ()) -> Json:
    """Single digits, GPT-2's pattern, byte level, special tokens first."""
    return with_added(_byte_level(None, False, False), tokens)


@cache
def _byte_level(pattern: str | None, composes: bool, whole: bool) -> Json:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, trainers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    first = (
        Split(Regex(pattern), "isolated") if pattern else Digits(individual_digits=True)
    )
    level = ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = Sequence([first, level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return json.loads(tokenizer.to_str())


def mistral(
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    *,
    tokens: Tokens = (),
    strips: bool = True,
) -> Json:
    """Marked words, byte fallback, a begin token: trained on words, then given another
    shape.
    """
    file = _marked_words()
    model = file["model"] | {"fuse_unk": True}
    shape = {"model": model, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    if not strips:
        decoders = file["decoder"]["decoders"][:-1]
        shape["decoder"] = file["decoder"] | {"decoders": decoders}
    return with_added(file | shape, tokens)


@cache
def _marked_words() -> Json:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    names = ["<unk>", "<s>", "</s>"]
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE,
        special_tokens=names + bytes_of,
        limit_alphabet=150,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
    )
    file = json.loads(tokenizer.to_str())
    return file | {"added_tokens": file["added_tokens"][: len(names)]}


def with_added(file: Json, tokens: Tokens) -> Json:
    """Add tokens, those that the vocabulary does not have yet after its last id."""
    vocab = file["model"]["vocab"]
    more = list(file["added_tokens"])
    free = max(vocab.values()) + 1
    for token in tokens:
        known = vocab.get(token["content"])
        more.append(added(free if known is None else known, **{"special": False} | token))
        free += known is None
    return file | {"added_tokens": more}


def write_both(directory: Path, file: Json) -> Any:
    """Write the file and give what `tokenizers` makes of it, with our rule for special
    tokens.
    """
    from tokenizers import Tokenizer

    return oracle(write_json(directory, file) / "tokenizer.json", Tokenizer)


def oracle(path: Path, tokenizer_class: Any) -> Any:
    """Read a file with `tokenizers`; text never becomes a special id."""
    tokenizer = tokenizer_class.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer
