"""A table of the built-in chat formats, which `--chat-format` selects by name.

This module imports nothing from the package, so that `--help` need not load NumPy.
`inference/chat_template.py` builds the templates. `docs/CHAT-FORMATS.md` compares the
formats and lists their sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class ChatFormat:
    """A named chat format.

    Attributes:
        name: The value of `--chat-format`.
        models: The models that use this format.
        files: The files in `inference/templates/` that are concatenated to form the
            template.
        tokens: Special tokens that the tokenizer must have. `bos` and `eos` refer to the
            tokens that begin and end a text, regardless of their names.
        variables: Template variables in addition to the conversation.
        tool_files: The files of a separate template for conversations with tools, if any.
    """

    name: str
    models: str
    files: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    tool_files: tuple[str, ...] = ()


_LLAMA3_TOKENS = ("bos", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_GRANITE_TOKENS = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
_R1_TOKENS = ("bos", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")

_SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_QWEN2 = "You are a helpful assistant."
_MISTRAL = {
    "before_question": "[INST] ",
    "after_question": " [/INST]",
    "before_answer": "",
    "after_answer": "",
}

_ROWS = (
    ChatFormat(
        name="llama3",
        models="Llama 3, 3.1, 3.2, 3.3",
        files=("llama3",),
        tokens=_LLAMA3_TOKENS,
        tool_files=("llama3_tools", "llama3"),
    ),
    ChatFormat(
        "llama2", "Llama 2 Chat, Code Llama Instruct", ("llama2",), ("bos", "eos")
    ),
    ChatFormat("chatml", "SmolLM", ("chatml",), _CHATML_TOKENS),
    ChatFormat(
        name="chatml-bos",
        models="Hermes 3",
        files=("chatml-bos", "chatml"),
        tokens=("bos", *_CHATML_TOKENS),
    ),
    ChatFormat(
        name="smollm2",
        models="SmolLM2",
        files=("chatml",),
        tokens=_CHATML_TOKENS,
        variables={"default_system": _SMOLLM2},
    ),
    ChatFormat(
        name="qwen2",
        models="Qwen2",
        files=("chatml",),
        tokens=_CHATML_TOKENS,
        variables={"default_system": _QWEN2},
    ),
    ChatFormat("qwen2.5", "Qwen2.5", ("qwen_tools", "qwen2.5"), _CHATML_TOKENS),
    ChatFormat("qwen3", "Qwen3", ("qwen_tools", "qwen3"), _CHATML_TOKENS),
    ChatFormat("smollm3", "SmolLM3", ("smollm3",), _CHATML_TOKENS),
    ChatFormat(
        name="granite",
        models="Granite 3.1, 3.2, 3.3",
        files=("granite",),
        tokens=_GRANITE_TOKENS,
        variables={"is_dated": True},
    ),
    ChatFormat("granite-3.0", "Granite 3.0", ("granite",), _GRANITE_TOKENS),
    ChatFormat("olmo2", "OLMo 2 Instruct", ("olmo2",), ("bos", "eos")),
    ChatFormat("zephyr", "TinyLlama Chat, Zephyr", ("zephyr",), ("eos",)),
    ChatFormat(
        name="mistral-v1",
        models="Mistral 7B Instruct v0.1, v0.2",
        files=("mistral",),
        tokens=("bos", "eos"),
        variables=_MISTRAL | {"before_question": " [INST] ", "before_answer": " "},
    ),
    ChatFormat(
        name="mistral-v3",
        models="Mistral 7B Instruct v0.3",
        files=("mistral",),
        tokens=("bos", "eos", "[INST]", "[/INST]"),
        variables=_MISTRAL
        | {
            "after_question": "[/INST]",
            "before_answer": " ",
            "system_is_last": True,
            "answers_are_stripped": True,
        },
    ),
    ChatFormat(
        name="mistral-v0.1-2023",
        models="Mistral 7B Instruct v0.1, first template",
        files=("mistral",),
        tokens=("bos", "eos"),
        variables=_MISTRAL | {"after_answer": " "},
    ),
    ChatFormat(
        name="mistral-v0.2-2023",
        models="Mistral 7B Instruct v0.2, first template",
        files=("mistral",),
        tokens=("bos", "eos"),
        variables=_MISTRAL,
    ),
    ChatFormat(
        name="deepseek-r1",
        models="R1-Distill",
        files=("deepseek-r1",),
        tokens=_R1_TOKENS,
        variables={"opening": "<think>\n"},
    ),
    ChatFormat(
        name="deepseek-r1-2025-01",
        models="R1-Distill, first template",
        files=("deepseek-r1",),
        tokens=_R1_TOKENS,
        variables={"opening": ""},
    ),
)

CHAT_FORMATS: Mapping[str, ChatFormat] = MappingProxyType(
    {row.name: row for row in _ROWS}
)
