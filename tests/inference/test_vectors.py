"""Steering vectors: means of residual streams, their files, and their effect."""

from pathlib import Path

import numpy as np
import pytest

from src.checkpoint.safetensors import SafetensorsFile
from src.inference import PromptError
from src.inference.vectors import (
    load_vector,
    mean_residuals,
    read_array,
    save_arrays,
    save_vectors,
    steering_vectors,
)
from src.model import (
    InferenceContext,
    Intervention,
    InterventionError,
    Model,
    intervene,
    load_model,
)

TOWARDS = [list(range(40, 52)), list(range(60, 66))]
AWAY = [list(range(100, 110))]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


def residual(
    model: Model, ids: list[int], layer: int, *changes: Intervention
) -> np.ndarray:
    record = Intervention.record(model, f"x[layer {layer}]")
    context = InferenceContext(model.args, 64)
    with intervene(model, *changes, record):
        model.transformer.forward(context, ids)
    return record.recorded


def test_a_vector_is_the_difference_of_two_means(model: Model) -> None:
    vectors = steering_vectors(model, TOWARDS, AWAY)
    assert vectors.shape == (model.args.n_layers, model.args.dim)
    for layer in (0, 3):
        towards = np.concatenate([residual(model, ids, layer)[1:] for ids in TOWARDS])
        away = residual(model, AWAY[0], layer)[1:]
        expected = towards.mean(axis=0) - away.mean(axis=0)
        np.testing.assert_allclose(vectors[layer], expected, rtol=1e-4, atol=1e-5)


def test_a_saved_vector_is_added_at_its_layer(model: Model, tmp_path: Path) -> None:
    vectors = steering_vectors(model, TOWARDS, AWAY)
    path = tmp_path / "v.safetensors"
    save_vectors(path, vectors, layer=1)
    assert SafetensorsFile(path).metadata["layer"] == "1"
    assert (read_array(path, "layers.2.x") == vectors[2]).all()
    steered = load_vector(model, path, 0.5)
    assert steered.text == "layers.1.x+=0.5*v.safetensors:layers.1.x"
    ids = TOWARDS[0]
    expected = residual(model, ids, 1) + vectors[1] * np.float32(0.5)
    assert (residual(model, ids, 1, steered) == expected).all()
    assert load_vector(model, path, layer=3).address.layer == 3


def test_wrong_texts_and_files_are_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="both sets must contain a text: got 2 and 0"):
        steering_vectors(model, TOWARDS, [])
    with pytest.raises(PromptError, match="must have at least 2 tokens: got 1"):
        mean_residuals(model, [[5]])
    path = tmp_path / "v.safetensors"
    save_arrays(path, {"a": np.zeros(3, np.float32)}, {})
    with pytest.raises(PromptError, match=r"metadata\.layer: expected a layer, got 'no"):
        load_vector(model, path)
    with pytest.raises(PromptError, match=r"'layers\.1\.x': expected one of a, got an"):
        load_vector(model, path, layer=1)
    short = tmp_path / "w.safetensors"
    save_vectors(short, np.zeros((4, 3), np.float32), layer=1)
    with pytest.raises(InterventionError, match=r"must be \[192\] or \[T, 192\]: got"):
        load_vector(model, short)
