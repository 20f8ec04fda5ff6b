"""Each exercise is passed by its solution, and by nothing else; mistakes are named."""

import ast
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.exercises import (
    AttemptError,
    Exercise,
    UnknownExerciseError,
    Verdict,
    find_exercise,
    list_exercises,
    mark_attempt,
)
from src.exercises.attempt import Attempt
from src.exercises.chat import ChatRun, replaced, run_chat
from src.exercises.comparison import first_difference
from src.exercises.exercise import WriteIt
from src.inference import sampling
from src.model import Model, llama, load_model

ROOT = Path(__file__).resolve().parents[2]
EXERCISES = {exercise.number: exercise for exercise in list_exercises()}


@cache
def bundled() -> Model:
    return load_model()


def mark(exercise: Exercise, text: str) -> Verdict:
    """Mark a program, whose warnings are no failure of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mark_attempt(exercise, text, "answer.py", bundled())


def test_the_exercises_are_in_the_order_of_the_book_and_belong_to_chapters():
    numbers = [tuple(map(int, number.split("."))) for number in EXERCISES]
    assert numbers == sorted(numbers)
    assert len(EXERCISES) >= 40
    for exercise in EXERCISES.values():
        assert list(ROOT.glob(f"docs/{exercise.chapter:02d}-*.md")), exercise.number
    for chapter in {chapter for chapter, _ in numbers}:
        own = [place for of, place in numbers if of == chapter]
        assert own == list(range(1, len(own) + 1)), chapter


def test_the_module_of_an_exercise_begins_with_its_number():
    files = {path.stem for path in (ROOT / "src/exercises/tasks").glob("e*.py")}
    names = {
        f"e{x.chapter:02d}_{x.number.partition('.')[2]}_" for x in EXERCISES.values()
    }
    assert len(files) == len(names)
    assert all(any(file.startswith(name) for file in files) for name in names)


def test_there_are_all_kinds_and_each_exercise_names_three_mistakes_at_least():
    kinds = {exercise.kind for exercise in EXERCISES.values()}
    assert kinds == {"write it", "predict it", "break it"}
    for exercise in EXERCISES.values():
        assert len({mistake.message for mistake in exercise.mistakes}) >= 3
        assert exercise.difficulty in ("easy", "medium", "hard")
        assert exercise.minutes % 5 == 0


@pytest.mark.parametrize("number", EXERCISES)
def test_the_solution_passes(number):
    exercise = EXERCISES[number]
    verdict = mark(exercise, exercise.solution)
    assert verdict.passed, verdict.lines


@pytest.mark.parametrize("number", EXERCISES)
def test_the_stub_fails_and_says_what_is_missing(number):
    exercise = EXERCISES[number]
    verdict = mark(exercise, exercise.stub)
    assert not verdict.passed
    if exercise.kind == "predict it":
        assert verdict.lines == ("answer is not set yet.",)
    else:
        line = 1 + next(
            i
            for i, text in enumerate(exercise.stub.split("\n"))
            if "raise NotImplementedError" in text
        )
        assert verdict.lines[0] == f"answer.py:{line}: NotImplementedError"
        assert verdict.lines[1].endswith(" is not written yet.")


MISTAKES = [
    (number, i)
    for number, exercise in EXERCISES.items()
    for i in range(len(exercise.mistakes))
]


@pytest.mark.parametrize(("number", "i"), MISTAKES)
def test_each_mistake_is_named(number, i):
    exercise = EXERCISES[number]
    mistake = exercise.mistakes[i]
    verdict = mark(exercise, mistake.source(exercise.solution))
    assert not verdict.passed
    assert verdict.lines[-1] == mistake.message


@pytest.mark.parametrize("number", EXERCISES)
def test_the_stub_and_the_solution_define_the_same_names(number):
    exercise = EXERCISES[number]
    names = [
        {
            node.name
            if isinstance(node, ast.FunctionDef)
            else ast.unparse(node.targets[0])
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.Assign)
        }
        for text in (exercise.stub, exercise.solution)
    ]
    assert names[0] <= names[1]
    assert all(len(line) <= 100 for line in exercise.task.split("\n"))


# Answers that are written in another way than the solutions, and a word of the message.
OTHERS = {
    "a loop over rows": (
        "9.1",
        """
import math
def rms_norm(x, weight, eps):
    out = []
    for row in x.tolist():
        mean = sum(v * v for v in row) / len(row)
        out.append([v / math.sqrt(mean + eps) * w for v, w in zip(row, weight.tolist())])
    return out
""",
        None,
    ),
    "layer norm": (
        "9.1",
        """
def rms_norm(x, weight, eps):
    centred = x - x.mean(axis=1).reshape(-1, 1)
    variance = (centred ** 2).mean(axis=1).reshape(-1, 1)
    return centred * weight / (variance + eps) ** 0.5
""",
        "subtracted first",
    ),
    "a rotation with cosines and sines": (
        "10.2",
        """
import numpy as np
def rotate(x, table):
    cos, sin = table.real[:, None], table.imag[:, None]
    a, b = x[:, :, ::2], x[:, :, 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
""",
        None,
    ),
    "rotate_half of Hugging Face": (
        "10.2",
        """
import numpy as np
def rotate(x, table):
    cos = np.concatenate([table.real, table.real], -1)[:, None]
    sin = np.concatenate([table.imag, table.imag], -1)[:, None]
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin
""",
        "Wrong pair order: your pairs are halves",
    ),
    "a rotation with the wrong sign": (
        "10.2",
        """
import numpy as np
def rotate(x, table):
    cos, sin = table.real[:, None], table.imag[:, None]
    a, b = x[:, :, ::2], x[:, :, 1::2]
    return np.stack([a * cos + b * sin, b * cos - a * sin], axis=-1).reshape(x.shape)
""",
        "backwards",
    ),
    "a mask of triu": (
        "14.1",
        """
import numpy as np
def causal_mask(T, start):
    return np.triu(np.full((T, start + T), -np.inf, np.float32), start + 1)
""",
        None,
    ),
    "a mask that hides the token itself": (
        "14.1",
        """
import numpy as np
def causal_mask(T, start):
    return np.triu(np.full((T, start + T), -np.inf, np.float32), start)
""",
        "Off by one position: a token may look at itself",
    ),
    "a log-probability in float32, which loses digits where it is near 0": (
        "15.2",
        """
import numpy as np
def log_probability(logits, token):
    largest = logits.max()
    return logits[token] - (largest + np.log(np.exp(logits - largest).sum()))
""",
        None,
    ),
    "a softmax along the rows": (
        "14.2",
        """
import numpy as np
def softmax(scores):
    e = np.exp(scores - np.max(scores, axis=2, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)
""",
        "wrong axis",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_answers_written_in_another_way_are_judged_by_their_results(name):
    number, text, part = OTHERS[name]
    verdict = mark(EXERCISES[number], text)
    assert verdict.passed == (part is None), verdict.lines
    if part is not None:
        assert part in verdict.lines[-1]


def test_the_first_difference_has_index_value_and_expected_value():
    text = EXERCISES["14.1"].solution.replace("columns <= rows", "columns < rows")
    lines = mark(EXERCISES["14.1"], text).lines
    assert lines[0] == (
        "causal_mask(4, 0), a prompt of 4 tokens: index [0, 0]: -inf, expected 0 "
        "(4 of 16 elements differ)"
    )


def test_a_function_that_is_right_in_the_cases_alone_fails_in_the_chat():
    text = EXERCISES["14.1"].solution.replace(
        "    rows =", "    if T > 4:\n        T = T - 1\n    rows ="
    )
    verdict = mark(EXERCISES["14.1"], text)
    assert not verdict.passed
    assert "call 1 in a chat: shape [" in verdict.lines[0]


def test_a_chat_leaves_the_functions_of_the_engine_in_their_places():
    before = ml.rms_norm, ml.softmax, llama.causal_mask, sampling.draw
    for number in ("9.1", "14.1", "14.2", "16.2"):
        assert mark(EXERCISES[number], EXERCISES[number].solution).passed
    failing = EXERCISES["9.1"].solution.replace(
        "    mean =", "    assert len(x) < 9\n    mean ="
    )
    verdict = mark(EXERCISES["9.1"], failing)
    assert verdict.lines == ("answer.py:6: AssertionError",)
    assert (ml.rms_norm, ml.softmax, llama.causal_mask, sampling.draw) == before


def test_the_norms_of_a_chat_compute_with_the_elements_that_the_reader_returns():
    exercise = EXERCISES["18.1"]
    assert isinstance(exercise, WriteIt)
    with exercise.in_chat(lambda _arguments, expected: expected):
        quantized = run_chat(bundled())
    with exercise.in_chat(lambda _arguments, expected: 2 * expected):
        doubled = run_chat(bundled())
    assert quantized.answer == run_chat(bundled()).answer
    assert not quantized.has_bits_of(run_chat(bundled()))
    assert quantized.distance(doubled) > 1


def test_a_function_replaced_without_a_call_fails():
    exercise = EXERCISES["9.1"]
    other = type(exercise)(
        **{**vars(exercise), "in_chat": lambda _call: replaced(ml, "geglu", ml.geglu)}
    )
    verdict = mark(other, exercise.solution)
    assert not verdict.passed
    assert "the chat did not call the function" in verdict.lines[0]


# ---- the reader's program --------------------------------------------------------------

BROKEN = {
    "def f(:\n": "answer.py:1: SyntaxError: ",
    "\n\nx = 1 / 0\n": "answer.py:3: ZeroDivisionError: division by zero",
    "import json\n\njson.loads('{')\n": "answer.py:3: JSONDecodeError: ",
    "import sys\nsys.exit(3)\n": "answer.py:2: SystemExit: 3",
    "import nothing_of_this_name\n": "answer.py:1: ModuleNotFoundError: ",
    "x = 1\x00\n": "answer.py: ValueError: ",
}


@pytest.mark.parametrize("text", BROKEN)
def test_an_error_is_one_line_with_the_line_of_the_reader(text):
    with pytest.raises(AttemptError) as caught:
        Attempt(text, "answer.py")
    message = str(caught.value)
    if "\x00" not in text:
        assert message.startswith(BROKEN[text])
    else:
        assert message.startswith("answer.py")
    verdict = mark(EXERCISES["9.1"], text)
    assert (verdict.passed, len(verdict.lines)) == (False, 1)


def test_a_function_that_is_missing_or_none_is_named():
    assert mark(EXERCISES["9.1"], "").lines == (
        "answer.py: rms_norm: expected a definition, got none",
        "--exercise 9.1 shows the lines to begin with.",
    )
    assert mark(EXERCISES["9.1"], "rms_norm = 3").lines == (
        "answer.py: rms_norm: expected a function, got int",
        "--exercise 9.1 shows the lines to begin with.",
    )


def test_layers_that_cannot_be_left_out_are_named():
    verdict = mark(EXERCISES["9.3"], "answer = [1, 2]")
    assert verdict.lines[-1].startswith("Layer 1 can be left out. Without layer 2, ")


def test_each_exercise_has_a_separate_file():
    files = [exercise.answer_file for exercise in EXERCISES.values()]
    assert len(set(files)) == len(files)
    assert EXERCISES["10.2"].answer_file == "answer_10_2.py"


def test_a_prediction_of_another_type_is_named():
    assert mark(EXERCISES["11.1"], "answer = '2097152'").lines == (
        "the bytes: '2097152', expected a value of type int",
    )
    assert mark(EXERCISES["11.1"], "answer = 4194304").passed
    assert mark(EXERCISES["11.1"], "answer = 5").lines == (
        "the bytes: 5 is not what the engine computes; it is too small",
    )
    assert (
        mark(EXERCISES["11.1"], "answer = 4194304.0").lines[0].startswith("the bytes: ")
    )


@pytest.mark.parametrize("value", ["None", "'text'", "[[1], [1, 2]]", "x[0]", "{}"])
def test_a_result_of_another_kind_is_a_difference(value):
    verdict = mark(
        EXERCISES["9.1"], f"def rms_norm(x, weight, eps):\n    return {value}\n"
    )
    assert not verdict.passed
    assert "expected" in verdict.lines[0]


def test_the_arguments_of_a_case_are_copies():
    text = EXERCISES["9.1"].solution.replace("    mean =", "    x *= 1\n    mean =")
    assert mark(EXERCISES["9.1"], text).passed


def test_an_unknown_number_is_an_error_that_lists_those_of_the_chapter():
    with pytest.raises(UnknownExerciseError, match=r"10\.1 or 10\.2 .* list, got 10\.99"):
        find_exercise("10.99")
    assert find_exercise("10.2") is not None


# ---- comparison ------------------------------------------------------------------------

DIFFERENCES = [
    (np.float32([1, 2]), np.float32([1, 2]), 0.0, None),
    (np.float32([1, np.nan]), np.float32([1, np.nan]), 0.0, None),
    (np.float32([0.0]), np.float32([-0.0]), 0.0, "index [0]: 0, expected -0"),
    (
        np.float32([1.0, 2.0]),
        np.float32([1.0, 2.0000002]),
        0.0,
        "index [1]: 2, expected 2",
    ),
    (np.float32([1.0, 2.0]), np.float32([1.0, 2.0000002]), 1e-6, None),
    (np.float32([1.0, 2.1]), np.float32([1.0, 2.0]), 1e-3, "index [1]: 2.1, expected 2"),
    (np.float32([np.inf]), np.float32([np.inf]), 1e-6, None),
    (np.float32([np.nan]), np.float32([1.0]), 1e-6, "index [0]: nan, expected 1"),
    ([1, 2, 3], [1, 2], 0.0, "index 2: 3, expected the end"),
    ([1], [1, 2], 0.0, "index 1: missing, expected 2"),
    (5, [1, 2], 0.0, "5, expected a list"),
    ("a", "b", 0.0, "'a', expected 'b'"),
    (True, 1, 0.0, "True, expected 1"),
    (2.5, 2.5, 0.0, None),
    (-0.001125, -0.001124, 1e-4, None),
    (-0.0015, -0.001, 1e-4, "-0.0015, expected -0.001"),
    (5000.0, 5000.4, 1e-4, None),
    (5000.0, 5000.6, 1e-4, "5000, expected 5000.6"),
    ("2.5", 2.5, 0.0, "'2.5', expected 2.5"),
    ({"a": 1}, {"a": 1, "b": 2}, 0.0, "key 'b': missing, expected 2"),
    ({"a": 1, "c": 2}, {"a": 1}, 0.0, "key 'c': expected no such key"),
    (np.float32([1]), np.int32([1]), 0.0, "an array of float32, expected int32"),
]


@pytest.mark.parametrize(("value", "expected", "bound", "difference"), DIFFERENCES)
def test_the_first_difference_is_described(value, expected, bound, difference):
    found = first_difference(value, expected, bound)
    if difference is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(difference)


def test_chats_are_compared_by_the_bits_of_their_logits():
    chat = run_chat(bundled())
    assert "Columbus" in chat.answer
    assert chat.has_bits_of(run_chat(bundled()))
    changed = [logits.copy() for logits in chat.logits]
    changed[-1].view(np.uint32)[0] ^= 1
    other = ChatRun(chat.question, chat.answer, changed)
    assert not chat.has_bits_of(other)
    assert not chat.has_bits_of(ChatRun(chat.question, chat.answer, chat.logits[:-1]))
    assert chat.distance(other) == 0.0 < chat.largest_distance(other)
