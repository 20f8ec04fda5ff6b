"""What the tests of models share."""

from collections.abc import Iterator

import pytest

from src import ml
from src.ml import kernels


@pytest.fixture(autouse=True)
def machine_settings() -> Iterator[None]:
    """Puts the number of threads and the instruction set back."""
    threads = ml.get_num_threads()
    isa = ml.build_info()["isa"]
    yield
    ml.set_num_threads(threads)
    kernels.set_isa(isa)
