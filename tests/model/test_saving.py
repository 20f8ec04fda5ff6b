"""`--save-quantized`: written whole or not at all, and read back mapped, to the same bits."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.checkpoint.safetensors_writer import SafetensorsWriter
from src.model import InferenceContext, Model, ModelError, SaveError, load_model, save_quantized
from src.model.quantization import QUANTIZATIONS
from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import GROUPED, Tiny, write_meta_directory

# Rows are multiples of 32, which compressed-tensors needs.
EVEN = Tiny("even", 64, 2, 8, 2, 96, 101)
TIED = Tiny("even_tied", 64, 2, 8, 2, 96, 101, tied=True)


def logits(model: Model) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    context = InferenceContext(model.args, 16)
    return model.transformer.forward(context, list(range(1, 13)), all_positions=True).numpy()


@pytest.mark.parametrize("name", QUANTIZATIONS)
@pytest.mark.parametrize("config", [EVEN, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("layout", ["Meta", "Hugging Face"])
def test_what_was_saved_gives_the_bits_of_what_is_quantised_on_loading(
    tmp_path: Path, name: str, config: Tiny, layout: str
) -> None:
    write = write_meta_directory if layout == "Meta" else write_tiny
    source, target = write(tmp_path / "plain", config, ml.bfloat16), tmp_path / "saved"
    save_quantized(source, target, name)
    saved = load_model(target)
    np.testing.assert_array_equal(logits(load_model(source, quantize=name)), logits(saved))
    assert saved.checkpoint.copied == ()
    assert {weight.dtype for weight in saved.tensors.values()} == {QUANTIZATIONS[name], ml.bfloat16}


def test_codes_lie_in_the_mapped_file(tmp_path: Path) -> None:
    save_quantized(None, tmp_path / "saved", "nf4")
    model = load_model(tmp_path / "saved")
    (file,) = model.checkpoint.mapped
    start = np.frombuffer(file.buffer, np.uint8).ctypes.data
    for weight in model.tensors.values():
        parts = weight.parts() if isinstance(weight, ml.QuantizedTensor) else (weight,)
        for part in parts:
            assert start <= part.data_pointer < start + file.size


def test_the_files_of_the_tokenizer_come_along(tmp_path: Path) -> None:
    save_quantized(None, tmp_path / "saved", "int8")
    model = load_model(tmp_path / "saved")
    plain = load_model()
    assert model.tokenizer is not None
    assert plain.tokenizer is not None
    assert model.stop_ids == plain.stop_ids
    text = "Hello, llama!"
    assert model.tokenizer.encode(text, bos=True, eos=False) == plain.tokenizer.encode(
        text, bos=True, eos=False
    )


def test_names_of_bitsandbytes_are_in_the_file(tmp_path: Path) -> None:
    save_quantized(write_tiny(tmp_path / "plain", EVEN, ml.bfloat16), tmp_path / "saved", "nf4")
    header = (tmp_path / "saved" / "model.safetensors").read_bytes()
    entries = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    name = "model.layers.1.mlp.down_proj.weight"
    size = 64 * 96
    assert entries[name]["shape"] == [size // 2, 1]
    assert entries[f"{name}.absmax"]["shape"] == [size // 64]
    assert entries[f"{name}.quant_map"]["shape"] == [16]
    begin, end = entries[f"{name}.quant_state.bitsandbytes__nf4"]["data_offsets"]
    start = 8 + int.from_bytes(header[:8], "little")
    assert json.loads(header[start + begin : start + end]) == {
        "quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 96],
    }  # fmt: skip


def test_a_directory_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(SaveError, match="there: expected a new directory, got one that exists"):
        save_quantized(None, tmp_path / "there", "nf4")
    with pytest.raises(SaveError, match="expected a directory that it can lie in, got none"):
        save_quantized(None, tmp_path / "absent" / "new", "nf4")
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_directory_that_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    written = 0

    def write(self: SafetensorsWriter, name: str, content: bytes) -> None:
        nonlocal written
        written += 1
        if written == 9:
            raise fault

    monkeypatch.setattr(SafetensorsWriter, "write", write)
    kind = SaveError if isinstance(fault, OSError) else KeyboardInterrupt
    with pytest.raises(kind):
        save_quantized(None, tmp_path / "new", "nf4")
    assert os.listdir(tmp_path) == []


def test_what_is_quantised_is_not_quantised_again(tmp_path: Path) -> None:
    save_quantized(None, tmp_path / "saved", "nf4")
    for act in (
        lambda: load_model(tmp_path / "saved", quantize="int8"),
        lambda: save_quantized(tmp_path / "saved", tmp_path / "again", "nf4"),
    ):
        with pytest.raises(ModelError, match=r"quantised already \(nf4 of bitsandbytes\)"):
            act()
    assert not (tmp_path / "again").exists()


def test_rows_that_groups_do_not_divide_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    source = write_tiny(tmp_path / "plain", GROUPED, ml.bfloat16)
    with pytest.raises(ModelError, match="must be a multiple of 32 long: got 90"):
        save_quantized(source, tmp_path / "new", "int8")
    assert os.listdir(tmp_path) == ["plain"]
    save_quantized(source, tmp_path / "new", "nf4")
    load_model(tmp_path / "new")
