"""The real model of the tier `real`, and the figures that a run prints at its end."""

from pathlib import Path
from typing import Any

import pytest

from src import ml
from src.catalog import CatalogError, find_model
from src.model import Model, load_model
from tests.real.float32 import float32_logits
from tests.real.recorded import all_logits, text_ids

FIGURES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("figures of the real model")
        terminalreporter.write_line(
            f"processor: {_processor()}, {ml.build_info()['isa']}"
        )
        for line in figures:
            terminalreporter.write_line(line)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines that are printed after the tests."""
    return request.config.stash.setdefault(FIGURES, [])


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of SmolLM2, downloaded at the first use."""
    try:
        return find_model("smollm2")
    except CatalogError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def model(smollm2: Path) -> Model:
    return load_model(smollm2)


@pytest.fixture(scope="session")
def ids(model: Model) -> list[int]:
    """The first tokens of the frozen text."""
    return text_ids(model)


@pytest.fixture(scope="session")
def logits(model: Model, ids: list[int]) -> Any:
    """What this project computes, float32 [T, V]."""
    return all_logits(model.transformer, ids)


@pytest.fixture(scope="session")
def exact(smollm2: Path, ids: list[int]) -> Any:
    """What transformers computes in float32 with the dequantized weights, float32 [T,
    V].
    """
    return float32_logits(smollm2, ids)
