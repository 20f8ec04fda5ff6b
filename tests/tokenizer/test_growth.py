import pytest

from src.tokenizer import Tokenizer, load_tokenizer
from src.tokenizer.tokenizer_json import read_tokenizer_json
from tests.support.shared_data import shared_data
from tests.tokenizer.growth import LONG_PIECES, steps_to_encode

FILES = ["llama3/tokenizer.model", "llama3/tokenizer.json"]
FILES += ["llama2/tokenizer.model", "llama2/tokenizer.json"]


@pytest.fixture(scope="module", params=FILES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path = shared_data(request.param)
    return read_tokenizer_json(path) if path.suffix == ".json" else load_tokenizer(path.parent)


@pytest.mark.parametrize("kind", LONG_PIECES)
def test_work_grows_no_faster_than_n_log_n(tokenizer: Tokenizer, kind: str) -> None:
    """A quadratic step would give a ratio near 4."""
    shorter, longer = (steps_to_encode(tokenizer, LONG_PIECES[kind](n)) for n in (1024, 2048))
    assert longer <= 2.6 * shorter
