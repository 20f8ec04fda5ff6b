"""Prompt caches on disk: the same bits in another process, and nothing from a file that
lies.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.safetensors import SafetensorsFile
from src.inference import (
    BatchEngine,
    InferenceEngine,
    PromptCacheError,
    SamplingArgs,
    load_prompt_cache,
    save_prompt_cache,
)
from src.inference import prompt_cache as prompt_cache_module
from src.model import Model, load_model
from tests.support.bounds import check_bounds
from tests.support.safetensors_writer import file_bytes, write_safetensors
from tools.runs import recorded

GREEDY = SamplingArgs(temperature=0.0)
IDS = random.Random(1).choices(range(3000), k=600)


@pytest.fixture(scope="module")
def saved(bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = InferenceEngine(bundled, 700)
    answer(engine)
    path = tmp_path_factory.mktemp("cache") / "a.cache"
    save_prompt_cache(engine, path)
    return path


def answer(engine: InferenceEngine, ids: list[int] = IDS) -> list[int]:
    return [step.token_id for step in engine.generate(ids, 8, GREEDY)]


def cache_bytes(engine: InferenceEngine, count: int) -> list[bytes]:
    pairs = (ml.read_cache(cache, 0, count) for cache in engine.context.caches)
    return [x.numpy().tobytes() for pair in pairs for x in pair]


def test_an_engine_begins_with_what_another_one_saved(bundled, saved):
    first = InferenceEngine(bundled, 700)
    expected = answer(first)
    engine = InferenceEngine(bundled, 700)
    count = load_prompt_cache(engine, saved)
    assert count == len(engine.cached_ids) == len(first.cached_ids) > 600
    assert cache_bytes(engine, count) == cache_bytes(first, count)
    assert answer(engine) == expected
    assert engine.last_stats.cached_tokens == 599
    assert saved.stat().st_mode & 0o077 == 0


def test_nothing_is_saved_and_read_as_nothing(bundled, tmp_path):
    save_prompt_cache(InferenceEngine(bundled, 64), tmp_path / "a")
    assert load_prompt_cache(InferenceEngine(bundled, 64), tmp_path / "a") == 0


def test_a_shorter_context_takes_the_blocks_that_fit(bundled, saved):
    engine = InferenceEngine(bundled, 520)
    assert load_prompt_cache(engine, saved) == 512
    assert engine.cached_ids == tuple(IDS[:512])


def test_prefixes_of_many_requests_survive_a_restart(bundled, tmp_path):
    texts = [IDS, [*IDS[:300], *IDS[:200]], IDS[::-1]]
    path = tmp_path / "b.cache"
    with BatchEngine(bundled, sequence_length=700, cache_tokens=4096) as engine:
        expected = [[s.token_id for s in engine.submit(ids, 8, GREEDY)] for ids in texts]
        blocks = engine.counters().blocks_cached
    engine.save_prompt_cache(path)  # also after close
    with BatchEngine(bundled, sequence_length=700, cache_tokens=4096) as engine:
        assert engine.load_prompt_cache(path) > 1400
        assert engine.counters().blocks_cached == blocks
        for ids, tokens in zip(texts, expected, strict=True):
            request = engine.submit(ids, 8, GREEDY)
            assert [step.token_id for step in request] == tokens
            assert request.stats.cached_tokens == len(ids) - 1
    with BatchEngine(bundled, sequence_length=700, cache_tokens=512) as engine:
        assert 0 < engine.load_prompt_cache(path) <= 512
        assert [s.token_id for s in engine.submit(texts[2][:400], 8, GREEDY)]
    alone = InferenceEngine(bundled, 700)
    assert load_prompt_cache(alone, path) > 500  # the first of the texts


def test_a_file_for_another_model_version_or_instruction_set_is_refused(
    bundled, saved, monkeypatch
):
    engine = InferenceEngine(load_model(rope_scaling_factor=4.0), 700)
    with pytest.raises(
        PromptCacheError, match=r"a\.cache: model: expected [0-9a-f]{64}, got "
    ):
        load_prompt_cache(engine, saved)
    other_isa = ml.build_info() | {"isa": "abacus"}
    for place, name, value, key in (
        (prompt_cache_module, "__version__", "9.9", "version: expected 9.9"),
        (ml, "build_info", lambda: other_isa, "isa: expected abacus"),
    ):
        monkeypatch.setattr(place, name, value)
        with pytest.raises(PromptCacheError, match=key):
            load_prompt_cache(InferenceEngine(bundled, 700), saved)
        monkeypatch.undo()


def test_a_file_of_other_activations_is_refused(tmp_path):
    models = [load_model(quantize="int8", activations=bits) for bits in ("int16", "int8")]
    paths = [tmp_path / model.activations for model in models]
    for model, path in zip(models, paths, strict=True):
        engine = InferenceEngine(model, 64)
        answer(engine, IDS[:20])
        save_prompt_cache(engine, path)
    assert load_prompt_cache(InferenceEngine(models[1], 64), paths[1]) > 20
    with pytest.raises(PromptCacheError, match="activations: expected int8, got 'int16'"):
        load_prompt_cache(InferenceEngine(models[1], 64), paths[0])
    with pytest.raises(PromptCacheError, match="activations: expected int16, got 'int8'"):
        load_prompt_cache(InferenceEngine(models[0], 64), paths[1])


def test_the_identity_changes_with_the_files(bundled, tmp_path, monkeypatch):
    copy = tmp_path / "weights"
    content = bundled.checkpoint.files[0].read_bytes()
    copy.write_bytes(content)
    os.utime(copy, (1, 1))
    monkeypatch.setattr(bundled.checkpoint, "files", [copy])
    before = prompt_cache_module.compatibility_header(bundled)
    assert prompt_cache_module.compatibility_header(bundled) == before
    os.utime(copy, (2, 2))
    assert prompt_cache_module.compatibility_header(bundled) != before
    copy.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(copy, (1, 1))
    assert prompt_cache_module.compatibility_header(bundled) != before


def rewrite(
    path: Path, content: bytes, change: Callable[[dict[str, Any]], object]
) -> None:
    """Write a file with changed tensors; what it says of the sizes stays true."""
    path.write_bytes(content)
    source = SafetensorsFile(path)
    arrays = {name: entry.make().numpy().copy() for name, entry in source.entries.items()}
    change(arrays)
    if arrays.get("sha256", 0) is None:
        arrays["sha256"] = right_digests(arrays, source.metadata)
    write_safetensors(path, arrays, source.metadata)


def right_digests(arrays: dict[str, Any], metadata: dict[str, str]) -> np.ndarray:
    """Return the digests that a program without a secret can compute, too."""
    digests: list[bytes] = []
    stop = 0
    layers = len(arrays["rows"]) // len(arrays["ids"])
    for parent, length, _ in arrays["blocks"].tolist():
        start = stop
        stop = stop + length
        before = b"" if parent == -1 else digests[parent]
        ids = arrays["ids"][start:stop].tolist()
        rows = arrays["rows"][layers * start : layers * stop].tobytes()
        digests.append(prompt_cache_module._digest(metadata, before, ids, rows))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def put(name: str, index: Any, value: int) -> Callable[[dict[str, Any]], object]:
    return lambda arrays: arrays[name].__setitem__(index, value)


def many_blocks(arrays: dict[str, Any]) -> None:
    for name in ("blocks", "sha256"):
        arrays[name].resize((9000, arrays[name].shape[1]), refcheck=False)


def split_last(arrays: dict[str, Any]) -> None:
    """Make two of the last block, with digests that are right."""
    lengths = [*arrays["blocks"][:-1, 1], 50, arrays["blocks"][-1, 1] - 50]
    arrays["blocks"] = np.int32([(at - 1, n, 1) for at, n in enumerate(lengths)])
    arrays["sha256"] = None


def swap_first_blocks(arrays: dict[str, Any]) -> None:
    """Exchange the first two blocks, each with its digest."""
    layers = len(arrays["rows"]) // len(arrays["ids"])
    for name, size in (("ids", 256), ("rows", 256 * layers)):
        first, second, rest = np.split(arrays[name], [size, 2 * size])
        arrays[name] = np.concatenate([second, first, rest])
    arrays["sha256"][:2] = arrays["sha256"][[1, 0]]


def misaligned(content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    return length_of(content, size + 1)[: 8 + size] + b" " + content[8 + size :]


def length_of(content: bytes, length: int) -> bytes:
    return length.to_bytes(8, "little") + content[8:]


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "kind: expected a safetensors file"),
    "a huge header": (lambda c: length_of(c, 1 << 60), "header length: expected at most"),
    "deep nesting": (
        lambda _: file_bytes(b'{"a":' + b"[" * 10**6),
        "header: .*(nesting|values)",
    ),
    "many values": (
        lambda _: file_bytes(b'{"__metadata__":{"blocks":[' + b"7," * 800_000 + b"7]}}"),
        "__metadata__: expected a map of text to text, got a list",
    ),
    "another safetensors file": (
        lambda _: file_bytes(b"{}"),
        "version: expected .*, got ''",
    ),
    "misaligned tensors": (misaligned, "tensors: expected"),
    "cut": (lambda c: c[:-1], r"data_offsets: expected \[begin, end\]"),
}
# The same of files of which a tensor is changed.
WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a tensor too many": (
        lambda a: a.update(more=np.zeros(1, np.uint8)),
        "tensors: expected",
    ),
    "a tensor too few": (lambda a: a.pop("ids"), "tensors: expected"),
    "rows too few": (
        lambda a: a.update(rows=a["rows"][:-1]),
        r"\[2\]: rows: expected at most \d+ in all, got",
    ),
    "a wrong flag": (put("blocks", (1, 2), 2), r"\[1\]: windows: expected 0 or 1, got 2"),
    "many blocks": (many_blocks, "at most 2048 blocks"),
    "a parent after it": (put("blocks", (1, 0), 1), r"\[1\]: parent"),
    "a parent below -1": (put("blocks", (0, 0), -2), r"\[0\]: parent"),
    "a parent that is not full": (
        split_last,
        r"\[3\]: parent: expected -1 or a full block before it, got 2",
    ),
    "no tokens": (put("blocks", (2, 1), 0), r"\[2\]: length"),
    "a length below 0": (put("blocks", (2, 1), -5), r"\[2\]: length"),
    "too many tokens": (put("blocks", (2, 1), 257), r"\[2\]: length"),
    "fewer tokens": (put("blocks", (2, 1), 5), r"\[2\]: sha256: expected the digest"),
    "a token beyond the vocabulary": (
        put("ids", -1, 10**9),
        r"\[2\]: ids: expected 0 to \d+, got \d+ to 1000000000",
    ),
    "a token below 0": (put("ids", 0, -1), r"\[0\]: ids: expected 0 to"),
    "another token": (put("ids", 300, 7), r"\[1\]: sha256: expected the digest"),
    "another order of blocks": (swap_first_blocks, r"\[0\]: sha256: expected the digest"),
    "another parent": (put("blocks", (2, 0), 0), r"\[2\]: sha256: expected the digest"),
    "other data": (put("rows", -1, 7), r"\[2\]: sha256: expected the digest"),
    "another digest": (put("sha256", 0, 7), r"\[0\]: sha256: expected the digest"),
}


@pytest.mark.parametrize("name", [*HOSTILE, *WRONG])
def test_a_damaged_file_is_refused_and_the_engine_works_on(
    name, bundled, saved, tmp_path
):
    change, reason = (HOSTILE | WRONG)[name]
    content = saved.read_bytes()
    path = tmp_path / "b.cache"
    if name in HOSTILE:
        path.write_bytes(change(content))
    else:
        rewrite(path, content, change)
    engine = InferenceEngine(bundled, 700)
    expected = answer(engine, IDS[:50])

    def refuse() -> None:
        with pytest.raises(PromptCacheError, match=reason):
            load_prompt_cache(engine, path)

    check_bounds(refuse)
    assert engine.cached_ids == ()
    assert answer(engine, IDS[:50]) == expected
    with BatchEngine(bundled, sequence_length=700, cache_tokens=2048) as many:
        with pytest.raises(PromptCacheError, match=reason):
            many.load_prompt_cache(path)
        assert [s.token_id for s in many.submit(IDS[:50], 8, GREEDY)] == expected


@pytest.mark.parametrize("cut", range(0, 4000, 97))
def test_a_file_that_ends_anywhere_is_refused(cut, bundled, saved, tmp_path):
    path = tmp_path / "b.cache"
    path.write_bytes(saved.read_bytes()[:cut])
    with pytest.raises(PromptCacheError):
        load_prompt_cache(InferenceEngine(bundled, 700), path)


def test_a_file_that_is_truncated_while_it_is_read_is_refused(bundled, saved, tmp_path):
    """Otherwise the process would end by SIGBUS."""
    path = tmp_path / "b.cache"
    path.write_bytes(saved.read_bytes())
    blocks = prompt_cache_module.read_blocks(path, bundled)
    assert len(list(prompt_cache_module.read_blocks(saved, bundled))) == 3
    next(blocks)
    os.truncate(path, 4096)
    with pytest.raises(PromptCacheError, match=r"b\.cache: "):
        next(blocks)


def test_what_is_no_file_is_refused(bundled, tmp_path):
    engine = InferenceEngine(bundled, 64)
    os.mkfifo(tmp_path / "fifo")
    for name, found in (
        ("none", "cannot be opened"),
        (".", "a directory"),
        ("fifo", "a FIFO"),
    ):
        with pytest.raises(PromptCacheError, match=found):
            load_prompt_cache(engine, tmp_path / name)
    for target in (tmp_path / "no" / "a", Path("a\0b")):
        with pytest.raises(PromptCacheError, match="cannot be written"):
            save_prompt_cache(engine, target)
    assert sorted(os.listdir(tmp_path)) == ["fifo"]


def test_tokens_of_a_traced_run_are_saved(bundled, tmp_path):
    engine = InferenceEngine(bundled, 700)
    with recorded(bundled.args):
        answer(engine, IDS[:20])
    save_prompt_cache(engine, tmp_path / "traced")
    engine.reset()
    answer(engine, IDS[:20])
    save_prompt_cache(engine, tmp_path / "plain")
    assert (tmp_path / "traced").read_bytes() == (tmp_path / "plain").read_bytes()
    assert load_prompt_cache(engine, tmp_path / "traced") >= 20
