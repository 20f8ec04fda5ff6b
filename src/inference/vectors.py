"""Steering vectors: directions in the residual stream, made from two sets of texts.

vector of layer L = mean of x[layer L] over texts A - mean of x[layer L] over texts B

Added to the residual stream of a layer, with a scale, such a vector moves the answers
towards the texts A. Arrays are kept in safetensors files, which `--set-activation` also
reads.

Source: Turner et al., Steering Language Models With Activation Engineering, 2023;
Rimsky et al., Steering Llama 2 via Contrastive Activation Addition, 2023.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..checkpoint.safetensors import SafetensorsFile
from ..checkpoint.safetensors_writer import NewTensor, TensorWriter, safetensors_head
from ..model import InferenceContext, Intervention, Model, intervene
from ..model.places import residual_address
from ..untrusted import label_of
from .errors import PromptError

Array: TypeAlias = np.ndarray[Any, Any]

# In a file, a layer's vector has the address of the layer's residual stream as its name.
# The key of the metadata that contains the layer to which the vector is added:
_LAYER = "layer"


def mean_residuals(model: Model, texts: Sequence[Sequence[int]]) -> Array:
    """Return the mean of the residual stream after each layer, float32 [L, D].

    The mean is taken over all positions of all texts, except the first position of each
    text, whose residual is unlike the others in most models.

    Args:
        model: The model.
        texts: The token ids of each text, at least two per text.

    Raises:
        PromptError: If a text has fewer than two tokens.
    """
    L = model.args.n_layers
    total = np.zeros((L, model.args.dim))
    rows = 0
    for ids in texts:
        if len(ids) < 2:
            rule = "each text must have at least 2 tokens"
            raise PromptError(f"[vectors] {rule}: got {len(ids)}")
        addresses = [residual_address(layer) for layer in range(L)]
        records = [Intervention.record(model, address) for address in addresses]
        context = InferenceContext(model.args, len(ids))
        with intervene(model, *records):
            model.transformer.forward(context, ids)
        for layer, record in enumerate(records):
            total[layer] += record.recorded[1:].sum(axis=0, dtype=np.float64)
        rows += len(ids) - 1
    return (total / max(rows, 1)).astype(np.float32)


def steering_vectors(
    model: Model, towards: Sequence[Sequence[int]], away: Sequence[Sequence[int]]
) -> Array:
    """Return the difference of two mean residual streams, float32 [L, D].

    Args:
        model: The model.
        towards: The token ids of the texts that answers become similar to.
        away: The token ids of the other texts.

    Raises:
        PromptError: If a set is empty, or if a text has fewer than two tokens.
    """
    if not towards or not away:
        counts = f"{len(towards)} and {len(away)}"
        raise PromptError(f"[vectors] both sets must contain a text: got {counts}")
    difference: Array = mean_residuals(model, towards) - mean_residuals(model, away)
    return difference


def save_vectors(path: Path, vectors: Array, layer: int) -> None:
    """Write the vectors of all layers, float32 [L, D], to a new file.

    Args:
        path: The file, which must not exist.
        vectors: The vectors.
        layer: The layer to which `load_vector` adds its vector.
    """
    arrays = {residual_address(at): vector for at, vector in enumerate(vectors)}
    save_arrays(path, arrays, {_LAYER: str(layer)})


def load_vector(
    model: Model, path: Path, scale: float = 1.0, layer: int | None = None
) -> Intervention:
    """Return an intervention that adds a steering vector to the residual stream.

    Args:
        model: The model.
        path: A file of `save_vectors`.
        scale: The factor of the vector.
        layer: The layer, or None for the layer that the file names.

    Raises:
        CheckpointError: If the file is damaged.
        PromptError: If the file contains no vector of the layer.
        InterventionError: If the vector does not fit the model.
    """
    source = SafetensorsFile(path)
    if layer is None:
        named = source.metadata.get(_LAYER, "")
        if not named.isdecimal():
            found = named or "nothing"
            rule = f"{label_of(path)}: metadata.{_LAYER}: expected a layer"
            raise PromptError(f"{rule}, got {ascii(found)[:80]}")
        layer = int(named)
    key = residual_address(layer)
    vector = _array_of(source, path, key) * np.float32(scale)
    return Intervention.add(model, key, vector, f"{scale:g}*{path.name}:{key}")


def read_array(path: Path, key: str) -> Array:
    """Return a tensor of a safetensors file as a float32 array.

    Raises:
        CheckpointError: If the file is damaged.
        PromptError: If the file has no tensor of this name; the message lists its names.
    """
    return _array_of(SafetensorsFile(path), path, key)


def _array_of(source: SafetensorsFile, path: Path, key: str) -> Array:
    if key not in source.entries:
        names = ", ".join(sorted(source.entries)[:20])
        shown = ascii(key)[:80]
        rule = f"{label_of(path)}: {shown}: expected one of {names}, got another"
        raise PromptError(rule)
    array: Array = source.entries[key].make().numpy().astype(np.float32)
    return array


def save_arrays(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write float32 arrays to a new safetensors file.

    Args:
        path: The file, which must not exist.
        arrays: The arrays by name.
        metadata: The metadata in the header.
    """
    tensors = [NewTensor(name, "F32", array.shape) for name, array in arrays.items()]
    head, places = safetensors_head(tensors, metadata)
    with TensorWriter(path, head, places) as writer:
        for name, array in arrays.items():
            writer.write(name, np.ascontiguousarray(array, "<f4").tobytes())
