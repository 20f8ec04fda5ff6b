"""Exercise 9.2: SwiGLU."""

from contextlib import AbstractContextManager

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    del model
    gate = random_floats(3, 2, 5) * 3
    up = random_floats(4, 2, 5)
    expected = ml.swiglu(tensor_of(gate, ml.float32), tensor_of(up, ml.float32))
    return [Case("swiglu", (gate, up), floats(expected), "")]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.swiglu

    def swiglu(gate: ml.Tensor, up: ml.Tensor) -> ml.Tensor:
        wide = floats(gate), floats(up)
        expected = engine(*(tensor_of(x, ml.float32) for x in wide))
        return tensor_of(call(wide, floats(expected)), gate.dtype)

    return replaced(ml, "swiglu", swiglu)


EXERCISE = WriteIt(
    number="9.2",
    title="Open a gate",
    minutes=10,
    difficulty="easy",
    function="swiglu",
    bound=1e-5,
    task="""\
Between its matrices, the feed-forward network multiplies two projections. The gate passes
through SiLU first:

`silu(x) = x * sigmoid(x)`, with `sigmoid(x) = 1 / (1 + exp(-x))`

`out = silu(gate) * up`

- `gate`, `up`: float32 `[T, F]`, the results of `w1` and `w3`.

Return float32 `[T, F]`. Each element may differ from the engine's by 0.00001 of the largest
element.
""",
    stub='''\
import numpy as np


def swiglu(gate, up):
    """Return silu(gate) * up, for gate and up [T, F]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def swiglu(gate, up):
    """Return silu(gate) * up, for gate and up [T, F]."""
    sigmoid = 1 / (1 + np.exp(-gate))
    return gate * sigmoid * up
''',
    mistakes=(
        Mistake(
            "The result is sigmoid(gate) * up, as in GLU. SiLU also multiplies by the gate.",
            (("gate * sigmoid * up", "sigmoid * up"),),
        ),
        Mistake(
            "Gate and up are exchanged: SiLU belongs to the gate, the first argument.",
            (("np.exp(-gate)", "np.exp(-up)"),),
        ),
        Mistake(
            "The sign in the exponent is missing: sigmoid(x) = 1 / (1 + exp(-x)).",
            (("np.exp(-gate)", "np.exp(gate)"),),
        ),
        Mistake(
            "The gate passes through ReLU. A Llama uses SiLU, which is smooth and below 0 "
            "for negative numbers.",
            (("gate * sigmoid * up", "np.maximum(gate, 0) * up"),),
        ),
        Mistake(
            "The factor up is missing.",
            (("gate * sigmoid * up", "gate * sigmoid"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
