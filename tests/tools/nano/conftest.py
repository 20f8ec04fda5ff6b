import pytest

from tools.nano.evaluate import corpus_words


@pytest.fixture(scope="session")
def known_words() -> set[str]:
    """All words of the corpus, which take a second to find."""
    return corpus_words()
