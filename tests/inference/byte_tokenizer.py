"""A tokenizer whose ids can be read: one per byte, and special ones after them."""

import re
from collections.abc import Iterable, Sequence


class ByteTokenizer:
    """Does what the chat formats ask of a tokenizer; notes the texts that it encodes.

    Args:
        bos: name of the token that begins a text.
        eos: name of the token that ends one.
        others: the other special tokens.
        words: tokens that are plain words, so that a text that holds one becomes it.
    """

    def __init__(
        self, bos: str, eos: str, *others: str, words: Sequence[str] = ()
    ) -> None:
        self.names = (bos, eos, *others, *words)
        ids = {name: 256 + index for index, name in enumerate(self.names)}
        self.special_tokens = {
            name: ids[name] for name in self.names if name not in words
        }
        self.spaces_taken: dict[str, tuple[bool, bool]] = {}
        self.bos_id = 256
        self.eos_id = 257
        self.stop_ids = frozenset([self.eos_id])
        self.texts: list[str] = []
        self.firsts: list[bool] = []
        self._words = {name: ids[name] for name in words}

    def encode(self, text: str, *, bos: bool, eos: bool, first: bool = True) -> list[int]:
        assert not bos
        assert not eos
        self.texts.append(text)
        self.firsts.append(first)
        if not self._words:
            return list(text.encode())
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self._words))})", text):
            ids += [self._words[part]] if part in self._words else part.encode()
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return (
            bytes([token_id]) if token_id < 256 else self.names[token_id - 256].encode()
        )


def spelled(tokenizer: ByteTokenizer, ids: Iterable[int], brackets: bool = True) -> str:
    """Writes ids as text; special ones in curly brackets, if asked."""
    form = "{{{}}}" if brackets else "{}"
    names = [form.format(name).encode() for name in tokenizer.names]
    return b"".join(bytes([i]) if i < 256 else names[i - 256] for i in ids).decode()


EDGES = ("<|begin_of_text|>", "<|end_of_text|>")
LLAMA3 = (*EDGES, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
LLAMA2 = ("<s>", "</s>")
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
GRANITE = ("<|end_of_text|>", "<|endoftext|>", "<|start_of_role|>", "<|end_of_role|>")
HERMES = ("<|begin_of_text|>", "<|im_end|>", "<|im_start|>")
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]")
R1_WORDS = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
R1 = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", *R1_WORDS, *LLAMA3)

# The special tokens of the models that a format belongs to, begin and end of text first.
TOKENS: dict[str, Sequence[str]] = {
    "llama3": LLAMA3,
    "chatml-bos": HERMES,
    "mistral-v3": MISTRAL,
    **dict.fromkeys(
        ("chatml", "smollm2", "qwen2", "qwen2.5", "qwen3", "smollm3"), CHATML
    ),
    **dict.fromkeys(("granite", "granite-3.0"), GRANITE),
    "olmo2": ("<|endoftext|>", "<|im_end|>"),
    **dict.fromkeys(("llama2", "zephyr", "mistral-v1"), LLAMA2),
    **dict.fromkeys(("mistral-v0.1-2023", "mistral-v0.2-2023"), LLAMA2),
    **dict.fromkeys(("deepseek-r1", "deepseek-r1-2025-01"), R1),
}
