"""Opening a model directory in Meta's layout, whole or in shards."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError, open_meta_checkpoint
from src.checkpoint.errors import FileAccessError, FileChangedError, ParamsError, ShardError
from src.model.args import args_from_params
from tests.support.open_directory import open_meta
from tests.support.pth_writer import LazyArray, whole, write_random_meta_directory

PARAMS = {
    "dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 40,
    "multiple_of": 24,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "model"


def assert_same(directory: Path, expected: dict[str, LazyArray]) -> None:
    checkpoint = open_meta(directory)
    assert checkpoint.tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert checkpoint.tensors[name].numpy().tobytes() == whole(array).tobytes()
    checkpoint.close()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("tied", [False, True])
def test_a_directory_of_one_file_is_opened(directory: Path, dtype: type, tied: bool) -> None:
    assert_same(directory, write_random_meta_directory(directory, PARAMS, dtype=dtype, tied=tied))


def test_a_single_file_is_mapped_also_where_shards_would_be_merged_one_by_one(
    directory: Path,
) -> None:
    write_random_meta_directory(directory, PARAMS)
    checkpoint = open_meta(directory, one_by_one=True)
    assert checkpoint.source_format == "Meta, a PyTorch file"
    name = next(iter(checkpoint.tensors))
    assert checkpoint.tensors[name] is checkpoint.tensors[name]
    assert not checkpoint.tensors[name].is_writable


def test_only_files_of_shards_are_let_go_when_other_tensors_take_their_place(
    directory: Path,
) -> None:
    """Tensors that stay may lie in the single file; of shards all were copied."""
    for shards, left in ((1, 1), (2, 0)):
        write_random_meta_directory(directory, PARAMS, shards=shards)
        checkpoint = open_meta(directory, one_by_one=True)
        assert len(checkpoint.mapped) == shards
        checkpoint.replace_tensors({})
        assert len(checkpoint.mapped) == left
        checkpoint.close()
        assert checkpoint.mapped_bytes == 0


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("embeddings", [0, 1])
def test_a_directory_of_shards_is_merged(directory: Path, shards: int, embeddings: int) -> None:
    expected = write_random_meta_directory(
        directory, PARAMS, shards=shards, embeddings_split=embeddings
    )
    assert_same(directory, expected)


def test_what_was_opened_is_told(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS)
    checkpoint = open_meta(directory)
    assert checkpoint.files == [directory / "consolidated.00.pth"]
    assert checkpoint.mapped_bytes == checkpoint.files[0].stat().st_size
    assert checkpoint.sizes == args_from_params(PARAMS).tensor_sizes
    assert set(checkpoint.dtypes.values()) == {ml.bfloat16}
    merged = directory.parent / "shards"
    write_random_meta_directory(merged, PARAMS, shards=2)
    checkpoint = open_meta(merged)
    assert [path.name for path in checkpoint.files] == [
        "consolidated.00.pth",
        "consolidated.01.pth",
    ]
    assert checkpoint.mapped_bytes == 0


def test_t5_one_shard_alone_is_refused(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS, shards=4)
    for number in (1, 2, 3):
        (directory / f"consolidated.{number:02d}.pth").unlink()
    with pytest.raises(ShardError, match=r"expected 4, got 1, .* \(missing 01, 02, 03\)"):
        open_meta(directory)


def test_t5_a_gap_in_the_numbers_is_refused_by_number(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS, shards=4)
    (directory / "consolidated.00.pth").unlink()
    (directory / "consolidated.02.pth").unlink()
    with pytest.raises(ShardError, match="no number 00, 02"):
        open_meta(directory)


def test_a_directory_without_its_files_is_refused(directory: Path) -> None:
    sizes = args_from_params(PARAMS).tensor_sizes
    with pytest.raises(FileAccessError, match="No such file"):
        open_meta_checkpoint(directory, 2, sizes)
    directory.mkdir()
    with pytest.raises(ShardError, match=r"expected consolidated\.00\.pth and params\.json"):
        open_meta_checkpoint(directory, 2, sizes)
    write_random_meta_directory(directory, PARAMS)
    (directory / "params.json").unlink()
    with pytest.raises(FileAccessError, match=r"params\.json: cannot be opened"):
        open_meta(directory)
    with pytest.raises(FileAccessError, match="Not a directory"):
        open_meta_checkpoint(directory / "consolidated.00.pth", 2, sizes)
    with pytest.raises(FileAccessError, match="not a usable path"):
        open_meta_checkpoint(directory / "a\0b", 2, sizes)


def test_c1_bad_parameters_are_refused_before_any_weight_file_is_opened(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS)
    (directory / "consolidated.00.pth").write_bytes(b"never read")
    (directory / "params.json").write_text(json.dumps(PARAMS | {"n_layers": 10**9}))
    with pytest.raises(ParamsError, match="n_layers"):
        open_meta(directory)


def test_c1_parameters_that_contradict_the_tensors_are_refused(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS)
    open_meta(directory)
    for change in ({"dim": 48}, {"n_layers": 3}, {"n_kv_heads": 4}, {"vocab_size": 41}):
        (directory / "params.json").write_text(json.dumps(PARAMS | change))
        with pytest.raises(ShardError):
            open_meta(directory)


def test_nothing_stays_open_after_a_refusal_and_after_closing(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS, shards=2)
    before = set(os.listdir("/proc/self/fd"))
    damaged = (directory / "consolidated.01.pth").read_bytes()
    (directory / "consolidated.01.pth").write_bytes(damaged[:-1])
    with pytest.raises(CheckpointError, match=r"consolidated\.01\.pth"):
        open_meta(directory)
    (directory / "consolidated.01.pth").write_bytes(damaged)
    open_meta(directory).close()
    single = directory.parent / "single"
    write_random_meta_directory(single, PARAMS)
    checkpoint = open_meta(single)
    kept = checkpoint.tensors["norm.weight"]
    checkpoint.close()
    assert (checkpoint.tensors, checkpoint.mapped_bytes) == ({}, 0)
    assert kept.numpy().shape == (24,)
    del kept
    assert set(os.listdir("/proc/self/fd")) == before


def test_f1_a_file_changed_while_in_use_is_noticed(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS)
    checkpoint = open_meta(directory)
    checkpoint.check_unchanged()
    os.truncate(checkpoint.files[0], 100)
    with pytest.raises(FileChangedError, match="truncated"):
        checkpoint.check_unchanged()


def test_f1_a_file_replaced_while_in_use_works_on(directory: Path) -> None:
    expected = write_random_meta_directory(directory, PARAMS)
    checkpoint = open_meta(directory)
    checkpoint.files[0].unlink()
    write_random_meta_directory(directory, PARAMS, seed=2)
    checkpoint.check_unchanged()
    norm = checkpoint.tensors["norm.weight"].numpy()
    assert norm.tobytes() == whole(expected["norm.weight"]).tobytes()
