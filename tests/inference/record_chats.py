"""Record the ids of 200 000 generated chats from `encode_chat`, as digests of shards.

    python -m tests.inference.record_chats                      write tests/golden/chats.json
    python -m tests.inference.record_chats --check              compare with that file
    python -m tests.inference.record_chats --show FORMAT SHARD  print a shard as JSON lines

A digest does not contain the chats, so `--check` names the shards that differ. To find
the chats that differ, print the shard with `--show` in both versions of the project and
compare the lines.

The chats depend only on the seed, the format and the number of the shard. Of the project,
the program uses the names of the formats, messages, tokenizers and `encode_chat`, so that
it also runs after the implementation of the formats is replaced.
"""

import argparse
import datetime
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from src.inference import CHAT_FORMATS, ChatFormatError, Message, ToolCall, encode_chat
from src.tokenizer import load_tokenizer
from tests.inference.byte_tokenizer import TOKENS, ByteTokenizer
from tests.inference.chat_tokenizers import (
    granite,
    hermes,
    llama2,
    llama2_first,
    llama3,
    mistral_v3,
    qwen,
    r1,
    zephyr_tokens,
)
from tests.support.shared_data import SHARED_DATA

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "chats.json"
SEED = 20250704
TODAY = (2025, 7, 4)
CHATS = 200_000
CHATS_OF_A_SHARD = 250
DIGEST_DIGITS = 16

FORMATS_WITH_TOOLS = ("llama3", "qwen2.5", "qwen3")

# Six shards after each other have these themes, and one tokenizer.
THEMES = ("turns", "turns", "turns", "thoughts", "thoughts", "disorder")
THEMES_WITH_TOOLS = ("turns", "calls", "turns", "thoughts", "calls", "disorder")
# The other formats reject tools, which this shard records. If one of them gets tools,
# only this shard of it changes.
SHARD_OF_REJECTED_CALLS = 41
TOKENIZERS_OF_SHARDS = ("bytes", "real", "words", "real", "bytes", "real", "bytes")

# Special tokens of some models that are plain words of the vocabulary of others.
WORDS = (
    "[INST]",
    "[/INST]",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
)

REAL_TOKENIZERS: dict[str, Sequence[Callable[[Path], Path]]] = {
    "llama3": (llama3,),
    "llama2": (llama2, llama2_first),
    "chatml": (hermes,),
    "chatml-bos": (hermes,),
    "smollm2": (hermes,),
    "qwen2": (qwen,),
    "qwen2.5": (qwen, hermes),
    "qwen3": (qwen, hermes),
    "smollm3": (hermes, qwen),
    "granite": (granite,),
    "granite-3.0": (granite,),
    "olmo2": (llama3,),
    "zephyr": (llama2, llama2_first, zephyr_tokens),
    "mistral-v1": (llama2, llama2_first, mistral_v3),
    "mistral-v3": (mistral_v3,),
    "mistral-v0.1-2023": (llama2, llama2_first),
    "mistral-v0.2-2023": (llama2, mistral_v3),
    "deepseek-r1": (r1,),
    "deepseek-r1-2025-01": (r1,),
}

SPACES = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n",
    "\r\n",
    "\t",
    "\x0b\x0c",
    "\x85",
    "\u00a0",
    "\u3000",
)
SEPARATORS = ("", "", " ", "\n", "\n\n", ", ")
SENTENCES = (
    "the capital of France is Paris what would you like to know about it today I do not "
    "remember 2+2 is 4, isn't it? Yes. No! Please explain in one word: how large 1234567 "
    "3.14 is 'quoted' \"twice\" & <b>bold</b> a/b\\c 100% $5 #1 @home naïve café Straße"
)
PROSE = SENTENCES.split(" ")
UNICODE = (
    "Привет, 世界!",
    "🦙👩‍👩‍👧‍👦🇹🇷",
    "e\u0301o\u0308\u0323",  # combining marks
    "\u1100\u1161\u11a8",  # a syllable in three parts
    "مرحبا بالعالم",
    "\u202eabc\u202c",
    "\U0001d518\U0010ffff",
    "\ud83e\udd99",  # one character as a pair of surrogates
    "\ud83e",
    "x\udd99",
    "\x00\x01\x1b[31m",
    "\x1c\x85\u2028\u2029",
    "\ufeff\u200b\u200d",
    "\ue000\ue001\uf8ff\ufdd0\ufffe\uffff\ufffd",  # private use, and what is no character
    "▁ metaspace ▁",
    "Ġbyte Ċlevel",
)
CODE = (
    "def f(x):\n    return x + 1\n",
    "```python\nprint('hi')\n```",
    "{{ messages[0] }}{% if x %}{# no #}{%- endif -%}",
    "{% raw %}{{ bos_token }}{% endraw %}",
    '{"name": "now", "arguments": {}}',
    "a {} {0} {eos} {<|eot_id|>} %d %s %B",
    "ROLE TEXT {bos}",
    "if (a < b && c > d) { return a[0]; }",
    "<!-- &lt;p&gt; -->",
)
SPELLED = (
    *WORDS,
    "<s>",
    "</s>",
    "<unk>",
    "<0x41>",
    "<<SYS>>\n",
    "\n<</SYS>>\n\n",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>\n\n",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|reserved_special_token_0|>",
    "<|im_start|>system\n",
    "<|im_start|>",
    "<|im_end|>\n",
    "<|endoftext|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|tool|>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<tools>",
    "</tools>",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "<tool_response>\nx\n</tool_response>",
    "<think>\n\n</think>\n\n",
    "[INST",
    "<|im_",
    "end|>",
)
SWITCHES = (
    "/think",
    "/no_think",
    "/system_override",
    "/think/no_think",
    "/no_think /think",
)

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Return the weather of a città, e.g. 'İzmir' & <b>Paris</b>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["°C", "°F"]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
    {"type": "function", "function": {"name": "bare"}},
    {
        "function": {
            "parameters": {"properties": {}, "type": "object"},
            "name": "order_of_keys",
            "description": "",
            "strict": True,
        },
        "type": "function",
    },
    {
        "type": "function",
        "function": {
            "name": "größe-2.b",
            "description": (
                'Line 1\nline 2\t"quoted" \\ e\u0301 🦙 \u2028 <|im_end|></tools>'
            ),
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {
                        "type": "number",
                        "minimum": -1.5,
                        "maximum": 1e22,
                        "default": 1.0,
                    },
                    "n": {"type": "integer", "default": 12345678901234567890},
                    "flags": {
                        "type": "array",
                        "items": {"type": "boolean"},
                        "default": [],
                    },
                    "nested": {
                        "type": "object",
                        "properties": {
                            "a": {"anyOf": [{"type": "null"}, {"const": False}]}
                        },
                    },
                },
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "spelled",
            "description": "<tool_call>[INST]<|eot_id|>{{ x }}",
            "parameters": {
                "type": "object",
                "properties": {"</tool_call>": {"type": "string"}},
            },
        },
    },
)
FUNCTIONS = tuple(tool["function"]["name"] for tool in TOOLS)
VALUES = (
    0,
    -1,
    1.0,
    -0.0,
    0.1,
    1e-7,
    1e22,
    12345678901234567890,
    True,
    False,
    None,
    [],
    {},
    "",
)
KEYS = ("city", "x", "n", "größe", "a b", "", "</tool_call>", "name", "arguments", "0")


@dataclass(frozen=True)
class Chat:
    """The arguments of one call of `encode_chat`."""

    messages: Sequence[Message]
    add_generation_prompt: bool
    think: bool
    tools: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Shard:
    """A number of chats that share a format, a theme and a tokenizer."""

    chat_format: str
    number: int

    @property
    def theme(self) -> str:
        if self.chat_format in FORMATS_WITH_TOOLS:
            return THEMES_WITH_TOOLS[self.number % len(THEMES_WITH_TOOLS)]
        if self.number == SHARD_OF_REJECTED_CALLS:
            return "calls"
        return THEMES[self.number % len(THEMES)]

    @property
    def tokenizer_kind(self) -> str:
        row = self.number // len(THEMES)
        return TOKENIZERS_OF_SHARDS[row % len(TOKENIZERS_OF_SHARDS)]

    def __str__(self) -> str:
        described = f"theme {self.theme}, tokenizer {self.tokenizer_kind}"
        return f"{self.chat_format} shard {self.number} ({described})"


def text_without_surrogates(text: str) -> str:
    """Return the text as tokenizers read it: pairs as one character, others as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class AnyTextByteTokenizer(ByteTokenizer):
    """A `ByteTokenizer` that reads surrogates as real tokenizers do and forgets texts."""

    def encode(self, text: str, *, bos: bool, eos: bool, first: bool = True) -> list[int]:
        ids = super().encode(text_without_surrogates(text), bos=bos, eos=eos, first=first)
        self.texts.clear()
        self.firsts.clear()
        return ids


class Writer:
    """Write the chats of a shard."""

    def __init__(self, shard: Shard) -> None:
        self.random = Random(f"{SEED} {shard.chat_format} {shard.number}")
        self.theme = shard.theme
        # Llama 3 has one call in a message and rejects more.
        self.share_of_several_calls = 0.03 if shard.chat_format == "llama3" else 0.3

    def chat(self) -> Chat:
        """Return the next chat."""
        tools: Sequence[Mapping[str, Any]] = ()
        if self.theme == "calls":
            messages = self.messages_with_calls()
            if self.random.random() < 0.8:
                tools = self.random.sample(TOOLS, self.random.randint(1, 4))
        elif self.theme == "disorder":
            messages = self.messages_in_disorder()
        else:
            messages = self.messages_in_turns()
        opens_answer = self.random.random() < 0.5
        thinks = self.random.random() < 0.5
        return Chat(messages, opens_answer, thinks, tools)

    def messages_in_turns(self) -> list[Message]:
        """Return 1 to 9 turns of user and assistant, sometimes after a system message."""
        messages = self.system_or_nothing()
        for turn in range(self.random.randint(1, 9)):
            if turn % 2 == 0:
                messages.append(Message("user", self.question()))
            else:
                messages.append(Message("assistant", self.answer()))
        return messages

    def messages_in_disorder(self) -> list[Message]:
        """Return 1 to 9 messages of any role except tool, in any order."""
        roles = self.random.choices(
            ("system", "user", "assistant"), k=self.random.randint(1, 9)
        )
        return [Message(role, self.answer()) for role in roles]

    def messages_with_calls(self) -> list[Message]:
        """Return questions, each with calls, their results and an answer."""
        messages = self.system_or_nothing()
        if self.random.random() < 0.05:
            messages.append(Message("tool", self.text()))
        for _ in range(self.random.randint(0 if messages else 1, 3)):
            if self.random.random() < 0.95:
                messages.append(Message("user", self.question()))
            for _ in range(self.random.randint(0, 2)):
                calls = self.calls()
                messages.append(Message("assistant", self.words_before_calls(), calls))
                result_count = len(calls)
                if self.random.random() < 0.1:
                    result_count = self.random.randint(0, 3)
                messages += [Message("tool", self.result()) for _ in range(result_count)]
            if self.random.random() < 0.6:
                messages.append(Message("assistant", self.answer()))
        return messages or [Message("user", self.question())]

    def system_or_nothing(self) -> list[Message]:
        """Return a system message half of the time."""
        if self.random.random() < 0.5:
            return []
        content = self.text()
        if self.theme == "thoughts" and self.random.random() < 0.6:
            content = self.with_switch(content)
        return [Message("system", content)]

    def question(self) -> str:
        """Return what a user writes."""
        content = self.text()
        if self.theme == "thoughts" and self.random.random() < 0.3:
            content = self.with_switch(content)
        return content

    def answer(self) -> str:
        """Return what an assistant writes, with a thought in some themes."""
        content = self.text()
        share_of_thoughts = {"turns": 0.05, "thoughts": 0.8}.get(self.theme, 0.3)
        if self.random.random() < share_of_thoughts:
            content = self.thought() + content
        return content

    def thought(self) -> str:
        """Return a thought, which may lack a mark or a newline."""
        thought = self.text()
        return self.random.choice(
            (
                f"<think>\n{thought}\n</think>\n\n",
                f"<think>\n{thought}\n</think>\n\n",
                f"<think>\n{thought}\n</think>\n\n",
                f"<think>{thought}</think>",
                f"{thought}\n</think>\n\n",
                f"<think>\n{thought}",
                f" <think>\n\n{thought}\n\n</think> \n",
                f"<think>\n{thought}\n</think>\n\n<think>\nAgain.\n</think>\n",
                f"<think>\n<think>{thought}</think>\n</think>\n\n",
                f"So. <think>{thought}</think>\n",
                "<think>\n\n</think>\n\n",
                "</think>",
            )
        )

    def with_switch(self, text: str) -> str:
        """Return the text with a word that turns thoughts on or off."""
        switch = self.random.choice(SWITCHES)
        space = self.random.choice(SEPARATORS)
        return self.random.choice(
            (
                switch,
                f"{switch}{space}{text}",
                f"{text}{space}{switch}",
                f"{text}{switch}{text}",
            )
        )

    def words_before_calls(self) -> str:
        """Return the content of a message with calls, which mostly is empty."""
        kind = self.random.random()
        if kind < 0.4:
            return ""
        return self.text() if kind < 0.7 else self.answer()

    def calls(self) -> tuple[ToolCall, ...]:
        """Return mostly one call, or up to four."""
        count = 1
        if self.random.random() < self.share_of_several_calls:
            count = self.random.randint(2, 4)
        return tuple(
            ToolCall(self.random.choice(FUNCTIONS), self.arguments())
            for _ in range(count)
        )

    def arguments(self) -> str:
        """Return a JSON object as text, in one of several styles."""
        keys = self.random.sample(KEYS, self.random.randint(0, 3))
        values = {key: self.value() for key in keys}
        style = self.random.choice(
            (
                {},
                {"ensure_ascii": False},
                {"separators": (",", ":")},
                {"indent": 2, "ensure_ascii": False},
            )
        )
        return json.dumps(values, **style)

    def value(self) -> object:
        """Return a value of JSON."""
        kind = self.random.random()
        if kind < 0.4:
            return text_without_surrogates(self.text())
        if kind < 0.8:
            return self.random.choice(VALUES)
        if kind < 0.9:
            return [self.random.choice(VALUES), text_without_surrogates(self.text())]
        return {self.random.choice(KEYS): [self.random.choice(VALUES), {"b": None}]}

    def result(self) -> str:
        """Return the result of a call: JSON or text."""
        return self.arguments() if self.random.random() < 0.5 else self.text()

    def text(self) -> str:
        """Return a content of any kind, sometimes with white space at its ends."""
        kind = self.random.random()
        if kind < 0.08:
            return ""
        if kind < 0.14:
            return self.random.choice(SPACES) + self.random.choice(SPACES)
        if kind < 0.65:
            text = self.piece()
        elif kind < 0.997:
            text = self.piece()
            for _ in range(self.random.randint(1, 3)):
                text += self.random.choice(SEPARATORS) + self.piece()
        else:
            text = 50 * (self.piece() + self.random.choice(SEPARATORS))
        if self.random.random() < 0.3:
            return self.random.choice(SPACES) + text + self.random.choice(SPACES)
        return text

    def piece(self) -> str:
        """Return prose, text of many scripts, code, or a spelled special token."""
        kind = self.random.random()
        if kind < 0.45:
            return " ".join(self.random.choices(PROSE, k=self.random.randint(1, 9)))
        if kind < 0.6:
            return self.random.choice(UNICODE)
        if kind < 0.72:
            return self.random.choice(CODE)
        return self.random.choice(SPELLED)


def shards() -> list[Shard]:
    """Return the shards of all chats; the first formats get one more for the
    remainder.
    """
    per_format, more = divmod(CHATS // CHATS_OF_A_SHARD, len(CHAT_FORMATS))
    return [
        Shard(name, number)
        for index, name in enumerate(CHAT_FORMATS)
        for number in range(per_format + (index < more))
    ]


def chats_of(shard: Shard) -> Iterator[Chat]:
    """Yield the chats of a shard."""
    writer = Writer(shard)
    for _ in range(CHATS_OF_A_SHARD):
        yield writer.chat()


@cache
def byte_tokenizer(chat_format: str, kind: str) -> ByteTokenizer:
    """Return a tokenizer of bytes; in the kind `words`, some special tokens are words."""
    bos, eos, *others = TOKENS[chat_format]
    if kind == "bytes":
        return AnyTextByteTokenizer(bos, eos, *others)
    others = [token for token in others if token not in WORDS]
    return AnyTextByteTokenizer(bos, eos, *others, words=WORDS)


@cache
def real_tokenizer(write: Callable[[Path], Path]) -> Any:
    """Return a tokenizer of `chat_tokenizers`, which is written and loaded once."""
    with tempfile.TemporaryDirectory() as directory:
        return load_tokenizer(write(Path(directory) / write.__name__))


def tokenizer_of(shard: Shard) -> Any:
    """Return the tokenizer of a shard."""
    if shard.tokenizer_kind != "real":
        return byte_tokenizer(shard.chat_format, shard.tokenizer_kind)
    writers = REAL_TOKENIZERS[shard.chat_format]
    rows_of_real_ones = shard.number // len(THEMES) // 2
    return real_tokenizer(writers[rows_of_real_ones % len(writers)])


class FrozenDate(datetime.date):
    """A date whose today is always the same."""

    @classmethod
    def today(cls) -> "FrozenDate":
        return cls(*TODAY)


class FrozenDatetime(datetime.datetime):
    """A time whose now is always noon of the same day."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "FrozenDatetime":
        return cls(*TODAY, 12, tzinfo=tz)

    @classmethod
    def today(cls) -> "FrozenDatetime":
        return cls.now()


@contextmanager
def frozen_date() -> Iterator[None]:
    """Freeze the date that formats write into prompts.

    This is the one place to adapt if the code no longer calls `datetime.date.today` or
    `datetime.datetime.now` through the module `datetime`.
    """
    with mock.patch.multiple(datetime, date=FrozenDate, datetime=FrozenDatetime):
        yield


def results_of(shard: Shard) -> list[list[int] | str]:
    """Return the ids of each chat of a shard, or `error` where it cannot be expressed."""
    tokenizer = tokenizer_of(shard)
    results: list[list[int] | str] = []
    with frozen_date():
        for chat in chats_of(shard):
            try:
                ids = encode_chat(
                    tokenizer,
                    chat.messages,
                    chat.add_generation_prompt,
                    chat_format=shard.chat_format,
                    think=chat.think,
                    tools=chat.tools,
                )
            except ChatFormatError:
                results.append("error")
            else:
                results.append([int(id_) for id_ in ids])
    return results


def digest_of(results: list[list[int] | str]) -> str:
    """Return a short digest of the ids of a shard."""
    written = "\n".join(json.dumps(result) for result in results)
    return hashlib.sha256(written.encode()).hexdigest()[:DIGEST_DIGITS]


def can_run(shard: Shard) -> bool:
    """Tell whether the tokenizer of a shard is available; real ones may be absent."""
    return shard.tokenizer_kind != "real" or SHARED_DATA.exists()


def record() -> None:
    """Write the digests of all shards."""
    if not SHARED_DATA.exists():
        sys.exit(
            f"{SHARED_DATA}: expected the tokenizers of Llama 2 and 3, got no directory"
        )
    formats: dict[str, dict[str, Any]] = {}
    for shard in shards():
        results = results_of(shard)
        row = formats.setdefault(
            shard.chat_format, {"chats": 0, "errors": 0, "digests": []}
        )
        row["chats"] += len(results)
        row["errors"] += results.count("error")
        row["digests"].append(digest_of(results))
    content = {
        "script": "tests/inference/record_chats.py",
        "seed": SEED,
        "date": datetime.date(*TODAY).isoformat(),
        "chats": sum(row["chats"] for row in formats.values()),
        "chats_of_a_shard": CHATS_OF_A_SHARD,
        "formats": formats,
    }
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")


def recorded_digests() -> dict[Shard, str]:
    """Return the digests of the golden file."""
    content = json.loads(GOLDEN.read_text(encoding="ascii"))
    return {
        Shard(name, number): digest
        for name, row in content["formats"].items()
        for number, digest in enumerate(row["digests"])
    }


def differing(digests: Mapping[Shard, str]) -> Iterator[Shard]:
    """Yield the shards with another digest now, without those that cannot run."""
    for shard, digest in digests.items():
        if can_run(shard) and digest_of(results_of(shard)) != digest:
            yield shard


def check() -> int:
    """Print the shards that differ from the golden file, and return the exit status."""
    digests = recorded_digests()
    skipped = sum(not can_run(shard) for shard in digests)
    if skipped:
        print(f"{skipped} shards are skipped: their tokenizers are not in {SHARED_DATA}")
    count = 0
    for shard in differing(digests):
        print(
            f"{shard} differs: compare --show {shard.chat_format} {shard.number}",
            flush=True,
        )
        count += 1
    print(f"{count} of {len(digests) - skipped} shards differ")
    return 1 if count else 0


def show(shard: Shard) -> None:
    """Print each chat of a shard and its ids as a line of JSON."""
    for number, (chat, result) in enumerate(
        zip(chats_of(shard), results_of(shard), strict=True)
    ):
        messages = [
            {
                "role": message.role,
                "content": message.content,
                "tool_calls": [
                    [call.name, call.arguments] for call in message.tool_calls
                ],
            }
            for message in chat.messages
        ]
        line = {
            "chat": number,
            "add_generation_prompt": chat.add_generation_prompt,
            "think": chat.think,
            "tools": chat.tools,
            "messages": messages,
            "ids": result,
        }
        print(json.dumps(line))


def main() -> int:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="compare with the golden file"
    )
    parser.add_argument(
        "--show", nargs=2, metavar=("FORMAT", "SHARD"), help="print a shard"
    )
    options = parser.parse_args()
    if options.show:
        name, number = options.show
        show(Shard(name, int(number)))
        return 0
    if options.check:
        return check()
    record()
    return 0


if __name__ == "__main__":
    sys.exit(main())
