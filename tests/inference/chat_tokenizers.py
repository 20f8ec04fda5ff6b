"""Tokenizer directories for chats: the real files of Llama 2 and 3, and what is made from
them.

What is made has the names, kinds and spaces of the tokens of other models, on a
vocabulary that is at hand: their own files are not.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.shared_data import shared_data

Json = dict[str, Any]


def _write(directory: Path, tokenizer: Json, bos: str, eos: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": bos, "eos_token": eos}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def _read(name: str) -> Json:
    content: Json = json.loads(shared_data(name).read_text(encoding="utf-8"))
    return content


def _added(names: Iterable[str], first_id: int) -> list[Json]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    numbered = enumerate(names, start=first_id)
    return [{"id": n, "content": name, **flags, "special": True} for n, name in numbered]


def _renamed(names: Mapping[str, str], words: Iterable[str] = ()) -> Json:
    """Llama 3's file with other names; `words` are then no special tokens."""
    content = _read("llama3/tokenizer.json")
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
        token["special"] = token["content"] not in words
    return content


def llama3(directory: Path) -> Path:
    return _write(
        directory, _read("llama3/tokenizer.json"), "<|begin_of_text|>", "<|end_of_text|>"
    )


def llama2(directory: Path) -> Path:
    """Llama 2's file: a space goes before each text between special tokens."""
    return _write(directory, _read("llama2/tokenizer.json"), "<s>", "</s>")


def _spaced_at_the_start() -> Json:
    content = _read("llama2/tokenizer.json")
    scheme = {"replacement": "▁", "prepend_scheme": "first", "split": False}
    return content | {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", **scheme},
    }


def llama2_first(directory: Path) -> Path:
    """The way of newer files, as that of Mistral 7B v0.3: a space before the first text
    only.
    """
    return _write(directory, _spaced_at_the_start(), "<s>", "</s>")


def mistral_v3(directory: Path) -> Path:
    content = _spaced_at_the_start()
    content["added_tokens"] += _added(("[INST]", "[/INST]"), 32000)
    return _write(directory, content, "<s>", "</s>")


def zephyr_tokens(directory: Path) -> Path:
    """A vocabulary in which the roles of Zephyr are special tokens."""
    content = _read("llama2/tokenizer.json")
    content["added_tokens"] += _added(("<|system|>", "<|user|>", "<|assistant|>"), 32000)
    return _write(directory, content, "<s>", "</s>")


def r1(directory: Path) -> Path:
    """R1-Distill-Llama's names, of which some are plain words."""
    words = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
    edges = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(3, 7)]
    old = ("<|begin_of_text|>", "<|end_of_text|>", *reserved)
    content = _renamed(dict(zip(old, (*edges, *words), strict=True)), words)
    return _write(directory, content, *edges)


def hermes(directory: Path) -> Path:
    names = {"<|reserved_special_token_0|>": "<|im_start|>", "<|eot_id|>": "<|im_end|>"}
    return _write(directory, _renamed(names), "<|begin_of_text|>", "<|im_end|>")


def qwen(directory: Path) -> Path:
    """The tokens of ChatML; the marks of thoughts, calls and results are plain words."""
    calls = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    words = (*calls, "<think>", "</think>")
    names = {"<|reserved_special_token_0|>": "<|im_start|>", "<|eot_id|>": "<|im_end|>"}
    names["<|begin_of_text|>"] = "<|endoftext|>"
    for number, word in enumerate(words, start=2):
        names[f"<|reserved_special_token_{number}|>"] = word
    return _write(directory, _renamed(names, words), "<|endoftext|>", "<|im_end|>")


def granite(directory: Path) -> Path:
    """The tokens of Granite's roles."""
    names = {
        "<|reserved_special_token_0|>": "<|start_of_role|>",
        "<|reserved_special_token_1|>": "<|end_of_role|>",
    }
    return _write(directory, _renamed(names), "<|end_of_text|>", "<|end_of_text|>")


def smollm2(directory: Path) -> Path:
    """A vocabulary trained here, cut as SmolLM2 cuts: digits one by one,
    then as GPT-2.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    page = Path(__file__).resolve().parents[2] / "docs" / "DEVELOPING.md"
    tokenizer.train_from_iterator([page.read_text(encoding="utf-8")], trainer)
    return _write(directory, json.loads(tokenizer.to_str()), "<|im_start|>", "<|im_end|>")


# By format: the tokenizers that its models come with.
TOKENIZERS: dict[str, tuple[Callable[[Path], Path], ...]] = {
    "llama3": (llama3,),
    "llama2": (llama2, llama2_first),
    "chatml": (smollm2,),
    "chatml-bos": (hermes,),
    "smollm2": (smollm2,),
    "zephyr": (llama2, llama2_first, zephyr_tokens),
    "mistral-v1": (llama2, llama2_first),
    "mistral-v3": (mistral_v3,),
    "mistral-v0.1-2023": (llama2, llama2_first),
    "mistral-v0.2-2023": (llama2, mistral_v3),
    "deepseek-r1": (r1,),
    "deepseek-r1-2025-01": (r1,),
}
