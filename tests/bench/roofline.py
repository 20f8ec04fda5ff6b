"""The machine's roofline, probed in a process of its own over the very file that is
measured.
"""

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from src import ml
from src.cli.bench import weights_of_a_step
from src.ml import roofline
from src.model import load_model
from tests.csrc import calls


class Roofline:
    """Probes of reading the weights of a model, or any file, and of the multiply-adds of
    a set.

    Reading takes whatever instruction set reads fastest.
    """

    def __init__(self, path: Path, threads: int, isa: str) -> None:
        ml.set_num_threads(threads)
        self.isa = isa
        if path.is_dir() or path.suffix == ".gguf":
            self._model = load_model(path)
            self._weights = weights_of_a_step(self._model)
        else:
            self._weights = [ml.Tensor.from_numpy(np.memmap(path, np.uint8, "r"))]
        # The file's pages are made present once, then the fastest way of reading is
        # found.
        roofline.read_rate(self._weights, isa, 1)
        self.fastest = roofline.fastest_reading(self._weights, passes=6)

    def facts(self) -> dict[str, Any]:
        """Return how this machine reads fastest, and how many bytes are read."""
        isa, streams = self.fastest
        return {"isa": isa, "streams": streams, "bytes": self.read_bytes()}

    def read_bytes(self) -> int:
        """Return the bytes of one pass: those that a decode step reads."""
        return sum(tensor.nbytes for tensor in self._weights)

    def read_rate(self, passes: int = 3) -> float:
        """Return the median rate of some passes over the weights, in bytes per second."""
        rates = [roofline.read_rate(self._weights, *self.fastest) for _ in range(passes)]
        return statistics.median(rates)

    def pass_rate(self) -> float:
        """Return how often per second the bytes of a decode step can be read."""
        return self.read_rate() / self.read_bytes()

    def multiply_rate(
        self, dtype: str = "bfloat16", isa: str | None = None
    ) -> float | None:
        """Return multiplications and additions per second; None where the set has no
        vectors.
        """
        calls.set_isa(isa or self.isa)
        return roofline.multiply_add_rate(dtype)

    def peaks(self) -> dict[str, dict[str, float | None]]:
        """Return the multiply-add peak of each instruction set and dtype."""
        return {
            isa: {
                dtype: self.multiply_rate(dtype, isa) for dtype in ("bfloat16", "float32")
            }
            for isa in calls.available_isas()
        }
