"""One request: the engine of a chat and that of many requests give it the same answer."""

import gc
import threading
import weakref
from dataclasses import FrozenInstanceError

import pytest

from src import trace
from src.inference import (
    BatchEngine,
    InferenceEngine,
    InferenceError,
    PromptError,
    Request,
    SamplingArgs,
    load_prompt_cache,
    prompt_cache,
    save_prompt_cache,
)
from src.inference.blocks import SIZE, BlockPool, Part
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
    """The candidates hold probabilities of logits, which are equal only where all bits
    are.
    """
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


def test_progress_that_uses_the_engine_ends_the_answer(model):
    engine = InferenceEngine(model, 256)
    ids = model.tokenizer.encode("What is the capital of France?", bos=True)

    def ask_in_between(_done: int, _total: int) -> None:
        list(engine.generate([1, 2, 3], 2))

    with pytest.raises(InferenceError, match="ended by a newer call"):
        list(engine.generate(ids, 4, progress=ask_in_between))
    greedy = SamplingArgs(temperature=0.0)
    expected = list(InferenceEngine(model, 256).generate(ids, 4, greedy, candidates=3))
    again = list(engine.generate(ids, 4, greedy, candidates=3))
    assert [step.choice for step in again] == [step.choice for step in expected]


def test_the_cache_of_an_engine_that_is_gone_is_free_at_once(model):
    engine = InferenceEngine(model, 256)
    list(engine.generate([1, 2, 3], 2))
    memory = weakref.ref(engine.context.memory)
    gc.disable()
    try:
        del engine
        assert memory() is None
    finally:
        gc.enable()


def test_a_context_that_is_used_elsewhere_claims_no_token_that_is_gone(model):
    engine = InferenceEngine(model, 256)
    prompt = [*range(300, 340)]
    list(engine.generate(prompt, 4))
    model.transformer.forward(engine.context, [7, 8, 9], 0)
    assert engine.cached_ids == ()
    steps = engine.generate(prompt, 4, SamplingArgs(temperature=0.0))
    next(steps)
    engine.context.clear()
    with pytest.raises(InferenceError, match="the context of this answer was changed"):
        next(steps)


def test_attention_that_is_set_at_the_context_stays(model):
    engine = InferenceEngine(model, 256)
    engine.context.attention = "eager"
    list(engine.generate([1, 2, 3], 2))
    assert engine.context.attention == "eager"


def test_no_other_thread_has_the_engine_while_a_cache_is_loaded(
    model, tmp_path, monkeypatch
):
    engine = InferenceEngine(model, 256)
    list(engine.generate([1, 2, 3], 2))
    save_prompt_cache(engine, tmp_path / "cache")
    refused: list[BaseException] = []
    write = prompt_cache.write_rows

    def written_meanwhile(*arguments: object) -> None:
        def ask() -> None:
            try:
                list(engine.generate([4, 5], 1))
            except InferenceError as error:
                refused.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        write(*arguments)

    monkeypatch.setattr(prompt_cache, "write_rows", written_meanwhile)
    assert load_prompt_cache(engine, tmp_path / "cache") > 0
    assert str(refused[0]) == "this engine is in use by another thread"


def test_blocks_that_were_copied_are_named_to_other_ranks_once(model):
    """A sequence in a pool may run as its own context after one that was copied."""
    pool = BlockPool(model, 2 * SIZE, 4)
    text = [*range(300, 340)]
    first = pool.admit(text, SIZE)
    pool.run([Part(first, text, len(text), 1)])
    second = pool.admit([*text, 5], SIZE)
    assert pool.memory.copies != []
    for sequence in (second, first):
        pool.run([Part(sequence, [6], 1, 1)])
        assert pool.memory.copies == []
