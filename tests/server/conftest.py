from collections.abc import Iterator

import pytest

from tests.inference.conftest import bundled
from tests.server.running import Running, running

__all__ = ["bundled"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The bundled model behind HTTP, for all tests of this directory."""
    with running(tmp_path_factory.mktemp("server")) as found:
        yield found
