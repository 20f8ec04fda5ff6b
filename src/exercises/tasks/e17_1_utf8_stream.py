"""Exercise 17.1: text from bytes that arrive in pieces."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from ...inference import InferenceEngine
from ...model import Model, load_model
from ...tokenizer import StreamDecoder, Tokenizer
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt


def _texts(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[bytes], list[str]]:
    """Return the bytes of each token, and the text that the engine prints after it."""
    decoder = StreamDecoder(tokenizer)
    return [tokenizer.token_bytes(i) for i in ids], [decoder.push(i) for i in ids]


def _cases(model: Model) -> list[Case]:
    assert model.tokenizer is not None
    cases = []
    for text in ("cafe", "déjà vu", "ok 🙂!", "日本"):
        pieces, texts = _texts(model.tokenizer, model.tokenizer.encode(text))
        cases.append(Case("stream", (pieces,), texts, repr(text)))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    tokenizer = load_model().tokenizer
    assert tokenizer is not None
    engine = InferenceEngine.chat

    def chat(self: InferenceEngine, messages: Any, **settings: Any) -> Iterator[Any]:
        """Yield the texts that the reader's function returns."""
        ids = [step.token_id for step in engine(self, messages, **settings)]
        words = [i for i in ids if i not in self.model.stop_ids]
        pieces, texts = _texts(tokenizer, words)
        yield from (SimpleNamespace(text=text) for text in call((pieces,), texts))

    return replaced(InferenceEngine, "chat", chat)


EXERCISE = WriteIt(
    number="17.1",
    title="Print characters, not bytes",
    minutes=20,
    difficulty="medium",
    function="stream",
    task="""\
A character has one to four bytes in UTF-8, and a token may end in the middle of it. Write the text
that can be printed after each token: all characters that are complete by now and have not been
printed yet.

- `pieces`: a list of `bytes`, one per token.

Return a list of texts, one per token, which may be empty. It must be equal to the engine's. The
first byte of a character says how many bytes it has: below 0x80 one, from 0xC0 two, from 0xE0
three, from 0xF0 four.
""",
    stub='''\
def stream(pieces):
    """Return the text that each piece completes."""
    raise NotImplementedError
''',
    solution='''\
def complete_length(data):
    """Return the number of bytes of the complete characters at the beginning."""
    at = 0
    while at < len(data):
        first = data[at]
        length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        if at + length > len(data):
            break
        at += length
    return at


def stream(pieces):
    """Return the text that each piece completes."""
    texts = []
    waiting = b""
    for piece in pieces:
        waiting += piece
        end = complete_length(waiting)
        texts.append(waiting[:end].decode())
        waiting = waiting[end:]
    return texts
''',
    mistakes=(
        Mistake(
            "Each piece is decoded alone, and its incomplete bytes become replacement "
            "characters. Keep them until the character is complete.",
            (
                ("waiting += piece", "waiting = piece"),
                ("waiting[:end].decode()", "waiting.decode(errors='replace')"),
            ),
        ),
        Mistake(
            "Incomplete bytes are dropped. Keep them until the character is complete.",
            (("waiting[end:]", "b''"),),
        ),
        Mistake(
            "The text is printed again with each token: remove what has been printed.",
            (("        waiting = waiting[end:]\n", ""),),
        ),
        Mistake(
            "Off by one byte: a character that ends with the piece is complete.",
            (("at + length > len(data)", "at + length >= len(data)"),),
        ),
        Mistake(
            "All text appears at the end. Print each character with the token that completes it.",
            (
                (
                    "    return texts",
                    "    return [''] * (len(texts) - 1) + [''.join(texts)]",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
