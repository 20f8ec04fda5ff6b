"""Prompt caches on disk: the same bits in another process, and nothing from a file that lies."""

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src import ml, trace
from src.inference import (
    BatchEngine,
    InferenceEngine,
    PromptCacheError,
    SamplingArgs,
    load_prompt_cache,
    save_prompt_cache,
)
from src.inference import prompt_cache as prompt_cache_module
from src.inference.prompt_cache import MAGIC
from src.model import Model, load_model
from src.trace.tracer import Tracer

GREEDY = SamplingArgs(temperature=0.0)
IDS = random.Random(1).choices(range(3000), k=600)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


@pytest.fixture(scope="module")
def saved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = InferenceEngine(model, 700)
    answer(engine)
    path = tmp_path_factory.mktemp("cache") / "a.cache"
    save_prompt_cache(engine, path)
    return path


def answer(engine: InferenceEngine, ids: list[int] = IDS) -> list[int]:
    return [step.token_id for step in engine.generate(ids, 8, GREEDY)]


def cache_bytes(engine: InferenceEngine, count: int) -> list[bytes]:
    pairs = (ml.read_cache(cache, 0, count) for cache in engine.context.caches)
    return [x.numpy().tobytes() for pair in pairs for x in pair]


def test_an_engine_begins_with_what_another_one_saved(model: Model, saved: Path) -> None:
    first = InferenceEngine(model, 700)
    expected = answer(first)
    engine = InferenceEngine(model, 700)
    count = load_prompt_cache(engine, saved)
    assert count == len(engine.cached_ids) == len(first.cached_ids) > 600
    assert cache_bytes(engine, count) == cache_bytes(first, count)
    assert answer(engine) == expected
    assert engine.last_stats is not None
    assert engine.last_stats.cached_tokens == 599
    assert saved.stat().st_mode & 0o077 == 0


def test_a_shorter_context_takes_the_blocks_that_fit(model: Model, saved: Path) -> None:
    engine = InferenceEngine(model, 520)
    assert load_prompt_cache(engine, saved) == 512
    assert engine.cached_ids == tuple(IDS[:512])


def test_prefixes_of_many_requests_survive_a_restart(model: Model, tmp_path: Path) -> None:
    texts = [IDS, [*IDS[:300], *IDS[:200]], IDS[::-1]]
    path = tmp_path / "b.cache"
    with BatchEngine(model, sequence_length=700, cache_tokens=4096) as engine:
        expected = [[s.token_id for s in engine.submit(ids, 8, GREEDY)] for ids in texts]
        blocks = engine.counters().blocks_cached
    engine.save_prompt_cache(path)  # also after close
    with BatchEngine(model, sequence_length=700, cache_tokens=4096) as engine:
        assert engine.load_prompt_cache(path) > 1400
        assert engine.counters().blocks_cached == blocks
        for ids, tokens in zip(texts, expected, strict=True):
            request = engine.submit(ids, 8, GREEDY)
            assert [step.token_id for step in request] == tokens
            assert request.stats.cached_tokens == len(ids) - 1
    with BatchEngine(model, sequence_length=700, cache_tokens=512) as engine:
        assert 0 < engine.load_prompt_cache(path) <= 512
        assert [s.token_id for s in engine.submit(texts[2][:400], 8, GREEDY)]
    alone = InferenceEngine(model, 700)
    assert load_prompt_cache(alone, path) > 500  # the first of the texts


def test_a_file_for_another_model_version_or_instruction_set_is_refused(
    model: Model, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InferenceEngine(load_model(quantize="int8"), 700)
    with pytest.raises(PromptCacheError, match=r"a\.cache: model: expected [0-9a-f]{64}, got "):
        load_prompt_cache(engine, saved)
    other_isa = ml.build_info() | {"isa": "abacus"}
    for place, name, value, key in (
        (prompt_cache_module, "__version__", "9.9", "version: expected 9.9"),
        (ml, "build_info", lambda: other_isa, "isa: expected abacus"),
    ):
        monkeypatch.setattr(place, name, value)
        with pytest.raises(PromptCacheError, match=key):
            load_prompt_cache(InferenceEngine(model, 700), saved)
        monkeypatch.undo()


def test_the_fingerprint_changes_with_the_files(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "weights"
    content = model.checkpoint.files[0].read_bytes()
    copy.write_bytes(content)
    os.utime(copy, (1, 1))
    monkeypatch.setattr(model.checkpoint, "files", [copy])
    before = prompt_cache_module.fingerprint(model)
    assert prompt_cache_module.fingerprint(model) == before
    os.utime(copy, (2, 2))
    assert prompt_cache_module.fingerprint(model) != before
    copy.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(copy, (1, 1))
    assert prompt_cache_module.fingerprint(model) != before


def rewritten(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Change the header of a file; what it says of the sizes stays true."""
    start = len(MAGIC) + 8
    end = start + int.from_bytes(content[len(MAGIC) : start], "little")
    header = json.loads(content[start:end])
    change(header)
    new = json.dumps(header).encode()
    return MAGIC + len(new).to_bytes(8, "little") + new + content[end:]


def set_block(number: int, key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda header: header["blocks"][number].update({key: value})


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "kind"),
    "another kind": (lambda c: b"PK" + c[2:], "kind: expected a prompt cache"),
    "a huge header": (lambda c: c[:8] + b"\xff" * 8 + c[16:], "header: expected at most"),
    "a header beyond the file": (
        lambda c: c[:8] + (len(c)).to_bytes(8, "little") + c[16:],
        "header: expected",
    ),
    "no JSON": (lambda c: c[:16] + b"\xff" + c[17:], "header: expected JSON"),
    "deep nesting": (
        lambda _: MAGIC + (10**6).to_bytes(8, "little") + b"[" * 10**6,
        "header: expected JSON, got .*(nesting|values)",
    ),
    "a list": (lambda _: MAGIC + (2).to_bytes(8, "little") + b"[]", "expected an object"),
    "a key too many": (lambda c: rewritten(c, lambda h: h.update(more=1)), "expected an object"),
    "blocks in an object": (lambda c: rewritten(c, lambda h: h.update(blocks={})), "a list"),
    "no block": (lambda c: rewritten(c, lambda h: h.update(blocks=[])), "size: expected"),
    "many blocks": (
        lambda c: rewritten(c, lambda h: h.update(blocks=[{"parent": -1}] * 9000)),
        "a list of at most 2048",
    ),
    "a block of another form": (
        lambda c: rewritten(c, lambda h: h["blocks"][0].pop("ids")),
        r"blocks\[0\]: expected an object",
    ),
    "a parent after it": (lambda c: rewritten(c, set_block(1, "parent", 1)), r"\[1\]\.parent"),
    "a parent below -1": (lambda c: rewritten(c, set_block(0, "parent", -2)), r"\[0\]\.parent"),
    "a parent that is true": (
        lambda c: rewritten(c, set_block(1, "parent", True)),
        r"\[1\]\.parent",
    ),
    "a parent that is not full": (
        lambda c: rewritten(c, set_block(0, "ids", [5])),
        r"\[1\]\.parent: expected a block of 256",
    ),
    "no tokens": (lambda c: rewritten(c, set_block(2, "ids", [])), r"\[2\]\.ids"),
    "too many tokens": (lambda c: rewritten(c, set_block(2, "ids", [5] * 257)), r"\[2\]\.ids"),
    "a token beyond the vocabulary": (
        lambda c: rewritten(c, set_block(2, "ids", [10**9])),
        r"\[2\]\.ids: expected numbers from 0 to",
    ),
    "a token that is no number": (lambda c: rewritten(c, set_block(2, "ids", [1.5])), "ids"),
    "fewer tokens": (lambda c: rewritten(c, set_block(2, "ids", [5])), "size: expected"),
    "cut": (lambda c: c[:-1], "size: expected"),
    "too long": (lambda c: c + b"x", "size: expected"),
    "other data": (lambda c: c[:-9] + bytes([c[-9] ^ 1]) + c[-8:], r"\[2\]: expected the data"),
    "another digest": (
        lambda c: rewritten(c, set_block(0, "sha256", None)),
        r"\[0\]: expected the data",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_is_refused_and_the_engine_works_on(
    name: str, model: Model, saved: Path, tmp_path: Path
) -> None:
    change, reason = HOSTILE[name]
    path = tmp_path / "b.cache"
    path.write_bytes(change(saved.read_bytes()))
    engine = InferenceEngine(model, 700)
    expected = answer(engine, IDS[:50])
    started = time.process_time()
    with pytest.raises(PromptCacheError, match=reason):
        load_prompt_cache(engine, path)
    assert time.process_time() - started < 1
    assert engine.cached_ids == ()
    assert answer(engine, IDS[:50]) == expected
    with BatchEngine(model, sequence_length=700, cache_tokens=2048) as many:
        with pytest.raises(PromptCacheError, match=reason):
            many.load_prompt_cache(path)
        assert [s.token_id for s in many.submit(IDS[:50], 8, GREEDY)] == expected


@pytest.mark.parametrize("cut", range(0, 4000, 97))
def test_a_file_that_ends_anywhere_is_refused(
    cut: int, model: Model, saved: Path, tmp_path: Path
) -> None:
    path = tmp_path / "b.cache"
    path.write_bytes(saved.read_bytes()[:cut])
    with pytest.raises(PromptCacheError):
        load_prompt_cache(InferenceEngine(model, 700), path)


def test_what_is_no_file_is_refused(model: Model, tmp_path: Path) -> None:
    engine = InferenceEngine(model, 64)
    os.mkfifo(tmp_path / "fifo")
    for name, found in (("none", "cannot be opened"), (".", "a directory"), ("fifo", "a FIFO")):
        with pytest.raises(PromptCacheError, match=found):
            load_prompt_cache(engine, tmp_path / name)
    for target in (tmp_path / "no" / "a", Path("a\0b")):
        with pytest.raises(PromptCacheError, match="cannot be written"):
            save_prompt_cache(engine, target)
    assert sorted(os.listdir(tmp_path)) == ["fifo"]


def test_a_large_hostile_header_takes_little_memory(tmp_path: Path, saved: Path) -> None:
    content = rewritten(saved.read_bytes(), lambda h: h.update(blocks=[[7] * 800_000]))
    path = tmp_path / "b.cache"
    path.write_bytes(content)
    code = f"""
import resource
from pathlib import Path
from src.inference import InferenceEngine, PromptCacheError, load_prompt_cache
from src.model import load_model
engine = InferenceEngine(load_model(), 700)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_prompt_cache(engine, Path({str(path)!r}))
except PromptCacheError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert 0 <= int(done.stdout) < 64 << 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


def test_tokens_of_a_traced_run_are_not_saved(model: Model, tmp_path: Path) -> None:
    engine = InferenceEngine(model, 700)
    trace.start(Tracer(model.args.sizes, lambda _event: None))
    try:
        answer(engine, IDS[:20])
    finally:
        trace.stop()
    with pytest.raises(PromptCacheError, match="ran under a trace"):
        save_prompt_cache(engine, tmp_path / "a")
    answer(engine, IDS[30:50])
    save_prompt_cache(engine, tmp_path / "a")
    assert load_prompt_cache(engine, tmp_path / "a") >= 20
