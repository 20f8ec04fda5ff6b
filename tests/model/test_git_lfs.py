"""A clone without Git LFS has pointers instead of files, and each of them is named as
one.
"""

import json
from pathlib import Path

import pytest

from src.ml.errors import LlamaBoltsError
from src.model import load_model
from src.tokenizer.template_files import read_chat_templates
from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import BYTES_VOCAB, write_byte_tokenizer, write_meta_directory
from tests.support.sentencepiece_writer import RESERVED, model_message
from tests.tokenizer.json_files import byte_level_file

# As `git lfs` writes it.
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 12345\n"
)
TEXTS = {
    "tokenizer.json": json.dumps(byte_level_file()),
    "tokenizer_config.json": "{}",
    "special_tokens_map.json": "{}",
    "chat_template.jinja": "{{ messages }}",
}
META = ("params.json", "consolidated.00.pth", "tokenizer.model")
IN_SHARDS = ("model.safetensors.index.json", "model-00001-of-00002.safetensors")
HUGGING_FACE = ("config.json", "generation_config.json", "model.safetensors", *TEXTS)
OF_SENTENCEPIECE = ("tokenizer.model", "added_tokens.json")


def write_model(directory: Path, name: str) -> Path:
    """Write a small model whose files include one of a name."""
    if name in META and name not in OF_SENTENCEPIECE:
        write_byte_tokenizer(
            write_meta_directory(directory, BYTES_VOCAB) / "tokenizer.model"
        )
        return directory
    write_tiny(
        directory, BYTES_VOCAB, shards=2 if name in IN_SHARDS else 1, generation={}
    )
    texts = TEXTS
    if name in OF_SENTENCEPIECE:
        (directory / "tokenizer.model").write_bytes(model_message(RESERVED))
        texts = {"added_tokens.json": "{}"}
    for file, text in texts.items():
        (directory / file).write_text(text, encoding="utf-8")
    return directory


def load(directory: Path) -> None:
    """Read all that a chat needs."""
    assert load_model(directory).tokenizer is not None
    read_chat_templates(directory)


@pytest.mark.parametrize(
    "name", [*META[:2], *HUGGING_FACE, *IN_SHARDS, *OF_SENTENCEPIECE]
)
def test_a_git_lfs_pointer_is_named_in_every_file_of_a_model(
    tmp_path: Path, name: str
) -> None:
    path = write_model(tmp_path / "model", name) / name
    content = path.read_bytes()
    path.write_text(POINTER, encoding="ascii")
    with pytest.raises(LlamaBoltsError) as caught:
        load(path.parent)
    advice = "got a Git LFS pointer to it; `git lfs pull` in its directory downloads it"
    assert str(caught.value) == f"{path}: kind: expected the file itself, {advice}"
    path.write_bytes(content)
    load(path.parent)


@pytest.mark.parametrize("name", ["model.gguf", "model"])
def test_a_git_lfs_pointer_is_named_for_a_gguf_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(POINTER, encoding="ascii")
    with pytest.raises(
        LlamaBoltsError, match=r"model.*: kind: .* a Git LFS pointer to it; `git lf"
    ):
        load_model(path)


def test_a_long_file_that_begins_like_a_pointer_is_none(tmp_path: Path) -> None:
    write_model(tmp_path, "config.json")
    template = tmp_path / "chat_template.jinja"
    template.write_text(POINTER.ljust(1024), encoding="ascii")
    assert read_chat_templates(tmp_path) == {"default": POINTER.ljust(1024)}
    template.write_text(POINTER.ljust(1023), encoding="ascii")
    with pytest.raises(LlamaBoltsError, match="a Git LFS pointer"):
        read_chat_templates(tmp_path)
