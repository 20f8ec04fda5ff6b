"""What a sequence leaves behind, and passes over several: each row has the bits of its
own.
"""

import resource
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from src import ml
from src.model import (
    BatchContext,
    CacheMemory,
    InferenceContext,
    LlamaTransformer,
    ModelError,
    NotEnoughMemoryError,
    PositionError,
    kv_cache_bytes,
)
from tests.model.tiny import CONFIGS, GROUPED, Tiny, token_ids, transformer

ARGS = GROUPED.args(ml.bfloat16)


def test_the_cache_holds_keys_and_values_of_each_layer_in_the_activations_dtype() -> None:
    context = InferenceContext(ARGS, 33)
    assert [(c.positions, c.heads, c.head_dim) for c in context.caches] == [
        (33, 2, 8)
    ] * 2
    assert {c.dtype for c in context.caches} == {ml.bfloat16}
    assert context.nbytes == sum(c.nbytes for c in context.caches)
    per_position = 2 * ARGS.n_layers * ARGS.n_kv_heads * ARGS.head_dim * 2
    for length in (1, 16, 17, 33):  # whole groups of 16 positions
        held = InferenceContext(ARGS, length).nbytes
        assert (
            held == kv_cache_bytes(ARGS, length) == per_position * -(-length // 16) * 16
        )
    assert context.rotations.shape == (33, 4)
    assert context.length == 0


def test_attention_is_fused_unless_asked_otherwise_and_no_other_is_known() -> None:
    assert not InferenceContext(ARGS, 8).is_eager
    assert InferenceContext(ARGS, 8, attention="eager").is_eager
    text = "attention must be one of fused, eager: got"
    for name in ("flash", "", None, "x" * 1000):
        with pytest.raises(ModelError, match=text) as caught:
            InferenceContext(ARGS, 8, attention=name)
        assert len(str(caught.value)) < 150


@pytest.mark.parametrize("length", [0, -1, 4097, 10**9, 10**30, True, 8.0, "8", None])
def test_a_length_that_is_no_whole_number_in_the_range_is_refused(length: object) -> None:
    text = (
        f"sequence_length must be a whole number .* longest context 4096: got {length!r}"
    )
    for made in (
        lambda: InferenceContext(ARGS, length),
        lambda: CacheMemory(ARGS, length, 2),
    ):
        with pytest.raises(ModelError, match=text):
            made()


def test_a_cache_beyond_memory_is_refused_before_it_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("src.memory.available_memory", lambda: 1 << 20)
    args = replace(ARGS, max_context_length=1 << 30)
    assert kv_cache_bytes(args, 1 << 30) == 2 * 2 * (1 << 30) * 2 * 8 * 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotEnoughMemoryError) as caught:
        InferenceContext(args, 1 << 30)
    assert str(caught.value) == (
        "memory: expected at most 1.0 MiB available, got 160.0 GiB = 128.0 GiB of keys "
        "and values (2 * 2 layers * 1073741824 positions * 2 heads * 8 * 2 bytes) + 32.0 "
        "GiB of rotary table + 1.0 MiB of intermediate results; a context of 463 "
        "would fit"
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 14


def test_a_refusal_by_the_system_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("src.ml.kernels.new_bytes", refuse)
    with pytest.raises(NotEnoughMemoryError, match="got a refusal from the system"):
        InferenceContext(ARGS, 16)


def test_positions_may_be_written_over_but_leave_no_gap_and_end_with_the_context() -> (
    None
):
    context = InferenceContext(ARGS, 16)
    context.length = 10
    context.begin(10, 6)
    context.length = 10
    context.begin(4, 2)
    assert context.length == 4
    for start, shown in ((5, "5"), (-1, "-1"), (1.0, r"1\.0")):
        text = f"whole number from 0 to the number of cached positions 4: got {shown}"
        with pytest.raises(PositionError, match=text):
            context.begin(start, 1)
    assert context.length == 4
    context.begin(0, 16)
    with pytest.raises(PositionError, match="at most sequence_length: 0 \\+ 17 > 16"):
        context.begin(0, 17)
    context.length = 9
    context.clear()
    assert context.length == 0


@pytest.mark.parametrize("name", ["args", "caches", "rotations", "sequence_length"])
def test_what_the_memory_was_allocated_for_is_read_only(name: str) -> None:
    context = InferenceContext(ARGS, 16)
    before = getattr(context, name)
    with pytest.raises(AttributeError, match=f"^property '{name}' of .* has no setter$"):
        setattr(context, name, before)
    assert getattr(context, name) is before
    assert isinstance(context.caches, tuple)  # nor can one of them be replaced
    context.attention = "eager"
    context.begin(0, 1)
    assert context.is_eager


def test_a_length_beyond_the_cache_is_refused() -> None:
    context = InferenceContext(ARGS, 16)
    context.length = 5
    for length in (-1, 17, 10**6, True, 3.0, "3", None):
        with pytest.raises(
            PositionError, match="whole number from 0 to sequence_length 16: got"
        ):
            context.length = length  # type: ignore[assignment]
        assert context.length == 5
    context.length = 16
    assert context.length == 16


def run_spans(
    model: LlamaTransformer,
    memory: CacheMemory,
    spans: Sequence[tuple[int, int, list[int]]],
    tokens: list[int],
    wanted: list[int],
) -> np.ndarray:
    placed = ml.Spans(spans)
    return model.forward(BatchContext(memory, placed, wanted), tokens).numpy()


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_rows_of_several_sequences_have_the_bits_of_one(
    config: Tiny, dtype: ml.DType
) -> None:
    model = transformer(config, dtype)
    texts = [token_ids(config, count, seed=count) for count in (1, 9, 33)]
    alone = [
        model.forward(InferenceContext(model.args, 40), ids, all_positions=True).numpy()
        for ids in texts
    ]
    memory = CacheMemory(model.args, 40, 5)
    places = [[3], [0], [4]]
    first = [
        (0, len(ids) - 1, place) for ids, place in zip(texts[1:], places[1:], strict=True)
    ]
    rows = run_spans(model, memory, first, texts[1][:-1] + texts[2][:-1], [0, 3])
    np.testing.assert_array_equal(rows, alone[2][-4:-1])
    newest = [(len(ids) - 1, 1, place) for ids, place in zip(texts, places, strict=True)]
    rows = run_spans(model, memory, newest, [ids[-1] for ids in texts], [1, 1, 1])
    np.testing.assert_array_equal(rows, np.concatenate([logits[-1:] for logits in alone]))


def test_what_does_not_fit_is_refused() -> None:
    model = transformer(GROUPED, ml.bfloat16)
    memory = CacheMemory(model.args, 40, 2)
    spans = ml.Spans([(0, 2, [0])])
    context = BatchContext(memory, spans, [1])
    with pytest.raises(
        PositionError,
        match=r"tokens must be the tokens of the spans: 3 from 0 != 2 from 0",
    ):
        model.forward(context, [1, 2, 3])
    assert model.forward(context, [1, 2]).shape == (1, model.args.vocab_size)
    with pytest.raises(NotEnoughMemoryError, match="keys and values"):
        CacheMemory(model.args, 40, 1 << 40)
