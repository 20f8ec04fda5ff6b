"""Exercise 13.1: the loop that generates an answer."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...inference import InferenceEngine, Message, SamplingArgs, encode_chat
from ...model import InferenceContext, Model, load_model
from ..chat import MOST_TOKENS, QUESTION, replaced
from ..exercise import Call, Case, Mistake, WriteIt


class _TinyNetwork:
    """A network of 50 tokens with a cache, whose answers depend on all positions."""

    def __init__(self) -> None:
        self.cache: list[int] = []

    def __call__(self, tokens: Sequence[int], start: int) -> Any:
        """Return the logits [50] after the last token."""
        assert start <= len(self.cache), "start leaves a gap in the cache"
        self.cache = self.cache[:start] + [int(token) for token in tokens]
        weighted = sum(i * token for i, token in enumerate(self.cache, 1))
        return np.eye(50, dtype=np.float32)[weighted % 50]


def _greedy(forward: Any, prompt: Sequence[int], stop: set[int], most: int) -> list[int]:
    """Return the ids that the engine's loop draws."""
    ids: list[int] = []
    tokens = list(prompt)
    start = 0
    while len(ids) < most:
        ids.append(int(forward(tokens, start).argmax()))
        if ids[-1] in stop:
            break
        start += len(tokens)
        tokens = ids[-1:]
    return ids


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for prompt, stop, most in (([3, 7, 1], {99}, 5), ([2, 5], {35}, 8), ([4], {99}, 1)):
        expected = _greedy(_TinyNetwork(), prompt, stop, most)
        arguments = _TinyNetwork(), prompt, stop, most
        cases.append(Case("generate", arguments, expected, f"the prompt is {prompt}"))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    model = load_model()
    engine = InferenceEngine(model, 256, speculation=False, attention="eager")
    steps = engine.chat(
        [Message("user", QUESTION)],
        max_new_tokens=MOST_TOKENS,
        sampling=SamplingArgs(temperature=0.0),
    )
    expected = [step.token_id for step in steps]

    def chat(_engine: Any, messages: Any, **_settings: Any) -> Iterator[SimpleNamespace]:
        """Generate the answer with the reader's loop."""
        assert model.tokenizer is not None
        context = InferenceContext(model.args, 256, attention="eager")

        def forward(tokens: Any, start: int) -> Any:
            logits = model.transformer.forward(context, list(tokens), start)
            return logits.numpy()[0].copy()

        prompt = encode_chat(model.tokenizer, messages)
        ids = call((forward, prompt, set(model.stop_ids), MOST_TOKENS), expected)
        words = [each for each in ids if each not in model.stop_ids]
        yield SimpleNamespace(text=model.tokenizer.decode(words))

    return replaced(InferenceEngine, "chat", chat)


EXERCISE = WriteIt(
    number="13.1",
    title="Write the loop that answers",
    minutes=20,
    difficulty="medium",
    function="generate",
    task="""\
Write the loop that generates an answer. The first pass reads the whole prompt. Each later pass
reads only the token that was drawn last, because the cache holds the keys and values of all
tokens before it. The drawn token is the one with the largest logit.

- `forward(tokens, start)`: reads tokens from position `start` on, and returns the logits `[V]`
  after the last one.
- `prompt`: a list of ids.
- `stop`: a set of ids. The loop ends after one of them was drawn.
- `most`: the largest number of new tokens.

Return the list of new ids, with the stop token if one was drawn.
""",
    stub='''\
def generate(forward, prompt, stop, most):
    """Return the ids of the answer."""
    raise NotImplementedError
''',
    solution='''\
def generate(forward, prompt, stop, most):
    """Return the ids of the answer."""
    ids = []
    tokens = prompt
    start = 0
    while len(ids) < most:
        logits = forward(tokens, start)
        token = int(logits.argmax())
        ids.append(token)
        if token in stop:
            break
        start += len(tokens)
        tokens = [token]
    return ids
''',
    mistakes=(
        Mistake(
            "Off by one position: the position of a token is the number of tokens before it. "
            "Your passes overwrite the last position of the one before.",
            (("start += len(tokens)", "start += len(tokens) - (start == 0)"),),
        ),
        Mistake(
            "Off by one position: the second pass leaves a gap in the cache.",
            (("start += len(tokens)", "start += len(tokens) + 1"),),
        ),
        Mistake(
            "Each pass reads its token at position 0, and so forgets the prompt.",
            (("        start += len(tokens)\n", ""),),
        ),
        Mistake(
            "The stop token is missing: it was drawn, so it belongs to the result.",
            (
                (
                    "        ids.append(token)\n        if token in stop:\n            break\n",
                    "        if token in stop:\n            break\n        ids.append(token)\n",
                ),
            ),
        ),
        Mistake(
            "The loop does not end at a stop token.",
            (("        if token in stop:\n            break\n", ""),),
        ),
        Mistake(
            "Off by one token: this draws one token more than `most`.",
            (("len(ids) < most", "len(ids) <= most"),),
        ),
        Mistake(
            "The prompt is in the result. Return the new tokens only.",
            (("return ids", "return prompt + ids"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
