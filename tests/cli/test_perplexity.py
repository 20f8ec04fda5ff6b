"""`--perplexity` and `--kl-divergence`: a table, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest

from src.inference import perplexity_of, score_chunks, text_chunks
from src.model import load_model
from tests.cli.conftest import run_program
from tests.cli.test_bench import cells

TEXT = Path(__file__).parents[1] / "golden/real.txt"


def test_a_text_gets_its_tokens_its_perplexity_and_a_speed(run):
    done = run("--perplexity", TEXT, "-c", "64")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert done.stdout.decode().splitlines()[0] == f"{TEXT} by bundled model"
    model = load_model()
    chunks = text_chunks(model.tokenizer, TEXT.read_text("utf-8").removesuffix("\n"), 64)
    losses = np.concatenate([s.losses for s in score_chunks(model.transformer, chunks)])
    expected = perplexity_of(losses)
    table = cells(done.stdout)
    assert table["tokens"] == [f"{64 * len(chunks)}, in {len(chunks)} chunks of 64"]
    assert table["scored tokens"] == [str(31 * len(chunks))]
    assert table["perplexity"] == [f"{expected.value:.4f} ± {expected.error:.5f}"]
    assert float(table["tokens/s"][0]) > 0


def test_chunks_are_512_tokens_long_and_may_be_the_first_alone(run):
    table = cells(run("--perplexity", TEXT, "--chunks", "2").stdout)
    assert table["tokens"] == ["1024, in 2 chunks of 512"]
    table = cells(run("--perplexity", TEXT, "--chunks", "1000").stdout)
    assert table["tokens"] == ["1536, in 3 chunks of 512"]


def test_the_newline_at_the_end_of_the_file_does_not_count(run, tmp_path):
    tables = []
    for end in ("", "\n"):
        path = tmp_path / "a.txt"
        path.write_text(f"What is the capital of Norway?{end}")
        tables.append(cells(run("--perplexity", path, "-c", "4").stdout)["perplexity"])
    assert tables[0] == tables[1]


def test_a_reference_adds_the_divergence_from_it(run, tmp_path):
    done = run("--quantize", "nf4", "--save-quantized", tmp_path / "nf4")
    assert done.returncode == 0, done.stderr
    reference = load_model().source_directory
    arguments = ("--perplexity", TEXT, "-c", "64", "--chunks", "2")
    plain = cells(run(*arguments).stdout)
    itself = cells(run(*arguments, "--kl-divergence", reference).stdout)
    assert itself["KL divergence, mean"] == ["0.000000 ± 0.0000000"]
    assert itself["same most probable token"] == ["100.000 ± 0.000 %"]
    other = cells(
        run("-m", tmp_path / "nf4", *arguments, "--kl-divergence", reference).stdout
    )
    assert other["perplexity of the reference"] == plain["perplexity"]
    assert other["perplexity"] != plain["perplexity"]
    mean, median, most = (
        float(other[f"KL divergence, {kind}"][0].split()[0])
        for kind in ("mean", "median", "maximum")
    )
    assert 0 < median < mean < most
    assert re.fullmatch(r"\d+\.\d{3} %", other["change of a token's probability, rms"][0])
    # A quantization on loading concerns the model alone.
    same = cells(
        run(*arguments, "--quantize", "nf4", "--kl-divergence", reference).stdout
    )
    assert same["KL divergence, mean"] == other["KL divergence, mean"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-c", "2"), "--context-length: expected at least 3 for --perplexity, got 2"),
        (
            ("-c", "9"),
            "short.txt: text: expected at least the 9 tokens of a chunk (-c sets a ",
        ),
        (("-p", "a"), "argument --perplexity: not allowed with --prompt"),
        (("--json",), "argument --json: not allowed with --perplexity"),
        (("--chunks", "0"), "argument --chunks: must be at least 1: got 0"),
        (
            ("--kl-divergence-base", "a"),
            "--kl-divergence MODEL runs the reference model",
        ),
    ],
)
def test_what_cannot_be_scored_is_one_line(run, tmp_path, arguments, reason):
    path = tmp_path / "short.txt"
    path.write_text("Norway")
    assert run("--perplexity", path, "-c", "3").returncode == 0
    done = run_program("--perplexity", path, *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert reason in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_a_reference_with_other_tokens_is_rejected(run, alphabet_model):
    done = run(
        "--perplexity",
        TEXT,
        "-c",
        "64",
        "--chunks",
        "1",
        "--kl-divergence",
        alphabet_model,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--kl-divergence: " in done.stderr
    assert b"vocabulary: expected 4096 tokens as in the model, got " in done.stderr


@pytest.mark.parametrize(
    ("flag", "needed"),
    [
        ("--kl-divergence", "--perplexity"),
        ("--chunks", "--perplexity or --ablate-scan"),
    ],
)
def test_flags_that_need_a_text_say_so(flag, needed):
    done = run_program(flag, "1")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"error: argument {flag}: needs {needed} (--help lists the options)\n"
    )


def test_a_text_that_is_not_there_or_not_text_is_one_line(run, tmp_path):
    for content, reason in (
        (None, "No such file"),
        (b"\xff\xfe\xff", "text: expected UTF-8"),
    ):
        path = tmp_path / "a.txt"
        if content is not None:
            path.write_bytes(content)
        done = run("--perplexity", path)
        assert (done.returncode, done.stdout) == (2, b"")
        assert reason in done.stderr.decode()
