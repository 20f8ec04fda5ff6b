"""Exercise 11.2: attention of one token over a cache."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...model import Model
from ...model.llama import LlamaAttention
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _attended(query: Any, keys: Any, values: Any) -> Any:
    """Return the engine's result for one query of one head, in float32."""
    q, k, v = (ml.tensor(x, "float32") for x in (query[None], keys, values))
    scores = ml.matmul(q, k.transpose(0, 1))
    weights = ml.softmax(ml.multiply(scores, 1 / len(query) ** 0.5))
    return floats(ml.matmul(weights, v))[0]


def _cases(model: Model) -> list[Case]:
    del model
    small = random_floats(20, 4), random_floats(21, 6, 4), random_floats(22, 6, 4)
    first = random_floats(23, 8), random_floats(24, 1, 8), random_floats(25, 1, 8)
    return [
        Case("attend", small, _attended(*small), "6 positions"),
        Case("attend", first, _attended(*first), "the first token"),
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    def eager(
        attention: LlamaAttention, xq: ml.Tensor, cache: Any, start: int, mask: Any
    ) -> ml.Tensor:
        del mask  # a token sees the cache up to its position
        T, H, h = xq.shape
        keys, values = map(floats, ml.read_cache(cache, 0, start + T))
        queries = floats(xq)
        out = np.empty((T, H, h), np.float32)
        for t in range(T):
            for head in range(H):
                shared = head // attention.args.group_size
                seen = slice(0, start + t + 1)
                inputs = queries[t, head], keys[seen, shared], values[seen, shared]
                out[t, head] = call(inputs, _attended(*inputs))
        return tensor_of(out, xq.dtype)

    return replaced(LlamaAttention, "eager", eager)


EXERCISE = WriteIt(
    number="11.2",
    title="Attend with a cache",
    minutes=20,
    difficulty="medium",
    function="attend",
    bound=1e-5,
    task="""\
Write attention for one query of one head. The cache contains the keys and the values of all
positions that the token may see, its own included:

1. The score of a position is the dot product of the query with the key, divided by `sqrt(h)`.
2. The softmax of the scores gives the weights.
3. The result is the sum of the values, each times its weight.

- `query`: float32 `[h]`.
- `keys`, `values`: float32 `[S, h]`.

Return float32 `[h]`. Each element may differ from the engine's by 0.00001 of the largest element.
In the chat, your function computes all attention: each head of each token in each layer.
""",
    stub='''\
import numpy as np


def attend(query, keys, values):
    """Return the weighted sum of values [S, h] for query [h] and keys [S, h]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def attend(query, keys, values):
    """Return the weighted sum of values [S, h] for query [h] and keys [S, h]."""
    scores = keys @ query / np.sqrt(len(query))  # [S]
    exponentials = np.exp(scores - scores.max())
    weights = exponentials / exponentials.sum()
    return weights @ values  # [S] @ [S, h] -> [h]
''',
    mistakes=(
        Mistake(
            "The scale is missing: divide the scores by sqrt(h).",
            ((" / np.sqrt(len(query))", ""),),
        ),
        Mistake(
            "The scale is wrong: divide by sqrt(h), not by h.",
            (("np.sqrt(len(query))", "len(query)"),),
        ),
        Mistake(
            "The scale is wrong: h is the length of the query, not the number of positions.",
            (("np.sqrt(len(query))", "np.sqrt(len(keys))"),),
        ),
        Mistake(
            "The weights are not divided by their sum.",
            (("exponentials / exponentials.sum()", "exponentials"),),
        ),
        Mistake(
            "The weighted sum is over the keys. The values are what a token passes on.",
            (("weights @ values", "weights @ keys"),),
        ),
        Mistake(
            "Off by one position: the token also sees itself, the last row of the cache.",
            (
                ("keys @ query", "keys[: max(1, len(keys) - 1)] @ query"),
                ("weights @ values", "weights @ values[: len(weights)]"),
            ),
        ),
        Mistake(
            "The softmax is missing: the scores themselves are used as weights.",
            (("weights @ values", "scores @ values"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
