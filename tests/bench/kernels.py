"""The kernels that bench_kernels times, each engine in a process of its own."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OURS = "llama-bolts"
PYTORCH = "PyTorch"
MOST_ROWS = 512
MOST_WEIGHTS = 512  # of one size, cut from the pool
SHOWN_COLUMNS = 32  # of a result, spread over all of them, for the verification
_TILE = 32 << 20  # elements; the pool repeats them


@dataclass(frozen=True)
class Linear:
    """Weights of a model that the same rows are multiplied by, in one call."""

    name: str  # for the table
    parts: tuple[int, ...]  # features of each weight
    columns: int  # of all of them

    @property
    def features(self) -> int:
        return sum(self.parts)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights in bfloat16."""
        return 2 * self.features * self.columns


def linear_shapes(sizes: dict[str, int]) -> list[Linear]:
    """Give the products of a model: each weight by itself, and those that share their
    rows.
    """
    D = sizes["D"]
    F = sizes["F"]
    query = sizes["H"] * sizes["h"]
    key = sizes["K"] * sizes["h"]
    return [
        Linear("wq, wo", (query,), D),
        Linear("wk, wv", (key,), D),
        Linear("w1, w3", (F,), D),
        Linear("w2", (D,), F),
        Linear("output", (sizes["V"],), D),
        Linear("wq + wk + wv", (query, key, key), D),
        Linear("w1 + w3", (F, F), D),
    ]


def rate_of(run: Callable[[int], object], seconds: float) -> tuple[float, int]:
    """Run with 0, 1, 2, ... for about so many seconds; return runs per second and their
    number.
    """
    count = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        run(count)
        count += 1
    return count / spent, count


def write_pool(path: Path, nbytes: int) -> None:
    """Write random bfloat16 numbers, from which every weight and input is cut."""
    values = np.random.default_rng(0).standard_normal(_TILE, np.float32)
    tile = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with path.open("wb") as stream:
        for start in range(0, nbytes, len(tile)):
            stream.write(tile[: nbytes - start])


def map_pool(path: Path) -> Any:
    """Map the pool: uint16 patterns."""
    return np.memmap(path, np.uint16, "r")


class Kernels:
    """Products with weights from the pool, one after another, so that none is found in a
    cache.

    Without an instruction set, ours takes the fastest.
    """

    def __init__(self, engine: str, pool: Path, threads: int, isa: str | None) -> None:
        self._pool = map_pool(pool)
        self._places: dict[Linear, int] = {}
        if engine == OURS:
            import ml_dtypes

            from src import ml
            from tests.csrc import calls

            ml.set_num_threads(threads)
            if isa:
                calls.set_isa(isa)
            self._one: Any = ml.linear_transformation
            self._several: Any = ml.linear_transformations
            self._tensor = lambda part: ml.Tensor.from_numpy(
                part.view(ml_dtypes.bfloat16)
            )
            self._widen = lambda result: result.numpy().astype(np.float32)
        else:
            import torch

            torch.set_num_threads(threads)
            torch.set_grad_enabled(False)
            # Mapped; from_numpy would warn that the pool is read-only.
            size = self._pool.size
            self._pool = torch.from_file(
                str(pool), shared=False, size=size, dtype=torch.bfloat16
            )
            self._one = torch.nn.functional.linear
            self._several = lambda x, weights: [
                self._one(x, weight) for weight in weights
            ]
            self._tensor = lambda part: part
            self._widen = lambda result: result.float().numpy()

    def _cut(self, start: int, rows: int, columns: int) -> Any:
        return self._tensor(
            self._pool[start : start + rows * columns].reshape(rows, columns)
        )

    def _weights(self, shape: Linear, start: int) -> list[Any]:
        starts = itertools.accumulate(shape.parts, initial=0)
        return [
            self._cut(start + before * shape.columns, features, shape.columns)
            for before, features in zip(starts, shape.parts, strict=False)
        ]

    def _multiply(self, x: Any, weights: list[Any]) -> list[Any]:
        return (
            [self._one(x, weights[0])]
            if len(weights) == 1
            else [*self._several(x, weights)]
        )

    def shown(self, shape: Linear, rows: int) -> Any:
        """Return some columns of the product with the pool's first weights,
        as float32.
        """
        x = self._cut(0, rows, shape.columns)
        parts = self._multiply(x, self._weights(shape, 0))
        wide = np.concatenate([self._widen(part) for part in parts], axis=1)
        return wide[:, :: shape.features // SHOWN_COLUMNS]

    def rate(self, shape: Linear, rows: int, seconds: float) -> float:
        """Return products per second, of about so many seconds."""
        size = shape.features * shape.columns
        x = self._cut(0, rows, shape.columns)
        starts = range(0, len(self._pool) - size + 1, size)[:MOST_WEIGHTS]
        weights = [self._weights(shape, start) for start in starts]
        at = self._places.get(shape, 0)  # not a weight that was just used
        rate, count = rate_of(
            lambda i: self._multiply(x, weights[(at + i) % len(weights)]), seconds
        )
        self._places[shape] = at + count
        return rate


class Attention:
    def __init__(
        self, sizes: dict[str, int], positions: int, threads: int, isa: str | None
    ) -> None:
        import ml_dtypes

        from src import ml
        from tests.csrc import calls

        from .engines import fill_with_noise

        ml.set_num_threads(threads)
        if isa:
            calls.set_isa(isa)
        self._ml = ml
        self._positions = positions
        H = sizes["H"]
        K = sizes["K"]
        h = sizes["h"]
        self._cache = ml.KeyValueCache(positions, K, h, ml.bfloat16)
        for tensor in (self._cache.keys, self._cache.values):
            fill_with_noise(tensor.numpy())
        queries = np.random.default_rng(2).standard_normal((MOST_ROWS, H, h), np.float32)
        self._queries = ml.Tensor.from_numpy(queries.astype(ml_dtypes.bfloat16))

    def verify(self) -> float:
        """Return the greatest error of the last row, in units of the values' standard
        deviation.
        """
        cached = self._ml.read_cache(self._cache, 0, self._positions)
        keys, values = (part.numpy().astype(np.float64) for part in cached)
        out = self._attend(MOST_ROWS).numpy()[-1].astype(np.float64)
        query = self._queries.numpy()[-1].astype(np.float64)
        group = query.shape[0] // keys.shape[1]
        error = 0.0
        for head, row in enumerate(query):
            scores = keys[:, head // group] @ row / np.sqrt(row.size)
            weights = np.exp(scores - scores.max())
            expected = weights / weights.sum() @ values[:, head // group]
            error = max(error, float(np.abs(out[head] - expected).max()))
        return error

    def _attend(self, rows: int) -> Any:
        queries = self._queries.slice(0, rows)
        return self._ml.attention(queries, self._cache, self._positions - rows)

    def rate(self, rows: int, seconds: float) -> float:
        """Return calls per second at the end of the cache, of about so many seconds."""
        return rate_of(lambda _: self._attend(rows), seconds)[0]
