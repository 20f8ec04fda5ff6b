"""`--make-vector`, `--patch-scan` and `--ablate-scan`."""

import json
from pathlib import Path

import pytest

from src.checkpoint.safetensors import SafetensorsFile
from src.cli.arguments import parse_arguments

QUESTION = "My name is Tom. What is my name?"


def test_a_vector_is_made_of_two_files_and_used(run, tmp_path: Path) -> None:
    towards = tmp_path / "towards.txt"
    away = tmp_path / "away.txt"
    towards.write_text("Dear Sir, I am writing to you.\n\nYours faithfully,\n")
    away.write_text("Hey dude, what's up?\n")
    vector = tmp_path / "v.safetensors"
    texts = ("--vector-texts", towards, away)
    done = run("--make-vector", vector, *texts, "--vector-layer", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[1].split() == ["texts", "2", "towards,", "1", "away"]
    assert lines[2].split() == ["layer", "1", "of", "4"]
    assert SafetensorsFile(vector).metadata["layer"] == "1"
    ask = ("-p", "Hi", "-n", "8", "--temperature", "0", "-q")
    plain = run(*ask).stdout
    assert run(*ask, "--vector", f"{vector}:0").stdout == plain
    steered = run(*ask, "--vector", f"{vector}:30")
    assert steered.returncode == 0
    assert steered.stdout != plain
    done = run("--make-vector", vector, *texts, "--vector-layer", "4")
    assert b"--vector-layer: expected a layer from 0 to 3, got 4" in done.stderr
    away.write_text("\n")
    done = run("--make-vector", vector, *texts)
    assert b"both sets must contain a text: got 2 and 0" in done.stderr
    with pytest.raises(SystemExit):
        parse_arguments(["--make-vector", "x"])


def test_a_patch_scan_names_the_places_of_the_answer(run, tmp_path: Path) -> None:
    numbers = tmp_path / "scan.json"
    plot = tmp_path / "scan.svg"
    other = "My name is Ben. What is my name?"
    flags = ("-p", QUESTION, "--patch-scan", other, "--patch-at", "4", "-q")
    done = run(*flags, "--scan-json", numbers, "--scan-plot", plot)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "from ' T' to ' B' by bundled model"
    assert "layer 2  ··········█··················" in lines
    assert "layer 3  ····························█" in lines
    data = json.loads(numbers.read_text())
    assert data["kind"] == "patches"
    assert data["texts"][10] == "' T'"
    assert len(data["residual"]) == 4
    assert plot.read_text("utf-8").startswith("<svg ")
    done = run("-p", QUESTION, "--patch-scan", "Hi")
    assert done.returncode == 2
    assert b"--patch-scan: [patch] both prompts must have the same number" in done.stderr


def test_an_ablation_scan_lists_the_parts_by_their_losses(run, tmp_path: Path) -> None:
    numbers = tmp_path / "scan.json"
    text = Path("tests/golden/long.txt").resolve()
    flags = ("--ablate-scan", text, "-c", "32", "--chunks", "1", "-q")
    done = run(*flags, "--scan-json", numbers)
    assert done.returncode == 0, done.stderr
    data = json.loads(numbers.read_text())
    assert data["tokens"] == 15
    lines = done.stdout.decode().splitlines()
    assert f"{data['loss']:.4f}" in lines[2]
    name, rise = lines[-10].split()
    layer = int(name.split(".")[1])
    loss = (
        data["feed_forward"][layer]
        if "feed" in name
        else data["heads"][layer][int(name[-2])]
    )
    assert float(rise) == pytest.approx(loss - data["loss"], abs=1e-4)
