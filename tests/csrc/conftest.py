"""Every test that takes `isa` runs on each instruction set, and says which ones are missing."""

from collections.abc import Iterator

import pytest

from src.ml import native

ISAS = ("avx512bf16", "avx512", "avx2", "portable")


@pytest.fixture(autouse=True)
def _settings_come_back() -> Iterator[None]:
    isa, threads = native.build_info()["isa"], native.get_num_threads()
    yield
    native.set_isa(isa)
    native.set_num_threads(threads)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Choose an instruction set for the test."""
    if request.param not in native.available_isas():
        pytest.skip(f"this machine or build has no {request.param}")
    native.set_isa(request.param)
    return str(request.param)
