"""Every test that takes `isa` runs on each instruction set, and says which ones are
missing.
"""

import platform
from collections.abc import Iterator

import pytest

from . import calls

# Of this kind of processor; "arm64" is what a Mac says.
ON_ARM = platform.machine() in ("aarch64", "arm64")
_VECTORS = (
    ("neonbf16", "neondot", "neon")
    if ON_ARM
    else ("avx512amx", "avx512bf16", "avx512", "avx2")
)
ISAS = (*_VECTORS, "portable")


@pytest.fixture(autouse=True)
def _settings_come_back() -> Iterator[None]:
    isa = calls.build_info()["isa"]
    threads = calls.get_num_threads()
    yield
    calls.set_isa(isa)
    calls.set_num_threads(threads)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Choose an instruction set for the test."""
    if request.param not in calls.available_isas():
        pytest.skip(f"this machine or build has no {request.param}")
    calls.set_isa(request.param)
    return str(request.param)
