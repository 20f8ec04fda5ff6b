"""`--exercise`: the list, a task, a solution, and the marks of an answer."""

import pytest

from src.cli.arguments import parse_arguments
from src.exercises import find_exercise, list_exercises


def test_the_list_has_every_exercise(run):
    done = run("--exercise", "list")
    assert done.returncode == 0
    lines = done.stdout.decode().split("\n")
    assert lines[0].split() == ["number", "title", "kind", "time", "difficulty"]
    numbers = [line.split()[0] for line in lines[1 : 1 + len(list_exercises())]]
    assert numbers == [exercise.number for exercise in list_exercises()]


def test_a_task_is_shown_with_its_stub_and_without_its_solution(run):
    exercise = find_exercise("10.2")
    text = run("--exercise", "10.2").stdout.decode()
    assert exercise.task in text
    assert exercise.stub in text
    assert "turned" not in text
    assert "--exercise 10.2 answer_10_2.py" in text


def test_a_solution_is_a_program_that_passes(run, tmp_path):
    done = run("--exercise", "10.2", "--solution")
    assert done.stdout.decode() == find_exercise("10.2").solution
    path = tmp_path / "answer.py"
    path.write_bytes(done.stdout)
    marked = run("--exercise", "10.2", str(path))
    assert (marked.returncode, marked.stderr) == (0, b"")
    assert marked.stdout.endswith(b"\nexercise 10.2: passed\n")
    assert b"The capital of Ohio is Columbus." in marked.stdout


def test_a_stub_is_written_once_and_fails(run, tmp_path):
    path = tmp_path / "answer.py"
    done = run("--exercise", "9.1", str(path))
    assert done.stdout.decode() == f"{path}: a stub of exercise 9.1 was written.\n"
    assert path.read_text() == find_exercise("9.1").stub
    done = run("--exercise", "9.1", str(path))
    assert done.returncode == 1
    assert done.stdout.decode().split("\n")[0] == f"{path}:6: NotImplementedError"
    assert done.stderr == b"error: exercise 9.1: not passed yet\n"
    assert path.read_text() == find_exercise("9.1").stub


def test_a_wrong_answer_shows_index_value_and_expected_and_names_the_mistake(
    run, tmp_path
):
    path = tmp_path / "answer.py"
    path.write_text(find_exercise("9.1").solution.replace("axis=-1", "axis=0"))
    done = run("--exercise", "9.1", str(path))
    assert done.returncode == 1
    first, second, _ = done.stdout.decode().split("\n", 2)
    assert "index [0, 0]: " in first
    assert ", expected " in first
    assert second.startswith("The mean runs over the wrong axis")


def test_an_error_in_the_program_is_one_line_with_its_line(run, tmp_path):
    path = tmp_path / "answer.py"
    path.write_text("import numpy as np\n\nrms_norm = np.nothing_of_this_name\n")
    done = run("--exercise", "9.1", str(path))
    assert done.returncode == 1
    lines = done.stdout.decode().split("\n")
    assert lines[0].startswith(f"{path}:3: AttributeError: ")
    assert lines[1:] == [""]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["9.99"], "--exercise: expected 9.1 or 9.2"),
        (["text"], "--exercise: expected list, got text"),
        (["9.1", "{}"], "{}: expected a readable file, got Is a directory"),
        (["9.1", "{}/no/file.py"], "{}/no/file.py: expected a path that can be written"),
    ],
)
def test_a_wrong_request_is_one_line(run, arguments, text, tmp_path):
    done = run("--exercise", *(part.format(tmp_path) for part in arguments))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"error: {text.format(tmp_path)}")
    assert done.stderr.count(b"\n") == 1


def test_files_that_are_no_programs_are_refused(run, tmp_path):
    path = tmp_path / "answer.py"
    path.write_bytes(b"x = '\xff'\n")
    done = run("--exercise", "9.1", str(path))
    assert done.returncode == 2
    assert b"expected UTF-8, got an invalid byte at offset 5" in done.stderr
    path.write_bytes(b"#" * ((1 << 20) + 1))
    done = run("--exercise", "9.1", str(path))
    assert done.returncode == 2
    assert b"size: expected at most 1 MiB, got more" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--exercise", "9.1", "a", "b"],
            "--exercise: expected N.M and at most one FILE",
        ),
        (["--exercise", "9.1", "-m", "x"], "--exercise: not allowed with --model"),
        (["--exercise", "9.1", "-p", "x"], "--exercise: not allowed with --prompt"),
        (["--solution"], "--solution: needs --exercise"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: argument {text}")
