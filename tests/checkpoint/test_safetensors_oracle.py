"""Files of the safetensors package read by us, and files of the tests' writer read by
it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.checkpoint import CheckpointError, read_safetensors
from src.checkpoint.safetensors import SafetensorsFile
from tests.support.safetensors_writer import file_bytes, write_safetensors

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("safetensors", reason="needs the oracle extra")

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import load_file, save_file

from tests.checkpoint.test_safetensors import BAD, DATA, GOOD, arrays

pytestmark = pytest.mark.oracle
INTEGERS = ("int64", "int32", "int8", "uint8", "uint16")
DTYPES = ("bfloat16", "float16", "float32", "complex64", *INTEGERS)


def bits_of(tensor: Any) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_dtype_and_shape_that_the_package_saves_is_read_bit_for_bit(
    tmp_path: Path,
) -> None:
    generator = torch.Generator().manual_seed(1)
    saved = {
        f"{dtype} {list(shape)}": torch.randint(0, 100, shape, generator=generator).to(
            getattr(torch, dtype)
        )
        for dtype in DTYPES
        for shape in ((), (0,), (7,), (3, 5), (2, 3, 5), (300, 70))
    }
    saved["nan"] = torch.full((3,), float("nan"), dtype=torch.bfloat16)
    save_file(saved, tmp_path / "a.safetensors", {"format": "pt", "note": "ä"})
    ours = read_safetensors(tmp_path / "a.safetensors")
    assert ours.keys() == saved.keys()
    for name, tensor in saved.items():
        assert ours[name].shape == tuple(tensor.shape)
        assert ours[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
        assert ours[name].numpy().tobytes() == bits_of(tensor)
    source = SafetensorsFile(tmp_path / "a.safetensors")
    assert source.metadata == {"format": "pt", "note": "ä"}
    assert not any(record.is_misaligned for record in source.entries.values())


def test_the_package_reads_what_the_writer_of_the_tests_wrote(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", arrays(), {"format": "pt"})
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == arrays().keys()
    for name, array in arrays().items():
        assert tuple(loaded[name].shape) == array.shape
        assert bits_of(loaded[name]) == array.tobytes()


REFUSED = {name: content for name, (content, _) in BAD.items()}
# What the package lets through and we do not: it would read more than the format's text
# allows, or a key or a size that means nothing to it.
STRICTER = {"another key", "nine sizes", "a space first", "a name twice"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_package_refuses_we_refuse(tmp_path: Path, name: str) -> None:
    if name in STRICTER:
        deserialize(REFUSED[name])
    else:
        with pytest.raises(SafetensorError):
            deserialize(REFUSED[name])
    (tmp_path / "a.safetensors").write_bytes(REFUSED[name])
    with pytest.raises(CheckpointError):
        read_safetensors(tmp_path / "a.safetensors")


def test_the_valid_twin_of_all_of_them_is_read_by_both(tmp_path: Path) -> None:
    content = file_bytes(GOOD, DATA)
    (tmp_path / "a.safetensors").write_bytes(content)
    theirs = {name: bytes(value["data"]) for name, value in deserialize(content)}
    ours = read_safetensors(tmp_path / "a.safetensors")
    assert {name: np.asarray(t.numpy()).tobytes() for name, t in ours.items()} == theirs
