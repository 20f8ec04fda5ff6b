"""Merge LoRA adapters into the weights of a model that is saved.

W' = W + sum over adapters of factor * scale * B A

The sum is computed in float32 in the order of the adapters, and rounded once to the dtype
of the weight.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from .. import ml
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.names import EMBEDDINGS, OUTPUT
from .adapters import read_changes
from .args import ModelArgs
from .sources import Source

NamedAdapters: TypeAlias = Sequence[tuple[str | Path, float]]
"""The paths of adapters, with a factor for each."""


class MergedWeights(Mapping[str, ml.Weight]):
    """Weights by checkpoint key, with the changes of adapters, merged on each look-up.

    Args:
        tensors: The weights, which may be quantized.
        changes: For each changed weight: the weight before the change, and the pairs with
            their factors. The pair of the embedding table has the table [V, r] as A.
        dtype: The dtype of a changed weight that is quantized in its file.
    """

    def __init__(
        self,
        tensors: Mapping[str, ml.Weight],
        changes: Mapping[str, tuple[str, Sequence[tuple[ml.LowRankPair, float]]]],
        dtype: ml.DType,
    ) -> None:
        self._tensors = tensors
        self._changes = changes
        self._dtype = dtype

    def __getitem__(self, name: str) -> ml.Weight:
        if name not in self._changes:
            return self._tensors[name]
        source, pairs = self._changes[name]
        weight = self._tensors[source]
        if isinstance(weight, ml.QuantizedTensor):
            dtype = self._dtype
            values = weight.dequantize(ml.float32).numpy()
        else:
            dtype = weight.dtype
            values = weight.to(ml.float32).copy().numpy()
        for pair, factor in pairs:
            a = pair.a.to(ml.float32)
            b = pair.b.to(ml.float32)
            if name == EMBEDDINGS:
                change = ml.matmul(a, b.transpose(0, 1))  # [V, r] x [r, D]
            else:
                change = ml.matmul(b, a)  # [out, r] x [r, in]
            values += change.numpy() * np.float32(pair.scale * factor)
        return ml.Tensor.from_numpy(values, name=name).to(dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._tensors, *self._changes)))

    def __len__(self) -> int:
        return len({*self._tensors, *self._changes})


def merge_adapters(
    source: Source, checkpoint: Checkpoint, args: ModelArgs, adapters: NamedAdapters
) -> None:
    """Replace a checkpoint's tensors by weights with merged adapters.

    If the output matrix is tied to the embedding table and an adapter changes one of
    them, the output becomes a separate matrix.

    Raises:
        CheckpointError: An adapter is damaged, unsupported, or made for another model.
    """
    changes: dict[str, tuple[str, list[tuple[ml.LowRankPair, float]]]] = {}
    is_tied = OUTPUT not in checkpoint.dtypes
    for path, factor in adapters:
        _, products, lookups = read_changes(Path(path), source, checkpoint, args)
        products.pop(EMBEDDINGS, None)  # it is also under the name of the output
        for name, pair in (*products.items(), *lookups.items()):
            before = EMBEDDINGS if is_tied and name == OUTPUT else name
            changes.setdefault(name, (before, []))[1].append((pair, factor))
    if is_tied and not changes.keys().isdisjoint((EMBEDDINGS, OUTPUT)):
        changes.setdefault(OUTPUT, (EMBEDDINGS, []))
        checkpoint.dtypes = {**checkpoint.dtypes, OUTPUT: checkpoint.dtypes[EMBEDDINGS]}
    checkpoint.tensors = MergedWeights(checkpoint.tensors, changes, args.dtype)
