"""The forecast of memory: its arithmetic, and that it needs no weights."""

import json
from pathlib import Path

import pytest

from src import ml
from src.model import (
    InferenceContext,
    ModelConfigError,
    NotEnoughMemoryError,
    forecast_memory,
    kv_cache_bytes,
    load_model,
)
from src.model.forecast import MemoryForecast
from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import GROUPED
from tests.support.pth_writer import write_random_meta_directory

PARAMS = {
    "dim": 64, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 96, "multiple_of": 32,
    "norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip


def forecast_of(**changes: object) -> MemoryForecast:
    given = {
        "longest": 100, "positions": 100, "mapped": 0, "copied": 0, "cache": 1000,
        "cache_sizes": "a * b", "scratch": 24, "free": 2048,
    }  # fmt: skip
    return MemoryForecast(**(given | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("meta")
    write_random_meta_directory(directory, PARAMS)
    return directory


def test_both_layouts_are_told_as_they_turn_out(meta: Path, tmp_path: Path) -> None:
    hugging_face = write_tiny(tmp_path / "model", GROUPED, ml.bfloat16, shards=2)
    for directory in (meta, hugging_face):
        forecast = forecast_memory(directory, 40, 4096)
        model = load_model(directory)
        assert forecast.longest == model.args.max_context_length
        assert forecast.positions == 40
        assert forecast.mapped == model.mapped_bytes
        assert forecast.copied == 0
        assert forecast.cache == kv_cache_bytes(model.args, 40)
        assert forecast.cache == InferenceContext(model.args, 40).nbytes
        D, F = model.args.dim, model.args.ffn_dim
        assert forecast.scratch == 40 * 4 * (4 * D + 3 * F)


def test_without_a_wish_the_context_is_that_of_the_model_up_to_a_limit(meta: Path) -> None:
    assert forecast_memory(meta, None, 4096).positions == 4096
    assert forecast_memory(meta, None, 9999).positions == 8192


def test_the_bundled_model_needs_no_name() -> None:
    assert forecast_memory(None, None, 4096).longest == 131072


def test_parts_of_a_model_count_as_copied(tmp_path: Path) -> None:
    write_random_meta_directory(tmp_path, PARAMS, shards=2)
    forecast = forecast_memory(tmp_path, 16, 4096)
    assert forecast.mapped == 0
    assert forecast.copied == sum(file.stat().st_size for file in tmp_path.glob("*.pth"))
    assert load_model(tmp_path).mapped_bytes == 0


def test_no_weight_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    (tmp_path / "consolidated.00.pth").touch()
    assert forecast_memory(tmp_path, 16, 4096).cache == 3 * 2 * 16 * 2 * 16 * 2
    (tmp_path / "consolidated.00.pth").unlink()
    (tmp_path / "consolidated.00.pth").symlink_to(tmp_path / "absent")
    assert forecast_memory(tmp_path, 16, 4096).mapped == 0


def test_an_error_of_the_parameters_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(PARAMS | {"max_seq_len": None}))
    with pytest.raises(ModelConfigError, match=f"{tmp_path}: max_seq_len: expected a whole number"):
        forecast_memory(tmp_path, 16, 4096)


def test_what_fits_exactly_is_accepted_and_a_byte_less_is_refused_with_the_arithmetic() -> None:
    forecast_of(free=1024).check()
    forecast_of(free=None).check()
    with pytest.raises(NotEnoughMemoryError) as refusal:
        forecast_of(free=1023).check()
    assert str(refusal.value) == (
        "memory: expected at most 1023 B available, got 1.0 KiB = 1000 B of keys and values "
        "(a * b) + 24 B of intermediate results; a context of 99 would fit"
    )
    with pytest.raises(NotEnoughMemoryError, match=r"got 3\.0 KiB = 2\.0 KiB of weights to be mer"):
        forecast_of(copied=2048).check()


def test_mapped_weights_beyond_the_memory_are_a_warning_not_a_refusal() -> None:
    assert forecast_of(mapped=1024).warning is None
    assert forecast_of(mapped=1 << 30, free=None).warning is None
    forecast = forecast_of(mapped=1025)
    forecast.check()
    assert forecast.warning is not None
    assert "1.0 KiB of mapped weights + 1.0 KiB of other data" in forecast.warning
    assert "more than the 2.0 KiB available" in forecast.warning
