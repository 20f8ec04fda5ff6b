"""Files of PyTorch read by us, and files of the tests' writer read by PyTorch."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src.checkpoint import CheckpointError, read_pth
from tests.support.pth_writer import LazyArray, write_pth

torch = pytest.importorskip("torch", reason="needs the oracle extra")
pytestmark = pytest.mark.oracle

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def bits_of(tensor: Any) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_reads_as_saved(path: Path, saved: dict[str, Any]) -> None:
    ours = read_pth(path)
    theirs = torch.load(path, weights_only=True)
    assert list(ours) == list(theirs) == list(saved)
    for name, tensor in theirs.items():
        assert ours[name].shape == tuple(tensor.shape)
        assert ours[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
        assert np.ascontiguousarray(ours[name].numpy()).tobytes() == bits_of(tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_that_pytorch_saves_is_read_bit_for_bit(
    tmp_path: Path, dtype: str
) -> None:
    kind = getattr(torch, dtype)
    base = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1)).to(kind)
    base[0, 0, 0] = float("nan")
    saved = {
        "whole": base, "again": base, "row": base[1], "column": base[:, :, 2],
        "offset": base[1:, 2:, 3:], "steps": base[::2, ::3, ::4],
        "transposed": base.transpose(0, 2), "permuted": base.permute(2, 0, 1),
        "0-rank": base[1, 2, 3], "scalar": torch.tensor(1.5).to(kind),
        "empty": torch.empty(0, 3).to(kind), "empty view": base[:, 2:2],
        "no sizes but one": base[1:2, 3:4], "unsqueezed": base[0].unsqueeze(1),
        "parameter": torch.nn.Parameter(base[2].clone()),
        "parameter view": torch.nn.Parameter(base[2]),
        "frozen": torch.nn.Parameter(base[3], requires_grad=False),
        "windows": base.flatten().unfold(0, 4, 5), "5 dims": base.reshape(2, 2, 5, 3, 2),
    }  # fmt: skip
    torch.save(saved, tmp_path / "a.pth")
    assert_reads_as_saved(tmp_path / "a.pth", saved)
    torch.save(OrderedDict(saved), tmp_path / "b.pth")
    assert_reads_as_saved(tmp_path / "b.pth", saved)


def test_a_state_dict_with_its_metadata_is_read(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)).bfloat16()
    torch.save(module.state_dict(), tmp_path / "model.pth")
    assert_reads_as_saved(tmp_path / "model.pth", module.state_dict())


def test_more_tensors_than_a_byte_can_number_are_read(tmp_path: Path) -> None:
    saved = {
        f"layers.{number}.weight": torch.full((2, 3), float(number))
        for number in range(1500)
    }
    torch.save(saved, tmp_path / "model.pth")
    assert_reads_as_saved(tmp_path / "model.pth", saved)


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, tmp_path / "model.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    assert_reads_as_saved(tmp_path / "model.pth", {"a": None})


REFUSED = {
    "expanded": {"a": torch.ones(1).expand(1000)},
    "overlapping": {"a": torch.ones(9).unfold(0, 4, 1)},
    "double": {"a": torch.ones(2, dtype=torch.float64)},
    "complex": {"a": torch.ones(2, dtype=torch.complex64)},
    "negative bit": {"a": torch.ones(2, dtype=torch.complex64).conj().imag},
    "sparse": {"a": torch.eye(3).to_sparse()},
    "meta": {"a": torch.ones(2, device="meta")},
    "nested": {"model": {"a": torch.ones(2)}},
    "mixed": {"a": torch.ones(2), "epoch": 3},
    "module": torch.nn.Linear(2, 2),
    "dtype": {"a": torch.float32},
    "tuple key": {("a", 1): torch.ones(2)},
    "int key": {1: torch.ones(2)},
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_other_contents_are_refused_clearly(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="expected"):
        read_pth(tmp_path / "model.pth")


def test_the_format_from_before_zip_is_refused_by_its_kind(tmp_path: Path) -> None:
    torch.save(
        {"a": torch.ones(2)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )
    with pytest.raises(CheckpointError, match="from before the zip format"):
        read_pth(tmp_path / "old.pth")


@pytest.mark.parametrize("mapped", [False, True])
def test_pytorch_reads_what_the_writer_of_the_tests_wrote(
    tmp_path: Path, mapped: bool
) -> None:
    generator = np.random.default_rng(3)
    arrays = {
        f"{name} {shape}": np.frombuffer(
            generator.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype
        ).reshape(shape)
        for name, dtype in DTYPES.items()
        for shape in ((), (0,), (7,), (3, 4), (2, 3, 5), (300, 70))
    }
    write_pth(tmp_path / "model.pth", arrays)
    loaded = torch.load(tmp_path / "model.pth", weights_only=True, mmap=mapped)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert tuple(loaded[name].shape) == array.shape
        assert bits_of(loaded[name]) == array.tobytes()
    assert_reads_as_saved(tmp_path / "model.pth", arrays)


@pytest.mark.slow
def test_a_file_beyond_4_gib_of_pytorch_is_read_at_once(tmp_path: Path) -> None:
    large = torch.zeros((4 << 30) // 2 + 100, dtype=torch.bfloat16)
    large[-1] = 7
    torch.save(
        {"first": torch.ones(3), "large": large, "last": torch.ones(5)},
        tmp_path / "a.pth",
    )
    del large
    tensors = read_pth(tmp_path / "a.pth")
    assert tensors["large"].numpy()[-1] == 7
    assert tensors["last"].numpy().tolist() == [1] * 5


@pytest.mark.slow
def test_a_file_beyond_4_gib_of_the_writer_is_read_by_pytorch(tmp_path: Path) -> None:
    block = np.zeros(1 << 24, np.float16)
    count = (4 << 30) // block.nbytes + 1
    large = LazyArray(
        (block.size * count,), block.dtype, lambda: (block for _ in range(count))
    )
    write_pth(tmp_path / "a.pth", {"large": large, "last": np.ones(5, np.float32)})
    loaded = torch.load(tmp_path / "a.pth", weights_only=True, mmap=True)
    assert loaded["large"].shape == large.shape
    assert loaded["last"].tolist() == [1] * 5
    assert read_pth(tmp_path / "a.pth")["last"].numpy().tolist() == [1] * 5
