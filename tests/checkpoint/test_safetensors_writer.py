"""What is written is read back bit for bit: plain tensors, and the parts of quantized
ones.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint.packed_weights import take_packed
from src.checkpoint.safetensors import SafetensorsFile
from src.checkpoint.safetensors_writer import (
    NewTensor,
    TensorWriter,
    new_tensors,
    part_contents,
    reordered,
    safetensors_head,
)


def test_tensors_written_in_any_order_are_read_back_where_they_are(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    tensors = [
        NewTensor("c", "U8", (3,)),
        NewTensor("a", "F32", (2, 3)),
        NewTensor("b", "F16", ()),
    ]
    contents = {
        "a": np.arange(6, dtype=np.float32).tobytes(),
        "b": b"\x00\x3c",
        "c": b"\1\2\3",
    }
    assert [tensor.nbytes for tensor in tensors] == [3, 24, 2]
    with TensorWriter(path, *safetensors_head(tensors, {"format": "pt"})) as writer:
        for name in ("b", "c", "a"):
            writer.write(name, contents[name])
    source = SafetensorsFile(path)
    assert source.metadata == {"format": "pt"}
    assert list(source.entries) == ["a", "b", "c"]  # wide dtypes first
    for name, entry in source.entries.items():
        assert not entry.is_misaligned
        assert entry.make(name).numpy().tobytes() == contents[name]


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        TensorWriter(path, b"", {})
    assert path.read_bytes() == b"kept"


def test_an_error_on_the_way_closes_the_file_and_is_passed_on(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path / "x", b"", {"a": (0, 1)})
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="closed file"):
        writer.write("a", b"1")


@pytest.mark.parametrize("dtype", [None, ml.nf4, ml.int8_block])
def test_parts_of_a_weight_are_read_back_as_it(
    tmp_path: Path, dtype: ml.BlockDType | None
) -> None:
    values = np.random.default_rng(1).standard_normal((6, 64), np.float32)
    plain = ml.Tensor.from_numpy(values.astype(ml_dtypes.bfloat16), "w")
    weight = plain if dtype is None else ml.quantize(plain, dtype)
    tensors = new_tensors("w.weight", (6, 64), dtype, ml.bfloat16)
    with TensorWriter(tmp_path / "x", *safetensors_head(tensors, {})) as writer:
        for name, content in part_contents("w.weight", weight, ml.bfloat16):
            writer.write(name, content)
    source = SafetensorsFile(tmp_path / "x")
    found = dict(source.entries)
    if dtype is None:
        back = source.entries["w.weight"].make("w")
        np.testing.assert_array_equal(back.numpy(), plain.numpy())
        return
    made = take_packed(found, "nf4" if dtype is ml.nf4 else "int8")["w.weight"].make("w")
    assert found == {}
    assert (made.dtype, made.shape) == (dtype, (6, 64))
    np.testing.assert_array_equal(made.dequantize().numpy(), weight.dequantize().numpy())


def test_pairs_become_halves_in_each_head() -> None:
    rows = ml.Tensor.from_numpy(np.arange(8, dtype=np.float32).reshape(8, 1), "wq")
    halves = reordered(rows, 4, "halves")
    assert halves.numpy().ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert halves.name == "wq"
    assert reordered(halves, 4, "interleaved").numpy().ravel().tolist() == [*range(8)]
