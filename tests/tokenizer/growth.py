"""Count work in instructions, not in seconds; and long pieces to count it on."""

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from src.tokenizer import Tokenizer


def steps_of(run: Callable[[], object]) -> int:
    """Count the bytecode instructions that a call executes in the tokenizer's own modules."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "tokenizer" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def random_letters(size: int) -> str:
    return "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=size))


LONG_PIECES = {
    "one letter": lambda size: "a" * size,
    "spaces": lambda size: " " * size,
    "emoji": lambda size: "😀" * (size // 4),
    "newlines": lambda size: "\n" * size,
    "random letters": random_letters,
    "Cyrillic": lambda size: "".join(random.Random(8).choices("абвгдежзийклмнопрстуфхцч", k=size)),
    "ideographs": lambda size: "中文" * (size // 6),
}


def steps_to_encode(tokenizer: Tokenizer, text: str) -> int:
    """Count for one text, with empty caches."""
    encoder: Any = tokenizer._encoder
    encoder = getattr(encoder, "_encoder", encoder)
    for pairs in (encoder._merges.ranks, encoder._merges.joined):
        if type(pairs).__name__ == "_Spelled":
            pairs.clear()
    for cache in (encoder._encode_cached, encoder._merge_cached):
        cache.cache_clear()
    return steps_of(lambda: tokenizer.encode(text, bos=False, eos=False))
