"""The code of the network that is read is the code that runs, for every token."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from src import ml
from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import InferenceContext, Model, load_model
from src.model.llama import LlamaAttention, LlamaFeedForward

PROMPT = list(range(40, 52))
TOKENS = 16
HALF = 8

Change = Callable[[pytest.MonkeyPatch, Model], None]


@pytest.fixture
def model() -> Model:
    return load_model()


def answer(
    model: Model, attention: str, change: Callable[[], None] = lambda: None
) -> list[bytes]:
    """Return the logits of each step of an answer; in its middle something is changed."""
    context = InferenceContext(model.args, 64, attention)
    logits = model.transformer.forward(context, PROMPT)
    steps = []
    for number in range(TOKENS):
        if number == HALF:
            change()
        token = int(ml.argmax(logits).item())
        logits = model.transformer.forward(context, [token], len(PROMPT) + number)
        steps.append(logits.numpy().tobytes())
    return steps


def other_feed_forward(patch: pytest.MonkeyPatch, _model: Model) -> None:
    patch.setattr(
        LlamaFeedForward, "forward", lambda _self, x: ml.zeros_like(x).to(ml.float32)
    )


def other_attention(patch: pytest.MonkeyPatch, _model: Model) -> None:
    attention = ml.attention
    patch.setattr(ml, "attention", lambda *given: ml.multiply(attention(*given), 2.0))


def other_softmax(patch: pytest.MonkeyPatch, _model: Model) -> None:
    softmax = ml.softmax
    patch.setattr(
        ml, "softmax", lambda *given, **named: ml.multiply(softmax(*given, **named), 2.0)
    )


def other_weight(_patch: pytest.MonkeyPatch, model: Model) -> None:
    feed_forward = model.transformer.layers[1].feed_forward
    assert isinstance(feed_forward.w2, ml.Tensor)
    feed_forward.w2 = ml.multiply(feed_forward.w2, 2.0)


@pytest.mark.parametrize(
    ("attention", "change"),
    [
        ("fused", other_feed_forward),
        ("fused", other_attention),
        ("fused", other_weight),
        ("eager", other_feed_forward),
        ("eager", other_softmax),
        ("eager", other_weight),
    ],
)
def test_what_is_replaced_in_the_middle_of_an_answer_changes_the_rest(
    attention: str, change: Change, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = answer(model, attention)
    changed = answer(model, attention, lambda: change(monkeypatch, model))
    assert changed[:HALF] == plain[:HALF]
    assert all(new != old for new, old in zip(changed[HALF:], plain[HALF:], strict=True))


def test_a_chat_answer_changes_too_when_the_feed_forward_is_replaced_in_its_middle(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(change: Callable[[], None]) -> list[int]:
        engine = InferenceEngine(model, 128)
        found = []
        question = [Message("user", "What happens in attention?")]
        for step in engine.chat(question, 12, SamplingArgs(temperature=0.0)):
            found.append(step.token_id)
            if len(found) == 4:
                change()
        return found

    plain = tokens(lambda: None)
    changed = tokens(lambda: other_feed_forward(monkeypatch, model))
    assert changed[:4] == plain[:4]
    assert changed[4:] != plain[4:]


def test_attention_runs_once_per_layer_and_pass(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = 0
    forward = LlamaAttention.forward

    def counted(*given: object) -> ml.Tensor:
        nonlocal entered
        entered += 1
        return forward(*given)

    monkeypatch.setattr(LlamaAttention, "forward", counted)
    answer(model, "fused")
    assert entered == model.args.n_layers * (1 + TOKENS)


def test_a_weight_of_another_shape_is_named_with_its_layer(model: Model) -> None:
    attention = model.transformer.layers[2].attention
    plain = attention.wk
    context = InferenceContext(model.args, 64)
    attention.wk = ml.zeros((64, 100), ml.bfloat16)
    with pytest.raises(
        ml.ShapeError,
        match=r"^layers\.2\.attention\.wk must be \[64, 192\]: \[64, 100\]: \[",
    ):
        model.transformer.forward(context, PROMPT)
    attention.wk = plain
    assert np.isfinite(model.transformer.forward(context, PROMPT).numpy()).all()


def python_calls(run: Callable[[], object]) -> int:
    """Count the Python functions that are called while something runs, itself not
    counted.
    """
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    run()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls.total() - 1


def test_one_row_takes_few_python_calls() -> None:
    x = ml.ones((1, 64), ml.bfloat16)
    weight = ml.ones((128, 64), ml.bfloat16)
    norm = ml.ones((64,), ml.bfloat16)
    heads = ml.ones((1, 4, 16), ml.bfloat16)
    rotations = ml.polar(ml.ones((1, 8)), ml.ones((1, 8)))
    cache = ml.KeyValueCache(16, 4, 16, ml.bfloat16)
    one = python_calls(lambda: ml.linear_transformation(x, weight))
    assert one <= 6
    for more in (1, 2, 5):
        weights = (weight,) * (1 + more)
        assert python_calls(lambda w=weights: ml.linear_transformations(x, w)) <= 6 + more
    assert python_calls(lambda: ml.rms_norm(x, norm, 1e-5, ml.bfloat16)) <= 6
    assert python_calls(lambda: ml.add(x, x)) <= 5
    assert python_calls(lambda: ml.rotary_embedding(heads, rotations)) <= 5
    assert python_calls(lambda: ml.write_cache(cache, 0, heads, heads)) <= 3
    assert python_calls(lambda: ml.attention(heads, cache, 0)) <= 5


def test_a_decode_step_of_the_bundled_model_takes_few_python_calls(model: Model) -> None:
    context = InferenceContext(model.args, 64)
    model.transformer.forward(context, PROMPT)
    step = python_calls(lambda: model.transformer.forward(context, [5], len(PROMPT)))
    assert step <= 560
