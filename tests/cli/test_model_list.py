"""`--list-models` and `/models`: a row for each model, by its header alone, and nothing
written.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from src.catalog import find_model
from src.catalog.local_models import local_models
from src.cli.chat import CommandCompleter
from src.cli.model_list import model_names
from tests.cli.conftest import reply
from tests.support.gguf_writer import Typed, gguf_bytes
from tests.support.hugging_face_writer import (
    CONFIG,
    write_hugging_face_directory,
    zero_arrays,
)
from tests.support.other_programs import (
    set_home,
    write_hub,
    write_llama_cpp,
    write_lm_studio,
    write_ollama,
)

_UINT64 = 10
HEADINGS = ["name", "program", "parameters", "format", "size", "loads"]


def gguf_header(tokens: int = 100, **changes: Any) -> bytes:
    """Return a GGUF file with the keys of Llama 3.2 1B and without tensors."""
    keys = {
        "general.architecture": "llama",
        "general.size_label": "1B",
        "general.file_type": 15,
        "general.tags": ["small", "chat"],
        "llama.context_length": 131072,
        "llama.embedding_length": 2048,
        "llama.block_count": 16,
        "llama.feed_forward_length": 8192,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [f"token{number}" for number in range(tokens)],
        "tokenizer.ggml.merges": [f"a {number}" for number in range(tokens)],
    }
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    # New keys before the vocabulary, as converters have them.
    keys = {
        **changed,
        **keys,
        **changed,
    }
    return gguf_bytes({key: value for key, value in keys.items() if value is not None})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    set_home(tmp_path, monkeypatch)
    return tmp_path


def rows(run) -> list[list[str]]:
    """Return the cells of the table."""
    done = run("--list-models")
    assert done.returncode == 0
    return [line.split(maxsplit=6) for line in done.stdout.decode().splitlines()]


def test_the_table_of_no_models_says_how_to_get_one(run, home):
    done = run("--list-models")
    assert (done.returncode, done.stdout.decode().split()) == (0, HEADINGS)
    assert done.stderr.decode() == "no models; -m smollm2 downloads one\n"


def test_a_row_has_what_the_header_says(run, home):
    write_ollama(home, "llama3.2:1b", gguf_header())
    write_llama_cpp(home, "org/old", "old.gguf", gguf_header(general__size_label=None))
    done = run("--list-models").stdout.decode().splitlines()
    assert done[0].split() == HEADINGS
    kib = f"{len(gguf_header()) / 1024:.1f} KiB"
    assert done[1].split() == [
        "ollama:llama3.2:1b",
        "ollama",
        "1B",
        "Q4_K_M",
        *kib.split(),
        "yes",
    ]
    # 16 layers of 60.8 M weights, and two tables of 100 tokens.
    assert done[2].split()[:4] == ["llama.cpp:org_old_old", "llama.cpp", "974M", "Q4_K_M"]


def test_a_directory_has_the_numbers_of_its_configuration(run, home):
    place = write_hugging_face_directory(home / "model", CONFIG, zero_arrays(CONFIG))
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    write_hub(home, "org/model", files | {"tokenizer.json": b"{}"})
    (row,) = run("--list-models").stdout.decode().splitlines()[1:]
    assert row.split()[:5] == ["org/model", "Hugging", "Face", "0M", "bfloat16"]
    assert row.endswith("yes")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"general__architecture": "gemma3n"},
            "no: general.architecture: expected a supported family, got gemma3n: embeddings",
        ),
        ({"llama__expert_count": 8}, "no: llama.expert_count: expected 0, got 8"),
        ({"llama__block_count": None}, "no: keys: expected llama.context_length, "),
        (
            {"tokenizer__ggml__pre": "unheard-of"},
            "no: tokenizer.ggml.pre: expected a supported one, got unheard-of",
        ),
        ({"general__file_type": 19}, "no: format: expected a supported one, got IQ2_XXS"),
        ({"general__size_label": "1\x1b[2J"}, "yes"),
        ({"general__size_label": Typed(_UINT64, 7)}, "yes"),
    ],
)
def test_the_last_column_says_whether_it_loads_or_why_not(run, home, changes, reason):
    write_lm_studio(home, "org/a", "a-Q4_K_M.gguf", gguf_header(**changes))
    line = run("--list-models").stdout.decode().splitlines()[1]
    assert reason in line
    assert line.isprintable()


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF\x03" + b"\xff" * 100, b"<html>"]
)
def test_a_damaged_file_is_a_row_and_not_the_end(run, home, content):
    write_lm_studio(home, "org/a", "a-Q4_K_M.gguf", content)
    write_lm_studio(home, "org/b", "b-Q4_K_M.gguf", gguf_header())
    lines = run("--list-models").stdout.decode().splitlines()
    assert "no: " in lines[1]
    assert str(home) not in lines[1]
    assert lines[2].endswith("yes")


def test_a_hundred_models_of_four_programs_take_a_moment_and_nothing_is_written(
    run, home
):
    content = gguf_header(32_000)
    for number in range(25):
        write_ollama(home, f"model{number}:1b", content + bytes([number]))
        write_lm_studio(home, f"org/m{number}", "m-Q4_K_M.gguf", content)
        write_llama_cpp(home, f"org/m{number}", "m-Q8_0.gguf", content)
        write_hub(home, f"org/m{number}", {"m-Q8_0.gguf": content})
    before = {path: os.lstat(path) for path in home.rglob("*")}
    start = time.process_time()
    lines = run("--list-models").stdout.decode().splitlines()
    assert time.process_time() - start < 2  # 0.2 s where it was measured
    assert len(lines) == 101
    assert all(line.endswith("yes") for line in lines[1:])
    after = {path: os.lstat(path) for path in home.rglob("*")}
    unchanged = [(s.st_mtime_ns, s.st_size, s.st_ino) for s in before.values()]
    assert [(s.st_mtime_ns, s.st_size, s.st_ino) for s in after.values()] == unchanged
    assert after.keys() == before.keys()


def test_each_listed_name_leads_to_its_model_and_tab_completes_it(home, session, capsys):
    write_ollama(home, "llama3.2:1b", gguf_header())
    write_lm_studio(home, "org/a", "a-Q4_K_M.gguf", gguf_header())
    names = ["smollm2", "ollama:llama3.2:1b", "lmstudio:org/a:Q4_K_M"]
    assert model_names() == names
    assert [find_model(name) for name in names[1:]] == [
        model.path for model in local_models()
    ]
    for typed, completed in (
        ("", names),
        ("o", names[1:2]),
        ("sm", names[:1]),
        ("x", []),
    ):
        found = CommandCompleter().get_completions(
            Document(f"/model {typed}"), CompleteEvent()
        )
        assert [completion.text for completion in found] == completed
    shown = reply(capsys, session, "/models").splitlines()
    assert [line.split()[0] for line in shown] == ["name", *names[1:]]


def test_a_path_after_the_command_is_completed_too(home):
    (home / "weights").mkdir()
    found = CommandCompleter().get_completions(
        Document(f"/model {home}/we"), CompleteEvent()
    )
    assert [completion.text for completion in found] == ["ights"]


def test_names_with_controls_are_escaped(run, home):
    write_lm_studio(home, "org/a\x1b[2J", "a-Q4_K_M.gguf", gguf_header())
    assert run("--list-models").stdout.decode().splitlines()[1].isprintable()
    found = list(
        CommandCompleter().get_completions(Document("/model lm"), CompleteEvent())
    )
    assert [completion.display_text for completion in found] == [
        r"lmstudio:org/a\x1b[2J:Q4_K_M"
    ]
