"""The forecast of memory: its arithmetic, and that it needs no weights."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import pytest

from src import ml
from src.model import (
    InferenceContext,
    NotEnoughMemoryError,
    find_source,
    forecast_memory,
    kv_cache_bytes,
    load_model,
)
from src.model.forecast import MemoryForecast
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_gguf import write as write_gguf
from tests.model.tiny import GROUPED
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory

ARGS = GROUPED.args(ml.bfloat16)


def forecast_of(positions: int = 100, **changes: Any) -> MemoryForecast:
    given = MemoryForecast(ARGS, positions, 0, 0, "weights to be merged", None)
    return replace(given, **changes)


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("meta")
    write_random_meta_directory(directory, SMALL_PARAMS)
    return directory


def test_each_layout_is_told_as_it_turns_out(meta: Path, tmp_path: Path) -> None:
    hugging_face = write_tiny(tmp_path / "model", GROUPED, ml.bfloat16, shards=2)
    gguf = write_gguf(tmp_path / "a.gguf", GROUPED, ml_dtypes.bfloat16)
    for path in (meta, hugging_face, gguf):
        forecast = forecast_memory(path, 40, 4096)
        model = load_model(path)
        known = {} if path == gguf else {"vocab_size": model.args.vocab_size}
        assert replace(forecast.args, **known) == model.args
        assert forecast.positions == 40
        assert forecast.mapped == model.checkpoint.mapped_bytes
        assert forecast.copied == 0
        context = InferenceContext(model.args, 40)
        D = model.args.dim
        F = model.args.ffn_dim
        scratch = 40 * 4 * (4 * D + 3 * F)
        assert forecast.needed == context.nbytes + context.rotations.nbytes + scratch
        with pytest.raises(NotEnoughMemoryError):
            replace(forecast, free=10).check()


def test_without_a_wish_the_context_is_that_of_the_model_up_to_a_limit(
    meta: Path,
) -> None:
    assert forecast_memory(meta, None, 4096).positions == 4096
    assert forecast_memory(meta, None, 9999).positions == 8192
    # The bundled model.
    assert forecast_memory(None, None, 4096).args.max_context_length == 131072


def test_parts_of_a_model_count_as_copied(tmp_path: Path) -> None:
    write_random_meta_directory(tmp_path, SMALL_PARAMS, shards=2)
    forecast = forecast_memory(tmp_path, 16, 4096)
    assert forecast.mapped == 0
    assert forecast.copied == sum(file.stat().st_size for file in tmp_path.glob("*.pth"))
    assert load_model(tmp_path).checkpoint.mapped_bytes == 0


def test_no_weight_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(SMALL_PARAMS))
    (tmp_path / "consolidated.00.pth").touch()
    assert (
        kv_cache_bytes(forecast_memory(tmp_path, 16, 4096).args, 16)
        == 2 * 2 * 16 * 2 * 16 * 2
    )
    (tmp_path / "consolidated.00.pth").unlink()
    (tmp_path / "consolidated.00.pth").symlink_to(tmp_path / "absent")
    assert forecast_memory(tmp_path, 16, 4096).mapped == 0


def test_files_that_were_read_are_not_read_again(meta: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(meta, tmp_path / "model")
    files = find_source(directory)
    (directory / "params.json").unlink()
    read = forecast_memory(files, 16, 4096)
    reread = forecast_memory(meta, 16, 4096)
    assert read == replace(reread, free=read.free)  # other processes change what is free
    assert load_model(files).args == load_model(meta).args


def test_what_fits_exactly_is_accepted_and_a_byte_less_is_refused_with_the_arithmetic() -> (
    None
):
    cache = 2 * 2 * 112 * 2 * 8 * 2
    table = 100 * 4 * 8
    scratch = 100 * 4 * (4 * 64 + 3 * 90)
    needed = cache + table + scratch
    assert forecast_of().needed == needed
    forecast_of(free=needed).check()
    forecast_of(free=None).check()
    with pytest.raises(NotEnoughMemoryError) as refusal:
        forecast_of(free=needed - 1).check()
    assert str(refusal.value) == (
        "memory: expected at most 222.6 KiB available, got 222.6 KiB = 14.0 KiB of keys "
        "and values (2 * 2 layers * 100 positions * 2 heads * 8 * 2 bytes) + 3.1 KiB of "
        "rotary table + 205.5 KiB of intermediate results; a context of 99 would "
        "fit"
    )
    with pytest.raises(
        NotEnoughMemoryError, match=r"= 2\.0 KiB of weights to be merged \+ 14"
    ):
        forecast_of(copied=2048, free=needed).check()
    with pytest.raises(
        NotEnoughMemoryError, match=r"of intermediate results$"
    ):  # none would fit
        forecast_of(free=2000).check()


@pytest.mark.parametrize("free", [1 << 20, 3 << 20, (3 << 20) + 4321])
def test_the_context_that_is_said_to_fit_is_accepted_and_one_position_more_is_refused(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    args = replace(ARGS, max_context_length=1 << 20)
    monkeypatch.setattr("src.memory.available_memory", lambda: free)
    named = set()
    for refuse in (
        lambda length: forecast_of(length, args=args, free=free).check(),
        lambda length: forecast_of(
            length, args=args, free=free + 500, copied=500
        ).check(),
        lambda length: InferenceContext(args, length),
    ):
        with pytest.raises(
            NotEnoughMemoryError, match=r"; a context of \d+ would fit$"
        ) as caught:
            refuse(1 << 20)
        fitting = int(str(caught.value).split()[-3])
        named.add(fitting)
        refuse(fitting)
        with pytest.raises(
            NotEnoughMemoryError, match=f"; a context of {fitting} would fit$"
        ):
            refuse(fitting + 1)
    assert len(named) == 1


def test_mapped_weights_beyond_the_memory_are_a_warning_not_a_refusal() -> None:
    needed = forecast_of().needed
    free = needed + 1024
    assert forecast_of(mapped=1024, free=free).warning is None
    assert forecast_of(mapped=1 << 30, free=None).warning is None
    forecast = forecast_of(mapped=1025, free=free)
    forecast.check()
    assert forecast.warning is not None
    assert "1.0 KiB of mapped weights + 222.6 KiB of other data" in forecast.warning
    assert "more than the 223.6 KiB available" in forecast.warning
