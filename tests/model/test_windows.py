"""Layers with a window keep the last positions in a ring, with the bits of full caches."""

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.inference import (
    BatchEngine,
    InferenceEngine,
    SamplingArgs,
    load_prompt_cache,
    save_prompt_cache,
)
from src.model import (
    PREFILL_CHUNK,
    CacheMemory,
    InferenceContext,
    Model,
    PositionError,
    kv_cache_bytes,
    load_model,
)
from src.model.forecast import MemoryForecast, ring_blocks
from tests.model.families import write_family

GREEDY = SamplingArgs(temperature=0.0)
LENGTH = 4096
BLOCK = ml.BLOCK_POSITIONS
# One layer without a window among layers with a window of 7 positions and a ring of 1024;
# no layer without a window; and soft caps.
FAMILIES = {"gemma3_text": 1024, "mistral": 1024, "gemma2": 1024}
IDS = np.random.default_rng(1).integers(3, 131, 3300).tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    directory = tmp_path_factory.mktemp("windows")
    return load_model(write_family(directory / "model", request.param))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("gemma")
    return load_model(write_family(directory / "model", "gemma3_text"))


@pytest.fixture(autouse=True)
def _threads_come_back() -> Iterator[None]:
    threads = ml.get_num_threads()
    yield
    ml.set_num_threads(threads)


def full_context(model: Model) -> InferenceContext:
    """Return a context without rings, in the memory of a pool."""
    memory = CacheMemory(model.args, LENGTH, blocks=LENGTH // BLOCK)
    return InferenceContext(model.args, LENGTH, memory=memory)


def run(
    model: Model, context: InferenceContext, ids: list[int], start: int, size: int
) -> np.ndarray:
    """Run tokens in passes of a size, and return all logits."""
    rows = [
        model.transformer.forward(
            context, ids[at : at + size], start + at, all_positions=True
        ).numpy()
        for at in range(0, len(ids), size)
    ]
    return np.concatenate(rows)


def test_a_ring_gives_the_bits_of_full_caches_over_several_turns(model: Model) -> None:
    expected = run(model, full_context(model), IDS, 0, PREFILL_CHUNK)
    for attention, threads, count, sizes in (
        ("fused", 1, 3300, (512, 1, 511, 300, 3, 700)),
        ("fused", 3, 3300, (3300,)),
        ("eager", 2, 1500, (512, 1, 37, 600)),
    ):
        ml.set_num_threads(threads)
        context = InferenceContext(model.args, LENGTH, attention)
        assert any(cache.ring_blocks for cache in context.caches)
        start = 0
        for size in itertools.cycle(sizes):
            end = min(start + size, count)
            rows = run(model, context, IDS[start:end], start, size)
            assert rows.tobytes() == expected[start:end].tobytes()
            start = end
            if start == count:
                break


def test_long_decoding_gives_the_bits_of_full_caches(gemma: Model) -> None:
    count = 2 * FAMILIES["gemma3_text"] + 300
    expected = run(gemma, full_context(gemma), IDS[:count], 0, PREFILL_CHUNK)
    context = InferenceContext(gemma.args, LENGTH)
    rows = run(gemma, context, IDS[:count], 0, 1)
    assert rows.tobytes() == expected.tobytes()


def test_a_rewind_continues_in_the_ring_or_is_refused(model: Model) -> None:
    expected = run(model, full_context(model), IDS, 0, PREFILL_CHUNK)
    context = InferenceContext(model.args, LENGTH)
    run(model, context, IDS[:2500], 0, PREFILL_CHUNK)
    first = context.memory.first_start
    window = max(window or 1 for window in model.args.windows)
    assert first == 2560 - FAMILIES["mistral"] + window - 1
    for start in (2499, 2500 - PREFILL_CHUNK, first):
        rows = run(model, context, IDS[start : start + 3], start, 3)
        assert rows.tobytes() == expected[start : start + 3].tobytes()
        context.length = 2500
    for start in (first - 1, 1):
        with pytest.raises(
            PositionError, match=f"window can continue: {start} < {first}"
        ):
            run(model, context, IDS[:1], start, 1)
    rows = run(model, context, IDS[:600], 0, 300)
    assert rows.tobytes() == expected[:600].tobytes()
    rows = run(model, context, IDS[100:200], 100, 100)
    assert rows.tobytes() == expected[100:200].tobytes()


def test_the_memory_of_window_layers_does_not_grow_with_the_context(
    tmp_path: Path,
) -> None:
    sizes = {"sliding_window": 512, "max_position_embeddings": 32768}
    args = load_model(write_family(tmp_path / "model", "gemma3_text", **sizes)).args
    layer = args.n_kv_heads * args.head_dim * 2 * args.dtype.itemsize
    assert args.windows.count(512) == 6
    for length, ring in ((1280, 1280), (8192, 1280), (32768, 1280)):
        context = InferenceContext(args, length)
        expected = layer * (length + 6 * ring)
        assert context.nbytes == kv_cache_bytes(args, length) == expected
        assert sum(cache.nbytes for cache in context.caches) == expected
    assert ring_blocks(args, 1280) is None
    pool = CacheMemory(args, 8192, blocks=32)
    assert pool.nbytes == kv_cache_bytes(args, 8192, is_pool=True) == 7 * 8192 * layer
    [part] = [name for name in MemoryForecast(args, 8192).parts if "keys" in name]
    assert "(2 * (6 layers * 1280 positions + 1 layers * 8192 positions) *" in part


def answer(engine: InferenceEngine, ids: list[int], count: int = 8) -> list[int]:
    return [step.token_id for step in engine.generate(ids, count, GREEDY)]


def test_an_engine_reuses_what_the_ring_contains_and_recomputes_the_rest(
    gemma: Model,
) -> None:
    engine = InferenceEngine(gemma, LENGTH)
    for ids, cached in (
        (IDS[:2000], 0),
        (IDS[:2010], 2000),  # the answer is another continuation
        (IDS[:1700], 1699),
        (IDS[:900], 0),
        ([*IDS[:880], *IDS[:300]], 880),
    ):
        expected = answer(InferenceEngine(gemma, LENGTH, speculation=False), ids, 40)
        assert answer(engine, ids, 40) == expected
        assert engine.last_stats is not None
        assert engine.last_stats.cached_tokens == cached
    assert any(cache.ring_blocks for cache in engine.context.caches)


def test_speculation_gives_the_tokens_of_full_caches(gemma: Model) -> None:
    prompt = IDS[:40] * 30
    engine = InferenceEngine(gemma, LENGTH)
    tokens = answer(engine, prompt, 300)
    with BatchEngine(gemma, sequence_length=LENGTH, cache_tokens=LENGTH) as full:
        request = full.submit(prompt, 300, GREEDY)
        assert [step.token_id for step in request] == tokens


def test_a_prompt_cache_contains_what_the_ring_contains(
    gemma: Model, tmp_path: Path
) -> None:
    path = tmp_path / "a.cache"
    engine = InferenceEngine(gemma, LENGTH)
    answer(engine, IDS[:2000])
    save_prompt_cache(engine, path)
    expected = answer(engine, IDS[:2100])

    other = InferenceEngine(gemma, LENGTH)
    assert load_prompt_cache(other, path) == 2007
    assert answer(other, IDS[:2100]) == expected
    assert other.last_stats is not None
    assert other.last_stats.cached_tokens == 2000
    assert load_prompt_cache(other, path) == 2007
    assert answer(other, IDS[:700]) == answer(engine, IDS[:700])
    assert other.last_stats.cached_tokens == 0

    short = InferenceEngine(gemma, 1100)  # the blocks that fit have no windows
    assert load_prompt_cache(short, path) == 1024
    assert answer(short, IDS[:1024]) == answer(engine, IDS[:1024])

    with BatchEngine(gemma, sequence_length=LENGTH, cache_tokens=2 * LENGTH) as full:
        assert full.load_prompt_cache(path) == 2007
        for ids, cached in ((IDS[:700], 0), (IDS[:2100], 2000)):
            request = full.submit(ids, 8, GREEDY)
            assert [step.token_id for step in request] == answer(engine, ids)
            assert request.stats.cached_tokens == cached


def test_a_ring_is_pickled_and_rejects_what_it_does_not_contain() -> None:
    cache = ml.KeyValueCache(1000, 1, 4, ml.float32, ring_blocks=2)
    x = ml.Tensor.from_numpy(np.arange(2000, dtype=np.float32).reshape(500, 1, 4))
    assert cache.capacity == 512
    assert cache.keys.shape == (1, 32, 4, 16, 1)
    ml.write_cache(cache, 400, x.slice(0, 300), x.slice(0, 300))
    copy = pickle.loads(pickle.dumps(cache))
    for each in (cache, copy):
        keys, values = ml.read_cache(each, 400, 700)
        assert keys.numpy().tobytes() == x.numpy()[:300].tobytes()
        assert values.numpy().tobytes() == keys.numpy().tobytes()
    text = r"start must be >= the first position in the ring: 255, 256"
    with pytest.raises(ml.ShapeError, match=text):
        ml.read_cache(cache, 255, 700)
    with pytest.raises(ml.ShapeError, match=r"first position seen .*: 100, 256"):
        ml.write_cache(cache, 100, x, x)
    query = x.slice(0, 1)
    seen = ml.attention(query, cache, 699, window=300)
    assert seen.shape == (1, 1, 4)
    for window, first in ((None, 0), (445, 255)):
        with pytest.raises(ml.ShapeError, match=rf"first position seen .*: {first}, 256"):
            ml.attention(query, cache, 699, window=window)
    for blocks in (0, 4):
        with pytest.raises(ml.ShapeError, match=f"all positions 4: {blocks}"):
            ml.KeyValueCache(1000, 1, 4, ml.float32, ring_blocks=blocks)
