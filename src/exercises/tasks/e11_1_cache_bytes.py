"""Exercise 11.1: the size of the KV cache."""

from ...model import Model, kv_cache_bytes
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    return [Case("answer", None, kv_cache_bytes(model.args, 4096), "the bytes")]


EXERCISE = PredictIt(
    number="11.1",
    title="Size a KV cache",
    minutes=5,
    difficulty="easy",
    task="""\
The bundled model has L = 4 layers, H = 6 query heads, K = 2 key/value heads and a head
dimension of h = 32. Its cache is bfloat16. How many bytes do the caches of all layers take
for C = 4096 positions?

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
L, H, K, h, C = 4, 6, 2, 32, 4096

answer = None
""",
    solution="""\
L, H, K, h, C = 4, 6, 2, 32, 4096

answer = 2 * L * C * K * h * 2
""",
    mistakes=(
        Mistake(
            "The cache holds keys and values of the K key/value heads, not of the H query "
            "heads. Sharing them is the purpose of grouped queries.",
            (("C * K * h", "C * H * h"),),
        ),
        Mistake(
            "Each layer has a separate cache: multiply by L.",
            (("2 * L * C", "2 * C"),),
        ),
        Mistake(
            "One factor of 2 is missing: there are keys and values, and a bfloat16 has 2 "
            "bytes.",
            (("2 * L * C", "L * C"),),
        ),
        Mistake(
            "A bfloat16 has 2 bytes, not 4.",
            (("K * h * 2", "K * h * 4"),),
        ),
    ),
    cases=_cases,
    explanation="""\
Keys and values (2), for L layers, C positions, K heads of h elements, of 2 bytes each. With
K = H it would be three times as much.""",
)
