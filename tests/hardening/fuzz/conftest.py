from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hardening.fuzz.bed import Bed, hangs_are_noticed


@pytest.fixture
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    """A place in which a target, the parameter, reads inputs, each within its bound of
    time.
    """
    bed = Bed(request.param, tmp_path)
    with hangs_are_noticed(bed):
        yield bed
    bed.close()
