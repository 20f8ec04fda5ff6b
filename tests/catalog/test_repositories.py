"""Names of repositories, and the files that a model needs."""

import pytest

from src.catalog.repositories import (
    NeededFiles,
    RepositoryName,
    needed_files,
    parse_repository,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/repo", ("org/repo", None, None, None, False)),
        ("org/repo:Q4_K_M", ("org/repo", None, "Q4_K_M", None, False)),
        ("hf.co/org/repo", ("org/repo", None, None, None, True)),
        ("https://huggingface.co/org/Re.po_1", ("org/Re.po_1", None, None, None, True)),
        ("org/repo@v1.0:q8_0", ("org/repo", "v1.0", "q8_0", None, False)),
        ("org/repo@refs/pr/1", ("org/repo", "refs/pr/1", None, None, False)),
        ("hf.co/org/repo/a/b-1.gguf", ("org/repo", None, None, "a/b-1.gguf", True)),
    ],
)
def test_a_name_has_parts(text, parts):
    assert parse_repository(text) == RepositoryName(text, *parts)


@pytest.mark.parametrize(
    "text",
    [
        "repo",
        "a/b/c",
        "org/repo:",
        "org/repo@",
        "../repo",
        "org/..",
        "org/repo/../a.gguf",
        "org/repo//a.gguf",
        "/org/repo",
        "org/re po",
        "org/repo\n",
        "org/repo@../../x",
        "-a/b",
        "hf.co/hf.co/org/repo",
        "http://example.com/org/repo",
        "org/repo:a/b",
        "",
    ],
)
def test_other_texts_are_no_repository(text):
    assert parse_repository(text) is None


def name_of(text: str) -> RepositoryName:
    name = parse_repository(text)
    assert name is not None
    return name


def test_small_files_come_before_weights_and_nothing_else_is_needed():
    names = [
        "model.safetensors",
        "README.md",
        "tokenizer.json",
        "config.json",
        "flax_model.msgpack",
    ]
    files = ("config.json", "tokenizer.json", "model.safetensors")
    assert needed_files(name_of("a/b"), names) == NeededFiles("", files)
    assert needed_files(name_of("a/b:Q8_0"), [*names, "m-Q8_0.gguf"]) == NeededFiles(
        "m-Q8_0.gguf", ("m-Q8_0.gguf",)
    )


def test_shards_are_those_of_the_index_or_else_all():
    index = "model.safetensors.index.json"
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    names = ["config.json", index, *shards, "model.fp16-00001-of-00001.safetensors"]
    assert needed_files(name_of("a/b"), names) == NeededFiles(
        "", ("config.json", index, *shards)
    )
    needed = needed_files(name_of("a/b"), names, shards[1:])
    assert needed == NeededFiles("", ("config.json", index, shards[1]))


def test_a_repository_without_a_model_needs_nothing():
    assert needed_files(name_of("a/b"), ["config.json", "pytorch_model.bin"]) is None
    assert needed_files(name_of("a/b/x.gguf"), ["y.gguf"]) is None
