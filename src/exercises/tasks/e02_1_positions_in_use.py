"""Exercise 2.1: the positions in use after an answer."""

from ...inference import InferenceEngine, Message, SamplingArgs
from ...model import Model
from ..chat import QUESTION
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    engine = InferenceEngine(model, 256)
    greedy = SamplingArgs(temperature=0.0)
    for _step in engine.chat([Message("user", QUESTION)], sampling=greedy):
        pass
    return [Case("answer", None, engine.context.length, "the filled positions")]


EXERCISE = PredictIt(
    number="2.1",
    title="Count the filled positions",
    minutes=5,
    difficulty="easy",
    task="""\
"What is the capital of Ohio?" becomes a prompt of 22 tokens in the chat format. The answer has 9
new tokens, and the last one is the token that ends it. A pass writes the keys and values of the
tokens that it reads into the KV cache. How many positions of the cache are filled when the answer
is complete?

Set `answer` to a whole number.
""",
    stub="""\
prompt = 22
new = 9

answer = None
""",
    solution="""\
prompt = 22
new = 9

answer = prompt + new - 1
""",
    mistakes=(
        Mistake(
            "Off by one position: a token enters the cache when the network reads it, and the "
            "network never reads the last token that was drawn.",
            (("prompt + new - 1", "prompt + new"),),
        ),
        Mistake(
            "Off by one position: of the new tokens, only the last one was not read.",
            (("prompt + new - 1", "prompt + new - 2"),),
        ),
        Mistake(
            "The new tokens are in the cache too, because later tokens attend to them.",
            (("prompt + new - 1", "prompt"),),
        ),
        Mistake(
            "The prompt is in the cache too, because the answer attends to it.",
            (("prompt + new - 1", "new"),),
        ),
    ),
    cases=_cases,
    explanation="""\
22 tokens of the prompt and 8 of the answer. The ninth, the end token, was drawn from the logits
of the eighth, and nothing had to be computed after it.""",
)
