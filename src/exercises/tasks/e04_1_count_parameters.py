"""Exercise 4.1: the number of parameters."""

from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    layer = [
        tensor.size
        for name, tensor in model.tensors.items()
        if name.startswith("layers.0.")
    ]
    return [Case("answer", None, sum(layer), "the parameters of a layer")]


EXERCISE = PredictIt(
    number="4.1",
    title="Count the parameters of a layer",
    minutes=10,
    difficulty="easy",
    task="""\
The `params.json` of the bundled model has these sizes:

| D | H | K | h = D / H | F | V | L |
|---|---|---|---|---|---|---|
| 192 | 6 | 2 | 32 | 544 | 4096 | 4 |

How many parameters does one of its layers have? A layer consists of `wq`, `wk`, `wv`, `wo`,
`w1`, `w2`, `w3` and two norms. Keys and values have only K heads.

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
D, H, K, h, F = 192, 6, 2, 32, 544

answer = None
""",
    solution="""\
D, H, K, h, F = 192, 6, 2, 32, 544

attention = 2 * D * H * h + 2 * D * K * h
feed_forward = 3 * D * F
answer = attention + feed_forward + 2 * D
""",
    mistakes=(
        Mistake(
            "wk and wv have K heads, not H: grouped queries share keys and values.",
            (("2 * D * K * h", "2 * D * H * h"),),
        ),
        Mistake(
            "The feed-forward network has three matrices: gate (w1), up (w3) and down (w2).",
            (("3 * D * F", "2 * D * F"),),
        ),
        Mistake(
            "The two norms are missing: each has a weight per column, D together.",
            ((" + 2 * D\n", "\n"),),
        ),
        Mistake(
            "A layer has two norms, one before attention and one before the feed-forward "
            "network.",
            (("feed_forward + 2 * D", "feed_forward + D"),),
        ),
        Mistake(
            "wo is missing: it maps the H heads back to D columns.",
            (("2 * D * H * h", "D * H * h"),),
        ),
    ),
    cases=_cases,
    explanation="""\
Attention has 2 D H h + 2 D K h parameters, the feed-forward network 3 D F, the norms 2 D.
The feed-forward network has three quarters of them.""",
)
