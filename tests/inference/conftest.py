"""Models that several tests of the engine share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from src.inference.grammars import Grammars
from src.ml import bfloat16
from src.model import Model, load_model
from tests.inference.drafts import draft_always
from tests.model.tiny import BYTES_VOCAB, write_meta_directory


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A random model with one token per byte."""
    directory = tmp_path_factory.mktemp("model")
    return load_model(
        write_meta_directory(directory, BYTES_VOCAB, bfloat16, tokenizer=True)
    )


@pytest.fixture(scope="session")
def bundled() -> Model:
    return load_model()


@pytest.fixture(scope="module")
def grammars(bundled: Model) -> Iterator[Grammars]:
    pytest.importorskip("llguidance", reason="the serve extra is not installed")
    with closing(Grammars(bundled.tokenizer, bundled.stop_ids)) as found:
        yield found


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same model without a tokenizer: no token ends an answer."""
    return load_model(
        write_meta_directory(tmp_path_factory.mktemp("bare"), BYTES_VOCAB, bfloat16)
    )


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts as many tokens as allowed, whether it pays or not."""
    draft_always(monkeypatch)
