"""What memory a model will need, told by its small files before any of its weights is mapped."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import ml
from ..checkpoint import HUGGING_FACE_WEIGHT_FILES
from ..checkpoint.hugging_face_config import read_hugging_face_config
from ..checkpoint.names import feed_forward_dim
from ..checkpoint.params import read_params
from ..checkpoint.safetensors_index import read_index
from ..ml import memory
from ..ml.memory import readable_bytes
from .args import meta_context_length, whole_number
from .errors import ModelConfigError, NotEnoughMemoryError
from .layout import find_model_directory, label_of
from .loader import BUNDLED_MODEL
from .quantization import layer_matrices, quantization_of, quantized_model_bytes

PREFILL_CHUNK = 512  # tokens that run together while a prompt is read
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class MemoryForecast:
    """What a model and a context will take.

    The sizes of the cache are those of 16-bit numbers: what is known before the weights are opened.
    Weights of 32 bits, and of float16, have a cache of twice the size, which is checked again when
    it is allocated.

    Attributes:
        longest: the model's longest context.
        positions: those of the cache.
        mapped: bytes of weight files, which are used where they lie.
        copied: bytes of weights that do not lie in files: merged from parts, or quantised now.
        cache: bytes of keys and values.
        cache_sizes: how these come about.
        scratch: bytes of intermediate results while a prompt is read; an estimate.
        free: bytes that can be allocated, or None where the system does not say.
        copied_as: what is copied, in words.
    """

    longest: int
    positions: int
    mapped: int
    copied: int
    cache: int
    cache_sizes: str
    scratch: int
    free: int | None
    copied_as: str = "weights to be merged"

    @property
    def needed(self) -> int:
        """Return the bytes that must be allocated."""
        return self.copied + self.cache + self.scratch

    def check(self) -> None:
        """Refuse what cannot be allocated.

        Raises:
            NotEnoughMemoryError: more is needed than is free; the text has the arithmetic.
        """
        if self.free is None or self.needed <= self.free:
            return
        room = self.free - self.copied - self.scratch
        fitting = min(self.positions, room * self.positions // self.cache) if room > 0 else 0
        copied = f"{readable_bytes(self.copied)} of {self.copied_as} + " if self.copied else ""
        raise NotEnoughMemoryError(
            f"memory: expected at most {readable_bytes(self.free)} available, got "
            f"{readable_bytes(self.needed)} = {copied}{readable_bytes(self.cache)} of keys and "
            f"values ({self.cache_sizes}) + {readable_bytes(self.scratch)} of intermediate results"
            + (f"; a context of {fitting} would fit" if fitting else "")
        )

    @property
    def warning(self) -> str | None:
        """Return what makes a model slow that fits: weights that cannot all stay in memory."""
        if self.free is None or self.mapped + self.needed <= self.free:
            return None
        return (
            f"memory: {readable_bytes(self.mapped)} of mapped weights + "
            f"{readable_bytes(self.needed)} of other data is more than the "
            f"{readable_bytes(self.free)} available; the weights that do not stay in memory are "
            "read from the disk again for each token"
        )


def forecast_memory(
    path: str | Path | None, positions: int | None, most: int, quantize: str | None = None
) -> MemoryForecast:
    """Tell what a model will need; maps nothing.

    Args:
        path: its directory; None stands for the bundled model.
        positions: those of the cache; None for the model's longest context, but not above `most`.
        most: see `positions`.
        quantize: as for `load_model`.

    Raises:
        ModelError: the directory holds no model.
        CheckpointError: its hyperparameters cannot be used.
    """
    found = find_model_directory(BUNDLED_MODEL if path is None else Path(path))
    try:
        sizes = _meta(found.path) if found.layout == "Meta" else _hugging_face(found.path)
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(found.path)}: {error}") from None
    count = min(sizes.longest, most) if positions is None else positions
    layer = ml.KeyValueCache.bytes_for(count, sizes.kv_heads, sizes.head_dim, ml.bfloat16)
    rows = min(count, PREFILL_CHUNK)
    return MemoryForecast(
        longest=sizes.longest,
        positions=count,
        mapped=0 if sizes.merged else sizes.weights,
        copied=sizes.copied if quantize is None else sizes.quantized(quantize),
        cache=sizes.layers * layer,
        cache_sizes=(
            f"2 * {sizes.layers} layers * {count} positions * {sizes.kv_heads} heads * "
            f"{sizes.head_dim} * {ml.bfloat16.itemsize} bytes"
        ),
        # The stream, its norm and what is added; gate, up and hidden, packed too.
        scratch=rows * _FLOAT_BYTES * (4 * sizes.dim + 3 * sizes.ffn_dim),
        free=memory.available_memory(),
        copied_as="weights to be merged" if quantize is None else f"weights in {quantize}",
    )


@dataclass(frozen=True)
class _Sizes:
    layers: int
    kv_heads: int
    head_dim: int
    dim: int
    ffn_dim: int
    longest: int
    weights: int
    merged: bool
    queries: int
    vocab_size: int | None

    @property
    def copied(self) -> int:
        """Return the bytes of weights that are copied, without quantisation."""
        return self.weights if self.merged else 0

    def quantized(self, name: str) -> int:
        """Return the bytes of weights that are not mapped, once they are quantised.

        Of parts to be merged, the embedding table and one matrix at a time are copied too.
        """
        matrices = layer_matrices(
            self.dim, self.queries, self.kv_heads * self.head_dim, self.ffn_dim
        )
        # Llama 2 does not say V. It is not tied: what the layers leave of the files is two tables.
        numbers = self.weights // ml.bfloat16.itemsize
        rest = numbers - self.layers * sum(rows * columns for rows, columns in matrices)
        rows = self.vocab_size or max(rest, 0) // (2 * self.dim)
        output = (rows, self.dim)
        nbytes = quantized_model_bytes(self.layers, matrices, output, quantization_of(name))
        return nbytes + (2 * rows * self.dim * ml.bfloat16.itemsize if self.merged else 0)


def _meta(directory: Path) -> _Sizes:
    params = read_params(directory / "params.json")
    files = sorted(directory.glob("consolidated.*.pth"))
    vocabulary = params.get("vocab_size")
    dim, layers, heads = (whole_number(params, key) for key in ("dim", "n_layers", "n_heads"))
    return _Sizes(
        layers=layers,
        kv_heads=whole_number(params, "n_kv_heads", default=heads),
        head_dim=dim // heads,
        dim=dim,
        ffn_dim=feed_forward_dim(params) or 4 * dim,
        longest=meta_context_length(params),
        weights=_bytes_of(files),
        merged=len(files) > 1,
        queries=dim,
        vocab_size=vocabulary if isinstance(vocabulary, int) and vocabulary > 0 else None,
    )


def _hugging_face(directory: Path) -> _Sizes:
    config = read_hugging_face_config(directory)
    single, index = (directory / name for name in HUGGING_FACE_WEIGHT_FILES)
    files = [single] if os.path.exists(single) else list(read_index(index))
    return _Sizes(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dim=config.hidden_size,
        ffn_dim=config.intermediate_size,
        longest=config.context_length,
        weights=_bytes_of(files),
        merged=False,
        queries=config.heads * config.head_dim,
        vocab_size=config.vocab_size,
    )


def _bytes_of(files: Sequence[Path]) -> int:
    """Return the size of all files; loading them tells what is wrong with one that has none."""
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total
