"""The chat formats: what stands around the messages of a conversation, one builder for each.

`docs/CHAT-FORMATS.md` shows them side by side and says where each comes from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .chat_parts import Edge, Part, Special
from .errors import ChatFormatError
from .message import Message

BEGIN, END = Edge.BEGIN_OF_TEXT, Edge.END_OF_TEXT

# Takes the messages, and whether to open the assistant's next one.
Builder = Callable[[Sequence[Message], bool], list[Part]]


@dataclass(frozen=True)
class ChatFormat:
    """One way to write a conversation.

    Attributes:
        name: What `--chat-format` calls it.
        models: Whose format it is.
        build: Gives the parts of a conversation of at least one message.
        end_names: Special tokens that end an answer, beside those that the tokenizer knows.
    """

    name: str
    models: str
    build: Builder
    end_names: tuple[str, ...] = ()


def _llama3(messages: Sequence[Message], open_answer: bool) -> list[Part]:
    """Build Meta's format: headers, stripped contents.

    Source: meta-llama/llama-models, models/llama3/chat_format.py.
    """
    parts: list[Part] = [BEGIN]
    for message in messages:
        parts += (*_llama3_header(message.role), message.content.strip(), Special("<|eot_id|>"))
    return parts + (_llama3_header("assistant") if open_answer else [])


def _llama3_header(role: str) -> list[Part]:
    return [Special("<|start_header_id|>"), role, Special("<|end_header_id|>"), "\n\n"]


@dataclass(frozen=True)
class _ChatML:
    """ChatML: each message between two special tokens, its role in the first line.

    Attributes:
        begin: The parts before the first message.
        default_system: The system message where a conversation does not start with one, or None.
    """

    begin: tuple[Part, ...] = ()
    default_system: str | None = None

    def __call__(self, messages: Sequence[Message], open_answer: bool) -> list[Part]:
        if self.default_system is not None and messages[0].role != "system":
            messages = [Message("system", self.default_system), *messages]
        start, end = Special("<|im_start|>"), Special("<|im_end|>")
        parts = list(self.begin)
        for message in messages:
            parts += (start, f"{message.role}\n{message.content}", end, "\n")
        return parts + ([start, "assistant\n"] if open_answer else [])


def _zephyr(messages: Sequence[Message], open_answer: bool) -> list[Part]:
    """Build Zephyr's format; without a begin of text, as its published template."""
    parts: list[Part] = []
    for message in messages:
        role = Special(f"<|{message.role}|>", required=False)
        parts += (role, f"\n{message.content}", END, "\n")
    return parts + ([Special("<|assistant|>", required=False), "\n"] if open_answer else [])


def _deepseek_r1(opening: tuple[Part, ...]) -> Builder:
    """Give the builder of R1-Distill's format: earlier answers lose their reasoning.

    Args:
        opening: What follows `<｜Assistant｜>` when an answer is opened.
    """
    user, assistant = Special("<｜User｜>"), Special("<｜Assistant｜>")

    def build(messages: Sequence[Message], open_answer: bool) -> list[Part]:
        system = [message.content for message in messages if message.role == "system"]
        parts: list[Part] = [BEGIN, *system[-1:]]
        for message in messages:
            if message.role == "user":
                parts += (user, message.content)
            elif message.role == "assistant":
                answer = message.content.split("</think>")[-1]
                parts += (assistant, answer, Special("<｜end▁of▁sentence｜>"))
        return parts + ([assistant, *opening] if open_answer else [])

    return build


def _llama2(messages: Sequence[Message], _open_answer: bool) -> list[Part]:
    """Build Llama 2's format: each exchange has its own begin and end of text.

    Source: meta-llama/llama, llama/generation.py, `chat_completion`.
    """
    opening, closing = _inst_tokens(required=False)
    system, turns = _alternating(messages)
    parts: list[Part] = []
    for message in turns:
        if message.role == "assistant":
            parts += (f" {message.content.strip()} ", END)
            continue
        content = message.content
        if message is turns[0] and system is not None:
            content = f"<<SYS>>\n{system}\n<</SYS>>\n\n{content}"
        parts += (BEGIN, opening, f" {content.strip()} ", closing)
    return parts


@dataclass(frozen=True)
class _Mistral:
    """Mistral's formats: they differ in spaces, and in where the system message goes.

    Attributes:
        required: Whether `[INST]` and `[/INST]` have to be special tokens.
        before: Text before `[INST]`.
        question_end: Text between a question and `[/INST]`.
        answer: Text before an answer.
        after: Text after the end of an answer.
        in_last: The system message goes into the last message if that is a question, and is left
            out otherwise; else into the first question.
        strip: Whether answers are stripped.
    """

    required: bool = False
    before: str = ""
    question_end: str = " "
    answer: str = ""
    after: str = ""
    in_last: bool = False
    strip: bool = False

    def __call__(self, messages: Sequence[Message], _open_answer: bool) -> list[Part]:
        opening, closing = _inst_tokens(self.required)
        system, turns = _alternating(messages)
        place = len(turns) - 1 if self.in_last else 0
        parts: list[Part] = [BEGIN]
        for index, message in enumerate(turns):
            content = message.content
            if message.role == "assistant":
                content = content.strip() if self.strip else content
                parts += (f"{self.answer}{content}", END, self.after)
                continue
            if index == place and system is not None:
                content = f"{system}\n\n{content}"
            parts += (self.before, opening, f" {content}{self.question_end}", closing)
        return parts


def _inst_tokens(required: bool) -> tuple[Special, Special]:
    return Special("[INST]", required), Special("[/INST]", required)


def _alternating(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    """Split a conversation into its system message and the turns after it.

    Raises:
        ChatFormatError: The turns are not user, assistant, user, ...
    """
    has_system = messages[0].role == "system"
    turns = messages[1:] if has_system else messages
    for index, message in enumerate(turns):
        expected = ("user", "assistant")[index % 2]
        if message.role != expected:
            raise ChatFormatError(
                "[chat] after an optional system message, roles must alternate from user on: "
                f"message {index + has_system + 1} is of {message.role}, expected {expected}"
            )
    return (messages[0].content if has_system else None), turns


_SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_THINK: tuple[Part, ...] = (Special("<think>", required=False), "\n")
_EOS, _IM_END, _SENTENCE_END = ("</s>",), ("<|im_end|>",), ("<｜end▁of▁sentence｜>",)
_LLAMA3_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")

_ROWS = (
    ChatFormat("llama3", "Llama 3, 3.1, 3.2, 3.3", _llama3, _LLAMA3_ENDS),
    ChatFormat("llama2", "Llama 2 Chat, Code Llama Instruct", _llama2, _EOS),
    ChatFormat("chatml", "SmolLM", _ChatML(), _IM_END),
    ChatFormat("chatml-bos", "Hermes 3", _ChatML(begin=(BEGIN,)), _IM_END),
    ChatFormat("smollm2", "SmolLM2", _ChatML(default_system=_SMOLLM2_SYSTEM), _IM_END),
    ChatFormat("zephyr", "TinyLlama Chat, Zephyr", _zephyr, _EOS),
    ChatFormat(
        "mistral-v1", "Mistral 7B Instruct v0.1, v0.2", _Mistral(before=" ", answer=" "), _EOS
    ),
    ChatFormat(
        "mistral-v3",
        "Mistral 7B Instruct v0.3",
        _Mistral(required=True, question_end="", answer=" ", in_last=True, strip=True),
        _EOS,
    ),
    ChatFormat(
        "mistral-v0.1-2023",
        "Mistral 7B Instruct v0.1, first template",
        _Mistral(after=" "),
        _EOS,
    ),
    ChatFormat("mistral-v0.2-2023", "Mistral 7B Instruct v0.2, first template", _Mistral(), _EOS),
    ChatFormat("deepseek-r1", "R1-Distill-Llama", _deepseek_r1(_THINK), _SENTENCE_END),
    ChatFormat(
        "deepseek-r1-2025-01",
        "R1-Distill-Llama, first template",
        _deepseek_r1(()),
        _SENTENCE_END,
    ),
)

CHAT_FORMATS: Mapping[str, ChatFormat] = MappingProxyType({row.name: row for row in _ROWS})
