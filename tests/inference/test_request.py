"""One request: the engine of a chat and that of many requests give it the same answer."""

from dataclasses import FrozenInstanceError

import pytest

from src import trace
from src.inference import BatchEngine, InferenceEngine, PromptError, Request, SamplingArgs
from src.model import load_model
from tools.runs import recorded

PROMPTS = (
    "What is the capital of Massachusetts?",
    "What is the capital of France? Answer in one word.",
    "Who are you?",
    "What does stage 13 do?",
    "What is RoPE?",
)
SETTINGS = (
    SamplingArgs(temperature=0.0),
    SamplingArgs(seed=5),
    SamplingArgs(seed=7, temperature=1.3, top_k=0, top_p=1.0),
    SamplingArgs(seed=9, repeat_penalty=1.2),
)


@pytest.fixture(scope="module")
def model():
    return load_model()


def requests(model):
    """Returns 20 requests: each prompt with each setting, 40 tokens long."""
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt * 2, bos=True)
        for sampling in SETTINGS:
            yield Request(ids, max_new_tokens=40, sampling=sampling, candidates=3)


def test_a_request_cannot_be_changed():
    request = Request([1, 2])
    with pytest.raises(FrozenInstanceError):
        request.max_new_tokens = 5


def test_both_engines_give_the_same_steps(model):
    with BatchEngine(model, sequence_length=256) as batch:
        many = [(request, batch.answer(request)) for request in requests(model)]
        for request, submitted in many:
            lone = list(InferenceEngine(model, 256).answer(request))
            for ours, other in zip(lone, submitted, strict=True):
                assert (ours.token_id, ours.text, ours.choice) == (
                    other.token_id,
                    other.text,
                    other.choice,
                )


def test_a_run_with_a_trace_has_the_tokens_and_logits_of_one_without(model):
    """The candidates hold probabilities of logits, which are equal only where all bits are."""
    for request in requests(model):
        plain = InferenceEngine(model, 256)
        expected = list(plain.answer(request))
        with recorded(model.args):
            traced = list(InferenceEngine(model, 256).answer(request))
        assert not trace.is_on()
        assert [step.token_id for step in traced] == [step.token_id for step in expected]
        assert [step.choice for step in traced] == [step.choice for step in expected]


def test_eager_attention_changes_no_bit_of_an_answer(model):
    for request in requests(model):
        expected = list(InferenceEngine(model, 256).answer(request))
        eager = list(InferenceEngine(model, 256, attention="eager").answer(request))
        assert [step.choice for step in eager] == [step.choice for step in expected]


def test_a_time_limit_ends_an_answer_of_a_chat_too(model):
    engine = InferenceEngine(model, 256)
    ids = model.tokenizer.encode("Count to a hundred.", bos=True)
    steps = list(engine.answer(Request(ids, time_limit=1e-6)))
    assert len(steps) == 1
    assert steps[0].stop_reason == "time limit"
    with pytest.raises(PromptError, match="time_limit must be above 0: got 0"):
        engine.answer(Request(ids, time_limit=0))
