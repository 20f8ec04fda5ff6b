"""Short steps are repeated as recorded kernel calls, with the bits of the network itself."""

from typing import Any

import pytest

from src import ml
from src.ml import ops, recording
from src.model import InferenceContext
from src.model.context import REPLAYED_TOKENS
from src.model.llama import LlamaTransformerBlock
from tests.model.test_llama import bits
from tests.model.tiny import CONFIGS, GROUPED, Tiny, token_ids, transformer

DTYPES = (ml.bfloat16, ml.float32, ml.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_logits_have_the_same_bits_with_and_without(config: Tiny, dtype: ml.DType) -> None:
    model, ids = transformer(config, dtype), token_ids(config, 40)
    replayed, plain = (InferenceContext(model.args, len(ids)) for _ in range(2))
    plain.replays = []
    start = 0
    for T in (5, 1, 1, 1, 3, 8, 3, 1, 8, 1, 8):
        found = model.forward(replayed, ids[start : start + T], start, all_positions=True)
        expected = model.forward(plain, ids[start : start + T], start, all_positions=True)
        assert (bits(found.numpy()) == bits(expected.numpy())).all()
        start += T
    assert start == len(ids)


def test_after_the_first_token_no_layer_runs_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = transformer(GROUPED, ml.bfloat16), token_ids(GROUPED, 10)
    context, layers = InferenceContext(model.args, 10), []
    forward = LlamaTransformerBlock.forward

    def counted(block: LlamaTransformerBlock, *args: Any) -> ml.Tensor:
        layers.append(block.layer)
        return forward(block, *args)

    monkeypatch.setattr(LlamaTransformerBlock, "forward", counted)
    for position, token in enumerate(ids):
        model.forward(context, [token], position)
    assert layers == list(range(model.args.n_layers))


def test_a_layer_of_a_step_is_thirteen_kernel_calls() -> None:
    """rms_norm, q/k/v, 2 rotary, cache, attention, wo, add; rms_norm, w1/w3, swiglu, w2, add."""
    model, ids = transformer(GROUPED, ml.bfloat16), token_ids(GROUPED, 3)
    context = InferenceContext(model.args, 3)
    for position, token in enumerate(ids):
        model.forward(context, [token], position)
    assert len(context.replays[0]._calls) == 13 * model.args.n_layers


def test_logits_of_a_step_stay_when_the_next_one_runs() -> None:
    model, ids = transformer(GROUPED, ml.bfloat16), token_ids(GROUPED, 4)
    context = InferenceContext(model.args, 4)
    results = [model.forward(context, [token], at).numpy() for at, token in enumerate(ids)]
    kept = [bits(result).copy() for result in results]
    model.forward(context, ids[:1], 3)
    assert all((bits(r) == k).all() for r, k in zip(results, kept, strict=True))


def test_a_context_may_go_from_one_model_to_another_of_its_sizes() -> None:
    ids = token_ids(GROUPED, 6)
    first, second = (transformer(GROUPED, ml.bfloat16) for _ in range(2))
    second.layers[0].feed_forward.w1 = second.layers[0].feed_forward.w3
    shared, own = (InferenceContext(first.args, 6) for _ in range(2))
    for position, token in enumerate(ids):
        model = first if position < 3 else second
        found = model.forward(shared, [token], position)
        expected = model.forward(own, [token], position)
        own.replays = [ml.Replay() for _ in range(REPLAYED_TOKENS)]
        assert (bits(found.numpy()) == bits(expected.numpy())).all()


def test_eager_attention_and_long_steps_are_never_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise AssertionError("recorded")

    monkeypatch.setattr(recording, "_put_in_place", refused)
    model, ids = transformer(GROUPED, ml.bfloat16), token_ids(GROUPED, 20)
    model.forward(InferenceContext(model.args, 20), ids[: REPLAYED_TOKENS + 1])
    eager = InferenceContext(model.args, 20, "eager")
    for position, token in enumerate(ids):
        model.forward(eager, [token], position)
    assert "attention" in ops.__all__


def test_an_interrupt_between_any_two_kernels_leaves_the_step_to_be_made_again() -> None:
    model, ids = transformer(GROUPED, ml.bfloat16), token_ids(GROUPED, 5)
    context, plain = (InferenceContext(model.args, 5) for _ in range(2))
    plain.replays = []
    expected = model.forward(plain, ids).numpy()
    model.forward(context, ids[:1])
    for position in range(1, 4):
        model.forward(context, ids[position : position + 1], position)
    calls = context.replays[0]._calls

    def interrupted() -> None:
        raise KeyboardInterrupt

    for at, call in enumerate(calls):
        calls[at] = (interrupted, [])
        with pytest.raises(KeyboardInterrupt):
            model.forward(context, ids[4:], 4)
        assert context.length == 4
        calls[at] = call
    assert (bits(model.forward(context, ids[4:], 4).numpy()) == bits(expected)).all()


def test_a_weight_that_is_replaced_counts_from_the_next_step_on() -> None:
    model, ids = transformer(GROUPED, ml.bfloat16), token_ids(GROUPED, 6)
    context, plain = (InferenceContext(model.args, 6) for _ in range(2))
    plain.replays = []
    for position, token in enumerate(ids):
        if position == 3:
            feed_forward = model.layers[0].feed_forward
            feed_forward.w1 = feed_forward.w3
        found = model.forward(context, [token], position)
        expected = model.forward(plain, [token], position)
        assert (bits(found.numpy()) == bits(expected.numpy())).all()
