"""Replacements of parts of the network, and outcomes, that several exercises use."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from .. import ml
from .chat import ChatRun, replaced
from .exercise import Call
from .tensors import floats, tensor_of


def rotated_by(call: Call) -> AbstractContextManager[None]:
    """Replace the rotary embedding of queries and keys until the end of the block.

    Args:
        call: Called with (x, table), arrays float32 [T, heads, h] and complex64
            [T, h/2], and the result of the engine. It returns the rotated x.
    """
    engine = ml.rotary_embedding

    def rotary_embedding(x: ml.Tensor, rotations: ml.Tensor, _pairs: str) -> ml.Tensor:
        wide = floats(x)
        expected = floats(engine(tensor_of(wide, ml.float32), rotations))
        return tensor_of(call((wide, rotations.numpy().copy()), expected), x.dtype)

    return replaced(ml, "rotary_embedding", rotary_embedding)


def outcome_by(text: str) -> Callable[[ChatRun, ChatRun], str]:
    """Return a function that returns the letter of what happened to a chat.

    The letter is "a" if the answer is the same, "b" if another answer contains the text,
    and "c" otherwise.
    """

    def outcome(plain: ChatRun, broken: ChatRun) -> str:
        if plain.answer == broken.answer:
            return "a"
        return "b" if text in broken.answer else "c"

    return outcome
