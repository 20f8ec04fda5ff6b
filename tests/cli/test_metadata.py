from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Run


def rows(output: bytes, title: str) -> dict[str, list[str]]:
    """Returns the cells of a table of the report by their first one."""
    lines = output.decode().split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in lines]
    return {row[0]: [cell.strip() for cell in row[1:]] for row in cells if row}


def test_the_report_holds_parameters_tensors_and_sizes(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--metadata")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"{alphabet_model}\n")
    given = rows(done.stdout, "hyperparameters given (params.json)")
    assert given["dim"] == ["512"]
    assert given["use_scaled_rope"] == ["True"]
    used = rows(done.stdout, "hyperparameters used, derived ones included")
    assert used["head_dim"] == ["128"]
    assert used["ffn_dim"] == ["8"]
    assert used["group_size (n_heads / n_kv_heads)"] == ["2"]
    assert used["rope_scaling.factor"] == ["8.0"]
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
