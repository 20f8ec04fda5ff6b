"""Convert the tokenizer keys in a GGUF file to Hugging Face tokenizer files.

Byte-level BPE becomes `tokenizer.json`, and a SentencePiece model becomes
`tokenizer.model`. The caller reads the files back and compares the tokenizers.

Source: huggingface/tokenizers, the format of `tokenizer.json`; google/sentencepiece,
src/sentencepiece_model.proto.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..untrusted import is_integer
from .errors import mismatch
from .gguf_keys import PRE_TOKENIZERS
from .json_pipeline import byte_level_component
from .pre_tokenizers import METASPACE
from .sentencepiece_model import BPE, Kind
from .tokenizer import Tokenizer

_UNK = "<unk>"
_DECODER = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def hugging_face_files(
    path: Path, keys: Mapping[str, Any], tokenizer: Tokenizer
) -> dict[str, bytes]:
    """Return the tokenizer files that represent a GGUF file's tokenizer.

    Args:
        path: The GGUF file, for error messages.
        keys: The keys that begin with `tokenizer.`, as for `gguf_tokenizer`.
        tokenizer: The tokenizer built from these keys.

    Returns:
        A mapping from the file name to the file content.

    Raises:
        TokenizerError: `tokenizer.json` cannot represent the split pattern.
    """
    values = {key.removeprefix("tokenizer.ggml."): value for key, value in keys.items()}
    names: list[str] = values["tokens"]
    roles = {
        role: names[values[f"{role}_token_id"]]
        for role in ("bos", "eos")
        if f"{role}_token_id" in values
    }
    config: dict[str, object] = {f"{role}_token": name for role, name in roles.items()}
    config["add_bos_token"] = tokenizer.adds_bos
    config["clean_up_tokenization_spaces"] = False
    files: dict[str, bytes] = {}
    if values["model"] == "llama":
        config |= {"tokenizer_class": "LlamaTokenizer", "legacy": True}
        files["tokenizer.model"] = _sentencepiece_model(values, roles)
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        begin = roles.get("bos") if tokenizer.adds_bos else None
        file = _byte_level_file(path, values, tokenizer, begin)
        files["tokenizer.json"] = json.dumps(file, ensure_ascii=False).encode()
    files["tokenizer_config.json"] = json.dumps(config, indent=2).encode()
    ends: dict[str, object] = {"eos_token_id": sorted(tokenizer.stop_ids)}
    if tokenizer.stop_ids:
        files["generation_config.json"] = json.dumps(ends, indent=2).encode()
    return files


def _byte_level_file(
    path: Path, values: Mapping[str, Any], tokenizer: Tokenizer, begin: str | None
) -> dict[str, object]:
    name = values.get("pre", "default")
    pre = PRE_TOKENIZERS[name]
    component = byte_level_component(pre.pipeline)
    if component is None:
        expected = "a split pattern that tokenizer.json can express"
        raise mismatch(path, "key 'tokenizer.ggml.pre'", expected, name)
    names = values["tokens"]
    kinds = values["token_type"]
    ids = {name: n for n, name in enumerate(names) if kinds[n] != Kind.UNUSED}
    added = [
        {
            "id": number,
            "content": name,
            **_FLAGS,
            "special": name in tokenizer.special_tokens,
        }
        for name, number in ids.items()
        if name in tokenizer.special_tokens or kinds[number] != Kind.NORMAL
    ]
    processor: dict[str, object] = {**_DECODER}
    if begin is not None:
        text = {"Sequence": {"id": "A", "type_id": 0}}
        second = {"Sequence": {"id": "B", "type_id": 1}}
        first = {"SpecialToken": {"id": begin, "type_id": 0}}
        processor = {
            "type": "TemplateProcessing",
            "single": [first, text],
            "pair": [first, text, second],
            "special_tokens": {
                begin: {"id": begin, "ids": [ids[begin]], "tokens": [begin]}
            },
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre.pipeline.composes else None,
        "pre_tokenizer": component,
        "post_processor": processor,
        "decoder": _DECODER,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.whole,
            "vocab": ids,
            "merges": values["merges"],
        },
    }


def _sentencepiece_model(values: Mapping[str, Any], roles: Mapping[str, str]) -> bytes:
    """Return an encoded SentencePiece model without the unused ids at the end."""
    scores = values["scores"]
    kinds = [*values["token_type"]]
    # The files of some models mark the unknown token as a control token.
    unknown_id = values.get("unknown_token_id")
    if Kind.UNKNOWN not in kinds and is_integer(unknown_id, 0, len(kinds) - 1):
        kinds[unknown_id] = Kind.UNKNOWN
    # Added pieces with spaces are matched after spaces have become metaspaces.
    names = [
        name.replace(" ", METASPACE) if kind == Kind.USER_DEFINED else name
        for name, kind in zip(values["tokens"], kinds, strict=True)
    ]
    count = len(names)
    while count and kinds[count - 1] == Kind.UNUSED:
        count -= 1
    pieces = [
        _bytes(1, _bytes(1, name.encode()) + _float(2, score) + _number(3, kind))
        for name, score, kind in zip(
            names[:count], scores[:count], kinds[:count], strict=True
        )
    ]
    # A model without an unknown piece is rejected when the files are read back.
    unknown = next(
        (name for name, kind in zip(names, kinds, strict=True) if kind == Kind.UNKNOWN),
        _UNK,
    )
    trainer = [
        *(_number(3, BPE), _number(4, count), _number(35, 1)),
        *(_bytes(45, unknown.encode()), _bytes(46, roles.get("bos", "<s>").encode())),
        _bytes(47, roles.get("eos", "</s>").encode()),
    ]
    has_prefix = bool(values.get("add_space_prefix", True))
    normalizer = [_bytes(1, b"identity"), _number(3, has_prefix), _number(4, 0)]
    return b"".join(
        [*pieces, _bytes(2, b"".join(trainer)), _bytes(3, b"".join(normalizer))]
    )


def _varint(value: int) -> bytes:
    head = b""
    while value >= 0x80:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
