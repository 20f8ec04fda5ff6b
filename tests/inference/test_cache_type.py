"""A KV cache in q8_0: chosen for a model, with the same bits however it is used."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.inference import (
    BatchEngine,
    InferenceEngine,
    PromptCacheError,
    SamplingArgs,
    load_prompt_cache,
    save_prompt_cache,
)
from src.model import (
    InferenceContext,
    MemoryForecast,
    Model,
    ModelError,
    forecast_memory,
    kv_cache_bytes,
    load_model,
)
from tests.model.tiny import GROUPED, write_meta_directory

IDS = [(7 * n) % 3000 for n in range(300)]
GREEDY = SamplingArgs(temperature=0.0)


@pytest.fixture(scope="module")
def coded() -> Model:
    return load_model(cache_type="q8_0")


def logits_of(model: Model, chunk: int, attention: str = "fused") -> list[bytes]:
    """Return the logits of all positions, from a prompt in chunks."""
    context = InferenceContext(model.args, len(IDS), attention)
    found = []
    for start in range(0, len(IDS), chunk):
        ids = IDS[start : start + chunk]
        logits = model.transformer.forward(context, ids, start, all_positions=True)
        found += [row.tobytes() for row in logits.numpy()]
    return found


def test_the_type_is_a_size_of_the_model_and_in_its_description(
    bundled: Model, coded: Model
) -> None:
    assert (bundled.args.cache_type, coded.args.cache_type) == ("plain", "q8_0")
    assert bundled.args.cache_dtype is bundled.args.dtype
    assert coded.args.cache_dtype is ml.CACHE_Q8_0
    assert "keys and values in q8_0" in coded.description.split("; ")
    assert "keys and values" not in bundled.description


def test_the_memory_is_34_of_64_bytes_in_the_cache_and_in_the_forecast(
    bundled: Model, coded: Model
) -> None:
    for length in (1, 100, 4096):
        plain, small = (kv_cache_bytes(m.args, length) for m in (bundled, coded))
        assert small == plain * 34 / 64
    assert InferenceContext(coded.args, 100).nbytes == kv_cache_bytes(coded.args, 100)
    [text, *_] = MemoryForecast(coded.args, 100).parts
    assert text.endswith("* 34/32 bytes)")
    assert forecast_memory(None, 100, 4096, cache_type="q8_0").args == coded.args


def test_chunks_threads_and_forms_of_attention_give_the_same_bits(
    bundled: Model, coded: Model
) -> None:
    threads = ml.get_num_threads()
    expected = logits_of(coded, 300)
    assert logits_of(coded, 7) == expected
    assert logits_of(coded, 128, "eager") == expected
    try:
        ml.set_num_threads(threads % 3 + 1)
        assert logits_of(coded, 100) == expected
    finally:
        ml.set_num_threads(threads)
    plain, rounded = (
        np.frombuffer(b"".join(rows), np.float32)
        for rows in (logits_of(bundled, 300), expected)
    )
    error = np.sqrt(np.mean((rounded - plain) ** 2) / np.mean(plain**2))
    assert 2.0**-12 < error < 2.0**-4


def test_requests_of_a_batch_and_a_reused_prefix_have_the_tokens_of_one(
    coded: Model, tmp_path: Path
) -> None:
    texts = [IDS, [*IDS[:270], 5, 6], IDS[::-1]]
    alone = InferenceEngine(coded, 400)
    expected = [[s.token_id for s in alone.generate(ids, 8, GREEDY)] for ids in texts]
    with BatchEngine(coded, sequence_length=400, cache_tokens=2048) as engine:
        requests = [engine.submit(ids, 8, GREEDY) for ids in texts]
        assert [[s.token_id for s in request] for request in requests] == expected
        engine.save_prompt_cache(tmp_path / "a")
    with BatchEngine(coded, sequence_length=400, cache_tokens=2048) as engine:
        assert engine.load_prompt_cache(tmp_path / "a") > 300
        request = engine.submit(texts[1], 8, GREEDY)
        assert [s.token_id for s in request] == expected[1]
        assert request.stats.cached_tokens == len(texts[1]) - 1


def test_a_prompt_cache_of_another_type_is_refused(
    bundled: Model, coded: Model, tmp_path: Path
) -> None:
    models = {"bfloat16": bundled, "q8_0": coded}
    for name, model in models.items():
        engine = InferenceEngine(model, 64)
        list(engine.generate(IDS[:20], 2, GREEDY))
        save_prompt_cache(engine, tmp_path / name)
        assert load_prompt_cache(InferenceEngine(model, 64), tmp_path / name) > 20
    for name, other in (("bfloat16", "q8_0"), ("q8_0", "bfloat16")):
        engine = InferenceEngine(models[name], 64)
        with pytest.raises(
            PromptCacheError, match=f"cache: expected {name}, got '{other}'"
        ):
            load_prompt_cache(engine, tmp_path / other)


def test_heads_that_are_no_whole_blocks_and_unknown_types_are_refused(
    tmp_path: Path,
) -> None:
    directory = write_meta_directory(tmp_path, replace(GROUPED), ml.float32)
    with pytest.raises(ModelError, match="cache_type: expected plain, because heads of"):
        load_model(directory, cache_type="q8_0")
    with pytest.raises(ModelError, match="cache_type: expected one of plain, q8_0, got"):
        load_model(cache_type="q4_0")
