"""GGUF files that the gguf package writes are read, and those of the tests are read by
it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.gguf import _OTHER_TYPES, DTYPES, GgufArray, read_gguf
from tests.support.gguf_writer import Typed, gguf_bytes, q8_0

pytestmark = pytest.mark.oracle

gguf = pytest.importorskip("gguf", reason="needs the oracle extra")

SHAPES = {"matrix": (3, 256), "vector": (5,), "cube": (2, 3, 4), "one": (1, 1, 1, 1)}
VALUES = {
    "a.text": "h\u00e9llo", "a.number": 7, "a.float": 0.25, "a.truth": True,
    "a.texts": ["x", "", "\u65e5\u672c"], "a.numbers": [1, -2, 3], "a.floats": [0.5, 1.5],
}  # fmt: skip
ARRAYS = {
    n: np.arange(np.prod(s), dtype=np.float32).reshape(s) for n, s in SHAPES.items()
}
BLOCKS = gguf.quants.quantize(ARRAYS["matrix"], gguf.GGMLQuantizationType.Q8_0)


@pytest.mark.parametrize("alignment", [32, 64])
def test_a_file_of_the_package_is_read(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_string("a.text", VALUES["a.text"])
    writer.add_uint32("a.number", 7)
    writer.add_float32("a.float", 0.25)
    writer.add_bool("a.truth", True)
    for name in ("a.texts", "a.numbers", "a.floats"):
        writer.add_array(name, VALUES[name])
    for name, values in ARRAYS.items():
        writer.add_tensor(name, values)
    writer.add_tensor("half", ARRAYS["matrix"].astype(np.float16))
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blocks", BLOCKS, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    found = {
        k: v.values() if isinstance(v, GgufArray) else v for k, v in file.keys.items()
    }
    assert {name: found[name] for name in VALUES} == VALUES
    mapped = file.map()
    for name, values in ARRAYS.items():
        tensor: Any = file.tensors[name].make(mapped, name)
        np.testing.assert_array_equal(tensor.numpy(), values)
    weight: Any = file.tensors["blocks"].make(mapped, "blocks")
    assert weight.shape == (3, 256)
    np.testing.assert_array_equal(
        weight.dequantize().numpy(), gguf.quants.dequantize(BLOCKS, kind)
    )


def test_a_file_of_the_tests_is_read_by_the_package(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    keys = {"general.architecture": "llama", "a.wide": Typed(10, 1 << 40), **VALUES}
    path.write_bytes(gguf_bytes(keys, ARRAYS | {"blocks": q8_0(ARRAYS["matrix"])}))
    reader = gguf.GGUFReader(path)
    found = {name: field.contents() for name, field in reader.fields.items()}
    assert {name: found[name] for name in VALUES} == VALUES
    assert found["a.wide"] == 1 << 40
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, values in (ARRAYS | {"blocks": BLOCKS}).items():
        np.testing.assert_array_equal(tensors[name].data, values)
    assert tensors["blocks"].tensor_type == gguf.GGMLQuantizationType.Q8_0


def test_types_have_the_numbers_and_the_sizes_of_the_package() -> None:
    plain = {0: "float32", 1: "float16", 30: "bfloat16"}
    for number, dtype in DTYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert dtype.name.lower() == plain.get(number, kind.name.lower())
        block_bytes = dtype.itemsize if isinstance(dtype, ml.DType) else dtype.block_bytes
        size = 1 if isinstance(dtype, ml.DType) else dtype.block_size
        assert (size, block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    others = {kind: gguf.GGMLQuantizationType(kind).name for kind in _OTHER_TYPES}
    assert others == _OTHER_TYPES
    assert not others.keys() & DTYPES.keys()
