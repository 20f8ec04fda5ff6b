"""Activations of 8 bits: chosen for a model, used by its quantized products alone."""

from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.model import Model, ModelError, load_model
from tests.model.test_llama import run
from tests.model.tiny import GROUPED, write_meta_directory

IDS = list(range(1, 13))
FORMATS = ("nf4", "int8", "q8_0", "q4_0")


def logits_of(model: Model) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return run(model.transformer, IDS)


def activations_of(model: Model) -> set[str]:
    weights = model.tensors.values()
    return {w.activations for w in weights if isinstance(w, ml.QuantizedTensor)}


@pytest.mark.parametrize("name", FORMATS)
def test_activations_of_8_bits_change_the_logits_a_little(name: str) -> None:
    exact = load_model(quantize=name)
    rounded = load_model(quantize=name, activations="int8")
    assert (exact.activations, rounded.activations) == ("int16", "int8")
    assert (activations_of(exact), activations_of(rounded)) == ({"int16"}, {"int8"})
    expected, found = logits_of(exact), logits_of(rounded)
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert 2.0**-10 < error < 2.0**-3


def test_two_models_of_one_process_keep_their_own_activations() -> None:
    exact = load_model(quantize="int8")
    alone = logits_of(exact)
    rounded = load_model(quantize="int8", activations="int8")
    first = logits_of(rounded)
    np.testing.assert_array_equal(logits_of(exact), alone)
    np.testing.assert_array_equal(logits_of(rounded), first)
    assert (first != alone).any()


def test_the_choice_is_named_in_the_description() -> None:
    assert "activations" not in load_model(quantize="int8").description
    model = load_model(quantize="int8", activations="int8")
    assert "activations int8" in model.description.split("; ")


def test_a_model_without_quantized_products_has_the_same_bits(tmp_path: Path) -> None:
    directory = write_meta_directory(tmp_path, GROUPED, ml.float32)
    for path, quantize in ((None, None), (directory, None), (directory, "int8")):
        plain = load_model(path, quantize=quantize)
        model = load_model(path, quantize=quantize, activations="int8")
        is_rounded = model.args.dtype is ml.bfloat16 and quantize is not None
        assert model.activations == ("int8" if is_rounded else None)
        if not is_rounded:
            assert activations_of(model) <= {"int16"}
            assert "activations int8 without quantized products" in model.description
            np.testing.assert_array_equal(logits_of(model), logits_of(plain))


def test_unknown_activations_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="must be one of int16, int8: got 'int4'"):
        load_model(activations="int4")
