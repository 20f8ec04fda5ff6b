from collections.abc import Callable
from pathlib import Path

from src import ml
from tests.cli.conftest import Run
from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import GROUPED


def rows(output: bytes, title: str) -> dict[str, list[str]]:
    """Returns the cells of a table of the report by their first one."""
    lines = output.decode().split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in lines]
    return {row[0]: [cell.strip() for cell in row[1:]] for row in cells if row}


def test_the_report_holds_parameters_tensors_and_sizes(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--metadata")
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
    assert used["rope_scaling.factor"] == ["8.0"]
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
    run: Run, tmp_path: Path
) -> None:
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    directory = write_tiny(
        tmp_path / "model",
        GROUPED,
        ml.bfloat16,
        shards=2,
        generation={"eos_token_id": [3, 7]},
        rope_parameters=linear,
        _name_or_path="\x1b[2Jname",
    )
    done = run("-m", directory, "--metadata")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    source = rows(done.stdout, "source")
    assert source["format"] == ["Hugging Face, 2 safetensors files"]
    assert source["note"] == ["RoPE scaling factor 2 by config.json"]
    given = rows(done.stdout, "hyperparameters given (config.json)")
    assert given["rope_parameters.rope_type"] == ["linear"]
    assert given["hidden_size"] == ["64"]
    used = rows(done.stdout, "hyperparameters used and derived")
    assert (used["head_dim"], used["rope_pairs"]) == (["8"], ["halves"])
    assert (used["rope_scaling"], used["rope_scaling.factor"]) == (["linear"], ["2.0"])
    assert used["tokens that end an answer"] == ["3, 7"]
    tensors = rows(done.stdout, "tensors")
    assert tensors["layers.1.attention.wk.weight"] == [
        "[16, 64]", "bfloat16", "2048", "model.layers.1.self_attn.k_proj.weight",
    ]  # fmt: skip
    assert len(tensors) == 1 + 3 + 9 * GROUPED.layers
    sizes = rows(done.stdout, "sizes")
    assert sizes["tensors"] == [str(3 + 9 * GROUPED.layers)]
    mapped = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    assert sizes["bytes of mapped files"][0].startswith(f"{mapped} (")


def test_a_bad_model_has_no_report(run: Run, tmp_path: Path) -> None:
    done = run("-m", tmp_path, "--metadata")
    assert (done.returncode, done.stdout) == (3, b"")


def test_the_report_says_what_was_overridden(run: Run, alphabet_model: Path) -> None:
    assert run("-m", alphabet_model, "--metadata", "--rope-scaling-factor", "32").stdout.count(
        b"32.0"
    )


def test_without_a_tokenizer_there_is_still_a_report(
    run: Run, reciting: Callable[..., Path]
) -> None:
    directory = reciting(b"abc")
    (directory / "tokenizer.model").unlink()
    assert run("-m", directory, "--metadata").returncode == 0
