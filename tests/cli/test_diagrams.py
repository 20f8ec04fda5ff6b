import errno
import os
import re
from pathlib import Path

from src import trace
from src.trace.logger import tensor_text
from tests.cli.conftest import ALPHABET
from tests.trace.recording import read_trace

ANSWER = f"{ALPHABET}\n".encode()


def test_the_diagrams_of_a_run_are_written_beside_its_answer(run, alphabet_model, tmp_path):
    target = tmp_path / "new" / "diagrams"
    done = run("-m", alphabet_model, "-p", "x <y>", "--diagrams", target)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert f"22 diagrams in {target}\n".encode() in done.stderr
    names = {path.name for path in target.iterdir()}
    assert names == {"model.svg", *(f"stage-{number:02}.svg" for number in range(1, 22))}
    assert "x &lt;y&gt;" in (target / "stage-01.svg").read_text(encoding="utf-8")
    assert not trace.is_on()


def test_a_full_disk_leaves_nothing_of_the_diagrams(run, alphabet_model, tmp_path, monkeypatch):
    """Half of them, and no word which half, were left before."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "stage-01.svg").write_text("kept")
    written = 0
    write_text = Path.write_text

    def fill(path: Path, text: str, encoding: str) -> int:
        nonlocal written
        written += 1
        if written % 12 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", fill)
    for target in (tmp_path / "new", old):
        done = run("-m", alphabet_model, "-p", "x", "-q", "--diagrams", target)
        assert (done.returncode, done.stdout) == (2, ANSWER)
        assert done.stderr.endswith(b"writable directory, got No space left on device\n")
    monkeypatch.undo()
    assert os.listdir(tmp_path / "new") == []
    assert os.listdir(old) == ["stage-01.svg"]
    assert (old / "stage-01.svg").read_text() == "kept"
    assert run("-m", alphabet_model, "-p", "x", "--diagrams", old).returncode == 0
    assert len(os.listdir(old)) == 22


def test_what_cannot_be_written_is_refused_before_or_after_the_answer(
    run, alphabet_model, tmp_path
):
    target = tmp_path / "file"
    target.touch()
    (tmp_path / "stage-07.svg").mkdir()
    refused = ((target, b"", "File exists"), (tmp_path, ANSWER, "Is a directory"))
    for path, answer, reason in refused:
        done = run("-m", alphabet_model, "-p", "x", "-q", "--diagrams", path)
        assert (done.returncode, done.stdout) == (2, answer)
        text = f"error: {path}: --diagrams: expected a writable directory, got {reason}\n"
        assert done.stderr == text.encode()


def test_log_json_and_diagrams_of_one_run_show_the_same_numbers(run, alphabet_model, tmp_path):
    log, lines, target = tmp_path / "debug.log", tmp_path / "t.jsonl", tmp_path / "d"
    files = ("--debug-log", log, "--trace-json", lines, "--diagrams", target)
    done = run("-m", alphabet_model, "-p", "x", "-n", "2", "--seed", "3", *files)
    assert done.returncode == 0
    assert not trace.is_on()
    shown = log.read_text("utf-8")
    pictures = {n: (target / f"stage-{n:02}.svg").read_text("utf-8") for n in range(1, 22)}
    for event in read_trace(lines)[1]:
        picture, step, details = pictures[event.stage], event.step, event.details
        for x in event.outputs if event.stage > 1 else ():
            assert tensor_text(x) in shown
            if event.stage in range(6, 20) and step == 0 and event.op != "mark":
                assert f">{list(x.shape)} {x.dtype}<" in picture
        if event.stage == 3:
            sizes = f"T = {details['T']}, S = {details['S']}"
            assert f": step {step}, {sizes}, " in shown
            assert f">step {step}</text>" in picture
            assert f">{sizes}<" in picture
        elif event.op == "write_cache" and not event.layer:
            assert f", written = {details['written']}, " in shown
            assert f">step {step}: writes {details['written']}, then " in picture
        elif event.stage == 20:
            assert f"random number {details['random']:.6f}" in shown
            assert f"random number {details['random']:.4f}" in picture
            candidates = details["choice"]["candidates"]
            for candidate, logit in zip(candidates, details["logits"], strict=True):
                first, *_, last = (f"{p:.4f}" for p in candidate["probabilities"])
                assert re.search(rf" {logit:.3f} +{first} .*\b{last}\b", shown)
                assert f">{first} {last} {logit:.2f}<" in picture


def test_diagrams_need_a_prompt(spawn, alphabet_model, tmp_path):
    child = spawn("-m", alphabet_model, "--diagrams", tmp_path)
    child.expect("error: --diagrams: expected a prompt")
