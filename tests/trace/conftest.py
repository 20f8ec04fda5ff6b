import pytest

from src import ml
from src.model import Model, load_model
from tests.model.tiny import BYTES_VOCAB, write_meta_directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A random model with one token per byte."""
    directory = tmp_path_factory.mktemp("model")
    return load_model(write_meta_directory(directory, BYTES_VOCAB, ml.bfloat16, tokenizer=True))
