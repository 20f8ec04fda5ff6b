"""The texts of errors: one form, and nothing from a file reaches the terminal unescaped."""

from src.checkpoint import errors
from src.ml import LlamaBoltsError


def test_a_list_of_names_shows_five_and_counts_all() -> None:
    assert errors.some_of(["a", "b"]) == "'a', 'b' (2 in all)"
    assert errors.some_of(list("abcdefg")) == "'a', 'b', 'c', 'd', 'e', ... (7 in all)"


def test_a_mismatch_has_the_form_of_all_texts() -> None:
    assert errors.mismatch("f.pth", "size", 3, 4) == "f.pth: size: expected 3, got 4"


def test_every_error_is_of_the_one_base_class() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    ours = [value for value in classes if value.__module__ == errors.__name__]
    assert len(ours) == 11
    assert all(issubclass(value, errors.CheckpointError) for value in ours)
    assert issubclass(errors.CheckpointError, LlamaBoltsError)
