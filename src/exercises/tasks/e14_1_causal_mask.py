"""Exercise 14.1: the causal mask."""

from contextlib import AbstractContextManager

from ... import ml
from ...model import Model, llama
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats


def _mask(T: int, start: int) -> ml.Tensor:
    mask = llama.causal_mask(T, start)
    assert mask is not None
    return mask


def _cases(model: Model) -> list[Case]:
    del model
    return [
        Case("causal_mask", (4, 0), floats(_mask(4, 0)), "a prompt of 4 tokens"),
        Case("causal_mask", (3, 5), floats(_mask(3, 5)), "5 positions are cached"),
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = llama.causal_mask

    def causal_mask(T: int, start_pos: int) -> ml.Tensor | None:
        expected = engine(T, start_pos)
        if expected is None:
            return None
        return ml.tensor(call((T, start_pos), floats(expected)), "float32")

    return replaced(llama, "causal_mask", causal_mask)


EXERCISE = WriteIt(
    number="14.1",
    title="Hide the future",
    minutes=10,
    difficulty="easy",
    function="causal_mask",
    task="""\
Write the mask that stage 13 adds to the scores: 0 where a token may look, and minus infinity
where it may not. A token may look at itself and at all earlier positions.

- `T`: the number of new tokens, which are the rows.
- `start`: the number of cached positions. Row `t` belongs to position `start + t`.

The columns are all S = start + T positions. Return float32 `[T, S]`, equal to the engine's.
""",
    stub='''\
import numpy as np


def causal_mask(T, start):
    """Return 0 for visible positions and -inf for later ones: float32 [T, start + T]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def causal_mask(T, start):
    """Return 0 for visible positions and -inf for later ones: float32 [T, start + T]."""
    rows = start + np.arange(T)[:, None]  # the position of each row
    columns = np.arange(start + T)[None, :]
    return np.where(columns <= rows, 0.0, -np.inf).astype(np.float32)
''',
    mistakes=(
        Mistake(
            "Off by one position: a token may look at itself.",
            (("columns <= rows", "columns < rows"),),
        ),
        Mistake(
            "Off by one position: each token sees one later token.",
            (("columns <= rows", "columns <= rows + 1"),),
        ),
        Mistake(
            "The rows begin at position 0: row t belongs to position start + t.",
            (("start + np.arange(T)", "np.arange(T)"),),
        ),
        Mistake(
            "The cached positions are missing: the columns are all start + T positions.",
            (
                ("start + np.arange(T)", "np.arange(T)"),
                ("np.arange(start + T)", "np.arange(T)"),
            ),
        ),
        Mistake(
            "The mask hides the past: the two values are exchanged.",
            (("0.0, -np.inf", "-np.inf, 0.0"),),
        ),
        Mistake(
            "Rows and columns are exchanged: row t hides the columns after it.",
            (("columns <= rows", "columns >= rows"),),
        ),
        Mistake(
            "A mask of 1 and 0 would be multiplied. This one is added: 0 changes nothing, "
            "and -inf becomes a weight of 0.",
            (("0.0, -np.inf", "1.0, 0.0"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
