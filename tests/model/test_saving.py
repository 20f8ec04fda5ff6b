"""`--save-quantized`: written whole or not at all, and read back mapped, to the same
bits.
"""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from src import ml
from src.checkpoint.gguf_writer import GgufWriter
from src.checkpoint.safetensors_writer import TensorWriter
from src.model import Model, ModelConfigError, ModelError, load_model
from src.model.errors import SaveError
from src.model.quantization import QUANTIZATIONS
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from src.model.sources import find_source
from tests.model.families import CONFIGS as FAMILIES
from tests.model.families import EVEN_SIZES, write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_llama import check_bits, run
from tests.model.tiny import GROUPED, Tiny, write_meta_directory

# Rows are multiples of 32, which compressed-tensors needs.
EVEN = Tiny("even", 64, 2, 8, 2, 96, 101)
TIED = Tiny("even_tied", 64, 2, 8, 2, 96, 101, tied=True)


def check_same(made: Model, given: Model) -> None:
    ids = list(range(1, 13))
    check_bits(run(made.transformer, ids), run(given.transformer, ids))


SOURCES: dict[str, Callable[[Path], Path]] = {
    "Meta": lambda path: write_meta_directory(path, EVEN, ml.bfloat16),
    "Meta, tied": lambda path: write_meta_directory(path, TIED, ml.bfloat16),
    "Hugging Face": lambda path: write_tiny(path, EVEN, ml.bfloat16),
    "Hugging Face, tied": lambda path: write_tiny(path, TIED, ml.bfloat16),
    **{
        name: partial(write_family, family=name, **EVEN_SIZES)
        for name in FAMILIES
        if name not in ("granitemoe", "gpt_oss")  # their experts are one tensor
    },
}


@pytest.mark.parametrize("name", ["nf4", "int8"])
@pytest.mark.parametrize("write", SOURCES.values(), ids=SOURCES)
def test_what_was_saved_gives_the_bits_of_what_is_quantized_on_loading(
    tmp_path: Path, name: str, write: Callable[[Path], Path]
) -> None:
    source = write(tmp_path / "plain")
    target = tmp_path / "saved"
    save_quantized(source, target, name)
    saved = load_model(target)
    check_same(saved, load_model(source, quantize=name))
    assert saved.args.tensor_rows == load_model(source).args.tensor_rows
    assert saved.checkpoint.copied == ()
    assert {weight.dtype for weight in saved.tensors.values()} == {
        QUANTIZATIONS[name],
        ml.bfloat16,
    }


@pytest.mark.parametrize("family", ["granitemoe", "gpt_oss"])
def test_experts_in_one_tensor_are_not_quantized_in_a_directory(
    tmp_path: Path, family: str
) -> None:
    source = write_family(tmp_path / "plain", family, **EVEN_SIZES)
    with pytest.raises(ModelConfigError, match="because the experts of a layer are one"):
        save_quantized(source, tmp_path / "saved", "nf4")
    assert os.listdir(tmp_path) == ["plain"]


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
    saved = load_model(tmp_path / "saved")
    plain = load_model()
    assert saved.stop_ids == plain.stop_ids
    ids = [
        m.tokenizer.encode("Hello, llama!", bos=True, eos=False) for m in (saved, plain)
    ]
    assert ids[0] == ids[1]


both_kinds = pytest.mark.parametrize(
    ("kind", "save", "writer"),
    [
        ("directory", lambda target: save_quantized(None, target, "nf4"), TensorWriter),
        ("file", lambda target: save_gguf(None, target), GgufWriter),
    ],
    ids=["directory", "GGUF"],
)


@both_kinds
def test_what_exists_is_left_as_it_is(
    tmp_path: Path, kind: str, save: Any, writer: type
) -> None:
    there = tmp_path / "there"
    there.mkdir() if kind == "directory" else there.write_text("theirs")
    with pytest.raises(
        SaveError, match=f"there: expected a new {kind}, got an existing one"
    ):
        save(there)
    with pytest.raises(SaveError, match="expected a parent directory, got none"):
        save(tmp_path / "absent" / "new")
    assert os.listdir(tmp_path) == ["there"]
    assert kind == "directory" or there.read_text() == "theirs"


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
@both_kinds
def test_nothing_is_left_of_what_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, save: Any, writer: type,
    fault: BaseException,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(writer, "write", Mock(side_effect=[None] * 8 + [fault]))
        expected = SaveError if isinstance(fault, OSError) else KeyboardInterrupt
        with pytest.raises(
            expected, match=r"cannot be written: No space left on device|^$"
        ):
            save(tmp_path / "new")
        patched.setattr("shutil.disk_usage", lambda _: Mock(free=9))
        with pytest.raises(
            SaveError, match=r"new: expected \d+ bytes of free disk, got 9"
        ):
            save(tmp_path / "new")
    assert os.listdir(tmp_path) == []
    save(tmp_path / "new")
    assert os.listdir(tmp_path) == ["new"]


def test_a_directory_that_another_process_made_is_left_as_it_is(tmp_path: Path) -> None:
    """Containers that share a disk share small process ids too."""
    theirs = tmp_path / f".new.unfinished-{os.getpid()}"
    theirs.mkdir()
    (theirs / "theirs").write_text("kept")
    save_quantized(None, tmp_path / "new", "nf4")
    assert (theirs / "theirs").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == [theirs.name, "new"]


def side_files(directory: Path) -> set[str]:
    return set(os.listdir(directory)) - {"config.json", "model.safetensors"}


def test_links_within_the_model_and_its_cache_are_followed(tmp_path: Path) -> None:
    """Hugging Face's cache holds nothing but links to blobs."""
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    snapshot = tmp_path / "models--a--b/snapshots/0123"
    blobs = tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (plain / "generation_config.json").write_text('{"eos_token_id": 7}')
    for number, path in enumerate(plain.iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    save_quantized(snapshot, tmp_path / "saved", "nf4")
    assert side_files(tmp_path / "saved") == {"generation_config.json"}
    assert not any(path.is_symlink() for path in (tmp_path / "saved").iterdir())
    assert load_model(tmp_path / "saved").stop_ids == {7}


def test_the_template_for_tools_is_saved_with_the_other_one(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    (plain / "chat_template.jinja").write_text("D")
    (plain / "additional_chat_templates").mkdir()
    (plain / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    save_quantized(plain, tmp_path / "saved", "nf4")
    assert find_source(tmp_path / "saved").chat_templates == {
        "default": "D",
        "tool_use": "T",
    }


def test_a_link_that_leads_out_of_the_model_is_refused_before_writing(
    tmp_path: Path,
) -> None:
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "other").write_text("secret")
    link = plain / "chat_template.json"
    for target in (
        "/proc/self/environ",
        "../secret",
        "../blobs/other",
        "../absent",
        link.name,
    ):
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


def test_a_side_file_that_is_too_large_or_none_is_refused_before_writing(
    tmp_path: Path,
) -> None:
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    path = plain / "chat_template.jinja"
    with open(path, "wb") as file:
        file.truncate((64 << 20) + 1)  # sparse
    with pytest.raises(
        ModelError, match=r"chat_template.jinja: size: expected at most 67108864"
    ):
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
        with pytest.raises(
            ModelError, match=r"quantized already \(nf4 of bitsandbytes\)"
        ):
            act()
    assert not (tmp_path / "again").exists()


def test_rows_that_groups_do_not_divide_are_refused_before_writing(
    tmp_path: Path,
) -> None:
    source = write_tiny(tmp_path / "plain", GROUPED, ml.bfloat16)
    with pytest.raises(ModelError, match="must be a multiple of 32 long: got 90"):
        save_quantized(source, tmp_path / "new", "int8")
    assert os.listdir(tmp_path) == ["plain"]
    save_quantized(source, tmp_path / "new", "nf4")
    load_model(tmp_path / "new")


FILES = ("config.json", "model.safetensors")
# SHA-256 of what version 0.1.0 wrote of EVEN in Meta's layout.
WRITTEN = {
    "nf4": (
        "853091740b3a41a936b9b96fe2f9107085f9656db3d257e2c065526607c0bf0b",
        "8fc4e840fda122db772dbeabbda076a856151c382bc51c6ccedf85dcc95a1cff",
    ),
    "int8": (
        "d2e43d8abd88b331325a19dc8aac12334e350e4f1777c7f79c3e6810863d05fa",
        "018edf6849ab72c87277db7b92e2a2e0e7740cb88a0b56d13dab8b7a2f3c86e6",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_files_are_those_that_version_0_1_0_saved(tmp_path: Path, name: str) -> None:
    source = write_meta_directory(tmp_path / "plain", EVEN, ml.bfloat16)
    save_quantized(source, tmp_path / "new", name)
    contents = ((tmp_path / "new" / file).read_bytes() for file in FILES)
    assert (
        tuple(hashlib.sha256(content).hexdigest() for content in contents)
        == WRITTEN[name]
    )
