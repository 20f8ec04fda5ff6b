"""Small tokenizer.json files, made by hand: the valid ones that malformed twins are made
from.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.tokenizer.pre_tokenizers import LLAMA_3

Json = dict[str, Any]

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SPLIT = {
    "type": "Split",
    "pattern": {"Regex": LLAMA_3.pattern.pattern},
    "behavior": "Isolated",
    "invert": False,
}
METASPACE_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte, written out again so that the test shares nothing."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    plain += range(ord("®"), ord("ÿ") + 1)
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def sequence(*parts: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def metaspace(scheme: str, *, split: bool) -> Json:
    return {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": scheme,
        "split": split,
    }


def template(*names: str) -> Json:
    """Put special tokens around a text, which is written as "A"."""
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if name == "A"
        else {"SpecialToken": {"id": name, "type_id": 0}}
        for name in names
    ]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [],
        "special_tokens": {},
    }


def added(token_id: int, content: str, *, special: bool = False, **flags: bool) -> Json:
    names = ("single_word", "lstrip", "rstrip", "normalized")
    rest = dict.fromkeys(names, False) | flags
    return {"id": token_id, "content": content, **rest, "special": special}


def _file(model: Json, **parts: Any) -> Json:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer"))
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "ignore_merges": False,
    } | model
    model = {"continuing_subword_prefix": None, "end_of_word_suffix": None} | model
    start = {"version": "1.0", "added_tokens": [], **empty, "post_processor": None}
    return start | parts | {"model": model}


def byte_level_file(
    merges: Sequence[Sequence[str]] = (("t", "h"), ("th", "e")),
    *,
    names: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    **model: Any,
) -> Json:
    """Every byte, what the merges make, and special tokens: as SmolLM2's file."""
    tokens = [*byte_letters(), *dict.fromkeys(left + right for left, right in merges)]
    vocab = {token: number for number, token in enumerate(tokens)}
    specials = [
        added(len(tokens) + n, name, special=True) for n, name in enumerate(names)
    ]
    digits = {"type": "Digits", "individual_digits": True}
    return _file(
        {"vocab": vocab, "merges": [list(m) for m in merges], "byte_fallback": False}
        | model,
        added_tokens=specials,
        pre_tokenizer=sequence(digits, BYTE_LEVEL | {"use_regex": True}),
        decoder=BYTE_LEVEL,
    )


def metaspace_file(
    merges: Sequence[Sequence[str]] = (("t", "h"), ("▁", "th"), ("▁th", "e")),
    characters: str = "▁the",
    **model: Any,
) -> Json:
    """Control tokens, every byte, characters and what the merges make:
    as Llama 2's file.
    """
    names = ["<unk>", "<s>", "</s>"]
    tokens = [*names, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    tokens += dict.fromkeys(left + right for left, right in merges)
    vocab = {token: number for number, token in enumerate(tokens)}
    settings = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return _file(
        {"vocab": vocab, "merges": [list(m) for m in merges]} | settings | model,
        added_tokens=[
            added(number, name, special=True) for number, name in enumerate(names)
        ],
        normalizer=PREPEND,
        decoder=METASPACE_DECODER,
        post_processor=template("<s>", "A"),
    )


def write_json(directory: Path, file: Any, **beside: Any) -> Path:
    """Write `tokenizer.json`, and files beside it by their names without `.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in {"tokenizer": file, **beside}.items():
        if isinstance(content, bytes):
            (directory / f"{name}.json").write_bytes(content)
        else:
            (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def changed(file: Mapping[str, Any], **parts: Any) -> Json:
    """Give a copy of a file with parts replaced; `model` changes keys of the model."""
    model = {**file["model"], **parts.pop("model", {})}
    return {**file, **parts, "model": model}
