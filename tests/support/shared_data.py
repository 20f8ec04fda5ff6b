"""Find the files that tests use and the repository does not hold."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared_data(name: str) -> Path:
    """Give the path of a file such as `llama3/tokenizer.model`, or skip the test without
    it.
    """
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in {SHARED_DATA}")
    return path
