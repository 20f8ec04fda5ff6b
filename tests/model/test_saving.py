"""`--save-quantized`: written whole or not at all, and read back mapped, to the same bits."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.safetensors_writer import TensorWriter
from src.model import Model, ModelError, load_model
from src.model.errors import SaveError
from src.model.quantization import QUANTIZATIONS
from src.model.saving import save_quantized
from tests.model.hugging_face_tiny import renamed, write_tiny
from tests.model.test_llama import check_bits, run
from tests.model.tiny import GROUPED, Tiny, weights, write_meta_directory
from tests.support.hugging_face_writer import write_hugging_face_directory

# Rows are multiples of 32, which compressed-tensors needs.
EVEN = Tiny("even", 64, 2, 8, 2, 96, 101)
TIED = Tiny("even_tied", 64, 2, 8, 2, 96, 101, tied=True)


def check_same(made: Model, given: Model) -> None:
    ids = list(range(1, 13))
    check_bits(run(made.transformer, ids), run(given.transformer, ids))


@pytest.mark.parametrize("name", ["nf4", "int8"])
@pytest.mark.parametrize("config", [EVEN, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("layout", ["Meta", "Hugging Face"])
def test_what_was_saved_gives_the_bits_of_what_is_quantized_on_loading(
    tmp_path: Path, name: str, config: Tiny, layout: str
) -> None:
    write = write_meta_directory if layout == "Meta" else write_tiny
    source, target = write(tmp_path / "plain", config, ml.bfloat16), tmp_path / "saved"
    save_quantized(source, target, name)
    saved = load_model(target)
    check_same(saved, load_model(source, quantize=name))
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
    saved, plain = load_model(tmp_path / "saved"), load_model()
    assert saved.stop_ids == plain.stop_ids
    ids = [m.tokenizer.encode("Hello, llama!", bos=True, eos=False) for m in (saved, plain)]
    assert ids[0] == ids[1]


def test_names_of_bitsandbytes_are_in_the_file(tmp_path: Path) -> None:
    save_quantized(write_tiny(tmp_path / "plain", EVEN, ml.bfloat16), tmp_path / "saved", "nf4")
    content = (tmp_path / "saved" / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    name, size = "model.layers.1.mlp.down_proj.weight", 64 * 96
    assert entries[name]["shape"] == [size // 2, 1]
    assert entries[f"{name}.absmax"]["shape"] == [size // 64]
    assert entries[f"{name}.quant_map"]["shape"] == [16]
    begin, end = entries[f"{name}.quant_state.bitsandbytes__nf4"]["data_offsets"]
    assert json.loads(content[start + begin : start + end]) == {
        "quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 96],
    }  # fmt: skip


def test_a_directory_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(SaveError, match="there: expected a new directory, got one that exists"):
        save_quantized(None, tmp_path / "there", "nf4")
    with pytest.raises(SaveError, match="expected a parent directory, got none"):
        save_quantized(None, tmp_path / "absent" / "new", "nf4")
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_directory_that_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    written = 0

    def write(self: TensorWriter, name: str, content: bytes) -> None:
        nonlocal written
        written += 1
        if written == 9:
            raise fault

    monkeypatch.setattr(TensorWriter, "write", write)
    kind = SaveError if isinstance(fault, OSError) else KeyboardInterrupt
    with pytest.raises(kind):
        save_quantized(None, tmp_path / "new", "nf4")
    assert os.listdir(tmp_path) == []


def test_a_directory_that_another_process_made_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a disk share small process ids too."""
    monkeypatch.setattr("src.model.saving.secrets.token_hex", lambda _: "name")
    for name in (f".new.unfinished-{os.getpid()}", ".new.unfinished-name"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "theirs").write_text("kept")
    with pytest.raises(SaveError, match="new: cannot be written: File exists"):
        save_quantized(None, tmp_path / "new", "nf4")
    monkeypatch.undo()
    save_quantized(None, tmp_path / "new", "nf4")
    assert [path.read_text() for path in sorted(tmp_path.glob(".new*/*"))] == ["kept"] * 2
    assert len(os.listdir(tmp_path)) == 3


def side_files(directory: Path) -> set[str]:
    return set(os.listdir(directory)) - {"config.json", "model.safetensors"}


def test_links_within_the_model_and_its_cache_are_followed(tmp_path: Path) -> None:
    """Hugging Face's cache holds nothing but links to blobs."""
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (plain / "generation_config.json").write_text('{"eos_token_id": 7}')
    for number, path in enumerate(plain.iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    (snapshot / "more").mkdir()
    (snapshot / "more" / "template").write_text("{{ messages }}")
    (snapshot / "chat_template.jinja").symlink_to("more/template")
    save_quantized(snapshot, tmp_path / "saved", "nf4")
    assert side_files(tmp_path / "saved") == {"generation_config.json", "chat_template.jinja"}
    assert not any(path.is_symlink() for path in (tmp_path / "saved").iterdir())
    assert (tmp_path / "saved" / "chat_template.jinja").read_text() == "{{ messages }}"
    assert load_model(tmp_path / "saved").stop_ids == {7}


def test_a_link_that_leads_out_of_the_model_is_refused_before_writing(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "other").write_text("secret")
    link = plain / "chat_template.json"
    for target in ("/proc/self/environ", "../secret", "../blobs/other", "../absent", link.name):
        link.symlink_to(target)
        with pytest.raises(
            ModelError, match=r"expected a file inside its directory, got a link|Too many"
        ):
            save_quantized(plain, tmp_path / "saved", "nf4")
        link.unlink()
    assert not (tmp_path / "saved").exists()
    link.write_text("{}")
    save_quantized(plain, tmp_path / "saved", "nf4")
    assert side_files(tmp_path / "saved") == {"chat_template.json"}


def test_a_side_file_that_is_too_large_or_none_is_refused_before_writing(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    path = plain / "chat_template.jinja"
    with open(path, "wb") as file:
        file.truncate((64 << 20) + 1)  # sparse
    with pytest.raises(ModelError, match=r"chat_template.jinja: size: expected at most 67108864"):
        save_quantized(plain, tmp_path / "saved", "nf4")
    path.unlink()
    for make in (os.mkfifo, os.mkdir):
        make(path)
        with pytest.raises(ModelError, match="kind: expected a regular file, got a"):
            save_quantized(plain, tmp_path / "saved", "nf4")
        path.unlink() if make is os.mkfifo else path.rmdir()
    assert os.listdir(tmp_path) == ["plain"]


def test_what_is_quantized_is_not_quantized_again(tmp_path: Path) -> None:
    save_quantized(None, tmp_path / "saved", "nf4")
    for act in (
        lambda: load_model(tmp_path / "saved", quantize="int8"),
        lambda: save_quantized(tmp_path / "saved", tmp_path / "again", "nf4"),
    ):
        with pytest.raises(ModelError, match=r"quantized already \(nf4 of bitsandbytes\)"):
            act()
    assert not (tmp_path / "again").exists()


def test_rows_that_groups_do_not_divide_are_refused_before_writing(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "plain", GROUPED, ml.bfloat16)
    with pytest.raises(ModelError, match="must be a multiple of 32 long: got 90"):
        save_quantized(source, tmp_path / "new", "int8")
    assert os.listdir(tmp_path) == ["plain"]
    save_quantized(source, tmp_path / "new", "nf4")
    load_model(tmp_path / "new")


def write_as_0_1_0(directory: Path, kind: str) -> None:
    """Write EVEN, quantized, with the names, dtypes and sizes of parts that 0.1.0 wrote."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, weight in renamed(EVEN, weights(EVEN)).items():
        plain = weight.astype(ml.bfloat16.numpy_dtype)
        if plain.ndim == 1 or name == "model.embed_tokens.weight":
            arrays[name] = plain
            continue
        made = ml.quantize(ml.Tensor.from_numpy(plain), QUANTIZATIONS[kind])
        codes, scales = made.codes.numpy(), made.scales.numpy()
        if kind == "int8":
            rows, columns = plain.shape
            arrays[name] = codes.reshape(rows, columns)
            arrays[f"{name}_scale"] = scales.reshape(rows, columns // 32)
            continue
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16"}
        text = json.dumps(state | {"shape": list(plain.shape)}).encode("ascii")
        arrays[name] = codes.reshape(-1, 1)
        arrays[f"{name}.absmax"] = scales.reshape(-1)
        arrays[f"{name}.quant_map"] = ml.nf4_code().numpy()
        arrays[f"{name}.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
    nf4 = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False,
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": [],
    }  # fmt: skip
    weights_of_group = {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32,
        "dynamic": False,
    }  # fmt: skip
    group = {
        "targets": ["Linear"], "weights": weights_of_group, "input_activations": None,
        "output_activations": None, "format": "int-quantized",
    }  # fmt: skip
    int8 = {
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "quantization_status": "compressed", "config_groups": {"group_0": group}, "ignore": [],
    }  # fmt: skip
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 101, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rope_theta": 10000.0,
        "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "quantization_config": nf4 if kind == "nf4" else int8,
    }  # fmt: skip
    write_hugging_face_directory(directory, config, arrays)


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_a_directory_that_version_0_1_0_saved_loads(tmp_path: Path, name: str) -> None:
    write_as_0_1_0(tmp_path / "old", name)
    source = write_meta_directory(tmp_path / "plain", EVEN, ml.bfloat16)
    old = load_model(tmp_path / "old")
    save_quantized(source, tmp_path / "new", name)
    new = load_model(tmp_path / "new")
    assert old.args == new.args
    check_same(old, new)
    check_same(old, load_model(source, quantize=name))
    for file in ("config.json", "model.safetensors"):
        written = [(tmp_path / name / file).read_bytes().strip() for name in ("old", "new")]
        assert written[0] == written[1]
