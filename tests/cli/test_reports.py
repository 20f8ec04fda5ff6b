"""`--metadata`, `--info` and `--explain`."""

import shutil

import numpy as np
import pytest

from src import __version__, ml
from src.cli import reports
from src.trace import code
from src.trace.code import section_of
from src.trace.events import STAGES
from tests.cli.conftest import REPOSITORY, Outcome
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_gguf import small_vocabulary, with_rows, write
from tests.model.tiny import GROUPED


def rows(output: bytes, title: str) -> dict[str, list[str]]:
    """Returns the cells of a table of the report by their first one."""
    lines = output.decode().split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in lines]
    return {row[0]: [cell.strip() for cell in row[1:]] for row in cells if row}


def test_the_report_holds_parameters_tensors_and_sizes(run, alphabet_model):
    done = run("-m", alphabet_model, "--metadata", "--rope-scaling-factor", "32")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"{alphabet_model}\n")
    source = rows(done.stdout, "source")
    assert source["format"] == ["Meta, a PyTorch file"]
    assert source["file"] == ["consolidated.00.pth"]
    given = rows(done.stdout, "hyperparameters given (params.json)")
    assert given["dim"] == ["512"]
    assert given["use_scaled_rope"] == ["True"]
    used = rows(done.stdout, "hyperparameters used and derived")
    assert used["head_dim"] == ["128"]
    assert used["ffn_dim"] == ["8"]
    assert used["group_size (n_heads / n_kv_heads)"] == ["2"]
    assert used["rope_scaling"] == ["llama3"]
    assert used["rope_scaling.factor"] == ["32.0"]
    assert used["rope_pairs"] == ["interleaved"]
    assert used["dtype"] == ["bfloat16"]
    assert used["special tokens"] == ["256"]
    tensors = rows(done.stdout, "tensors")
    assert tensors["tok_embeddings.weight"] == ["[512, 512]", "bfloat16", "524288"]
    assert tensors["layers.0.attention.wk.weight"] == ["[256, 512]", "bfloat16", "262144"]
    assert len(tensors) == 1 + 12
    sizes = rows(done.stdout, "sizes")
    parameters = 4 * 512 * 512 + 2 * 256 * 512 + 3 * 8 * 512 + 3 * 512
    assert sizes["tensors"] == ["12"]
    assert sizes["parameters"] == [str(parameters)]
    assert sizes["bytes of tensors"][0].startswith(f"{2 * parameters} (")
    mapped = (alphabet_model / "consolidated.00.pth").stat().st_size
    assert sizes["bytes of mapped files"][0].startswith(f"{mapped} (")
    assert sizes["KV cache bytes per token"] == [f"{2 * 2 * 128 * 2} (1.0 KiB)"]


def test_a_model_of_hugging_face_is_reported_with_both_names_of_its_tensors(
    run, tmp_path
):
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    more = {"generation": {"eos_token_id": [3, 7]}, "rope_parameters": linear}
    directory = tmp_path / "model"
    write_tiny(
        directory, GROUPED, ml.bfloat16, shards=2, _name_or_path="\x1b[2Jname", **more
    )
    done = run("-m", directory, "--metadata")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    source = rows(done.stdout, "source")
    assert source["format"] == ["Hugging Face, 2 safetensors files"]
    assert source["note"] == ["RoPE scaling factor 2 by config.json"]
    given = rows(done.stdout, "hyperparameters given (config.json)")
    assert (given["hidden_size"], given["rope_parameters.rope_type"]) == (
        ["64"],
        ["linear"],
    )
    used = rows(done.stdout, "hyperparameters used and derived")
    assert (used["head_dim"], used["rope_pairs"]) == (["8"], ["halves"])
    assert (used["rope_scaling"], used["rope_scaling.factor"]) == (["linear"], ["2.0"])
    assert used["tokens that end an answer"] == ["3, 7"]
    wk = rows(done.stdout, "tensors")["layers.1.attention.wk.weight"]
    assert wk == [
        "[16, 64]",
        "bfloat16",
        "2048",
        "model.layers.1.self_attn.k_proj.weight",
    ]
    mapped = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    assert rows(done.stdout, "sizes")["bytes of mapped files"][0].startswith(
        f"{mapped} ("
    )


def test_a_gguf_file_is_reported_with_its_keys_and_long_arrays_cut(run, tmp_path):
    keys = small_vocabulary(tmp_path) | {"general.name": "\x1b[2Jname"}
    factors = {"rope_freqs.weight": np.linspace(1, 8, 4, dtype=np.float32)}
    path = write(
        tmp_path / "a.gguf", with_rows(263), ml.bfloat16.numpy_dtype, keys, factors
    )
    done = run("-m", path, "--metadata")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert rows(done.stdout, "source")["format"] == ["GGUF version 3, a file"]
    given = rows(done.stdout, "hyperparameters given (keys of the file)")
    assert given["llama.embedding_length"] == ["64"]
    assert given["tokenizer.ggml.tokens"] == [
        "263 of string: '<unk>', '<s>', '</s>', ..."
    ]
    assert given["general.name"] == [r"\x1b[2Jname"]
    used = rows(done.stdout, "hyperparameters used and derived")
    assert used["rope_scaling"] == ["rope_freqs.weight"]
    wq = rows(done.stdout, "tensors")["layers.0.attention.wq.weight"]
    assert wq == ["[64, 64]", "bfloat16", "8192", "blk.0.attn_q.weight"]


def test_info_names_versions_kernels_threads_and_memory(run):
    done = run("--info")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.decode().splitlines())
    assert lines["llama-bolts"].strip() == __version__
    assert lines["isa"].strip() == ml.build_info()["isa"]
    for name in ("Python", "numpy", "openmp", "compiler", "threads"):
        assert lines[name]
    assert "free memory" in done.stdout.decode()


@pytest.mark.parametrize("number", list(STAGES))
def test_a_stage_is_explained_by_its_section_its_diagram_and_its_line_of_code(
    run, number
):
    done = run("--explain", str(number))
    assert (done.returncode, done.stderr) == (0, b"")
    *text, chapter, diagram, code = done.stdout.decode().splitlines()
    stage = STAGES[number]
    assert text[0].lstrip("#").strip() == stage.heading
    assert len([line for line in text if line.strip()]) > 2
    assert not [line for line in text if line.startswith("<!--")]
    assert chapter == f"chapter: {REPOSITORY / stage.chapter}"
    assert diagram == f"diagram: {REPOSITORY / stage.diagram}"
    assert code == f"code:    {REPOSITORY / stage.code} {stage.function}"


def test_a_section_ends_at_the_next_heading_and_must_be_there(run, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n## A\n\na\n<!-- run: slow -->\n### Below\nb\n\n## Above\nc\n"
    )
    assert section_of(page, "A") == "a\n### Below\nb"
    assert section_of(page, "B") == ""
    monkeypatch.setattr(reports, "section_of", lambda _page, _heading: "")
    done = run("--explain", "9")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"14b-attention.md: heading: expected 'Stage 9: reshape" in done.stderr


def test_a_terminal_shows_it_rendered(spawn):
    child = spawn("--explain", "13", dimensions=(60, 100))
    child.expect("Stage 13: scores, mask, softmax")
    child.expect("code: +/.*llama.py:")
    assert "## Stage" not in (child.before or "")


def test_a_chapter_is_inside_of_an_installed_package_or_an_error_names_both_places(
    run, tmp_path, monkeypatch
):
    package = tmp_path / "llama_bolts"
    name = "docs/14b-attention.md"
    for module in (code, reports):
        monkeypatch.setattr(module, "PACKAGE", package)
    text = (
        f"error: --explain: expected {package}/{name} or {tmp_path}/{name}, got neither\n"
    )
    assert run("--explain", "13") == Outcome(2, b"", text.encode())
    for folder in ("docs", "diagrams"):
        shutil.copytree(REPOSITORY / folder, package / folder)
    done = run("--explain", "13")
    assert f"chapter: {package}/{name}#stage-13".encode() in done.stdout
    assert f"diagram: {package}/diagrams/stage-13.svg".encode() in done.stdout


def test_the_answer_to_an_exercise_is_plain_text(run):
    text = run("--explain", "2").stdout.decode()
    assert "**Answer.** It raises a `TokenIdError`" in text
    assert "details>" not in text
    assert "<summary>" not in text
