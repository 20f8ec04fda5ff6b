"""`tokenizer_config.json` files of published models, beside small tokenizers that fit
them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, load_tokenizer
from src.tokenizer.template_files import read_chat_templates
from tests.support.published import TOKENIZER_CONFIGS
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked
from tests.tokenizer.conftest import encode
from tests.tokenizer.json_files import added, byte_level_file, write_json

FIRST_ADDED = 258  # after the bytes and two merges
SENTENCEPIECE = (
    "HuengchI/Atom-7B",
    "MonilSompura/MistralAI",
    "XiaoduoAILab/XmodelLM",
    "IEIT-Yuan/Yuan-2.0",
)
PIECES = [*RESERVED, *ranked("th", "▁th", "▁the", "▁", "t", "h", "e")]
TEXTS = ("the  theme, the", "<|im_end|>x [PAD]", "é\n😀 12", "    the</s>", "")


def token_name(value: Any) -> str | None:
    """Return the name of a token, which an object may have."""
    return value["content"] if isinstance(value, dict) else value


def write_tokenizer(directory: Path, name: str) -> dict[str, Any]:
    """Write a configuration file of a name, and a tokenizer that has its tokens; return
    it.
    """
    config = TOKENIZER_CONFIGS[name]
    if name in SENTENCEPIECE:
        (directory / "tokenizer.model").write_bytes(model_message(PIECES))
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        return config
    roles = (
        token_name(config.get(f"{role}_token")) for role in ("pad", "unk", "bos", "eos")
    )
    names = {str(FIRST_ADDED + n): text for n, text in enumerate(filter(None, roles))}
    tokens = config.get("added_tokens_decoder") or {
        number: {"content": text, "special": True} for number, text in names.items()
    }
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    file = byte_level_file(names=())
    file["added_tokens"] = [
        added(int(number), token["content"], **{f: token[f] for f in flags if f in token})
        for number, token in tokens.items()
    ]
    write_json(directory, file, tokenizer_config=config)
    return config


@pytest.mark.parametrize("name", TOKENIZER_CONFIGS)
def test_a_published_file_loads_with_its_roles_and_template(
    tmp_path: Path, name: str
) -> None:
    config = write_tokenizer(tmp_path, name)
    tokenizer = load_tokenizer(tmp_path)
    for role, number in (("bos", "bos_id"), ("eos", "eos_id")):
        token = token_name(config.get(f"{role}_token"))
        if token is not None:
            assert tokenizer.special_tokens[token] == getattr(tokenizer, number)
    if "add_bos_token" in config:
        assert tokenizer.adds_bos is config["add_bos_token"]
    template = config.get("chat_template")
    if isinstance(template, list):
        expected = {entry["name"]: entry["template"] for entry in template}
    else:
        expected = {} if template is None else {"default": template}
    assert read_chat_templates(tmp_path) == expected
    for text in TEXTS:
        ids = encode(tokenizer, text)
        assert not any(map(tokenizer.is_special, ids))
        assert tokenizer.decode(ids) == text


def test_there_are_enough_files() -> None:
    assert len(TOKENIZER_CONFIGS) >= 15


@pytest.mark.oracle
@pytest.mark.parametrize("name", TOKENIZER_CONFIGS)
def test_ids_of_a_published_file_are_those_of_transformers(
    tmp_path: Path, name: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the oracle extra")
    write_tokenizer(tmp_path, name)
    ours = load_tokenizer(tmp_path)
    if name in SENTENCEPIECE:
        module = "transformers.tokenization_utils_sentencepiece"
        base = pytest.importorskip(
            module, reason="needs the oracle extra"
        ).SentencePieceBackend
        files = {"vocab_files_names": {"vocab_file": "tokenizer.model"}}
        slow: Any = type("Slow", (base,), files)
        theirs = slow.from_pretrained(tmp_path)
    else:
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.vocab_size == len(theirs)
    check_roles(ours, theirs)
    for text in ("the  theme, the", "é\n😀 12", "    the", "x\tthe th e"):
        assert encode(ours, text) == theirs.encode(text, add_special_tokens=False)


def check_roles(ours: Tokenizer, theirs: Any) -> None:
    """Compare the special tokens and their roles."""
    special = {theirs.convert_tokens_to_ids(text) for text in theirs.all_special_tokens}
    assert special <= set(ours.special_tokens.values())
    if theirs.bos_token_id is not None:
        assert ours.bos_id == theirs.bos_token_id
    if theirs.eos_token_id is not None:
        assert ours.eos_id == theirs.eos_token_id
