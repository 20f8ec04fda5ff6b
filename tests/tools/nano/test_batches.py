"""Documents as token ids, packed into rows."""

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("tiktoken", reason="needs the oracle extra")

from src.cli.reference_encoding import SPLIT_PATTERN, load_encoding  # noqa: E402
from src.inference import Message, encode_chat  # noqa: E402
from src.model.sources import BUNDLED_MODEL  # noqa: E402
from src.tokenizer import load_tokenizer  # noqa: E402
from tests.tokenizer.json_files import byte_letters  # noqa: E402
from tools.nano.batches import Batch, BatchStream, Encoder  # noqa: E402
from tools.nano.documents import Document, DocumentStream  # noqa: E402
from tools.nano.train_tokenizer import (  # noqa: E402
    RANK_COUNT,
    _byte_letters,
    write_tokenizer,
)

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(BUNDLED_MODEL / "tokenizer.model")


def test_conversations_have_the_ids_that_the_engine_is_given(encoder: Encoder) -> None:
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    stream = DocumentStream(seed=2)
    for _ in range(100):
        document = stream.document(turns=3)
        messages = [Message(role, content) for role, content in document.messages]
        ids, _ = encoder.encode(document)
        assert ids == encode_chat(tokenizer, messages, add_generation_prompt=False)


def test_answers_and_their_end_are_learned_and_nothing_else(encoder: Encoder) -> None:
    document = Document((("user", "Hello!"), ("assistant", "Hello! How can I help you?")))
    ids, learned = encoder.encode(document)
    marked = [token for token, mark in zip(ids, learned, strict=True) if mark]
    assert encoder.text(marked[:-1]) == "Hello! How can I help you?"
    assert marked[-1] == load_tokenizer(BUNDLED_MODEL).special_tokens["<|eot_id|>"]


def test_a_raw_text_ends_with_end_of_text(encoder: Encoder) -> None:
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    ids, learned = encoder.encode(
        Document((("text", "One"), ("continuation", " two.")), raw=True)
    )
    assert ids[0] == tokenizer.bos_id
    assert ids[-1] == tokenizer.eos_id
    given = 1 + len(encoder.ids("One"))
    assert learned == [False] * given + [True] * (len(ids) - given)


def test_words_of_questions_are_cut_but_not_what_the_reply_copies(
    encoder: Encoder,
) -> None:
    question = "Say Brunhilde: what is the capital of Germany?"
    document = Document(
        (("user", question), ("assistant", "Brunhilde! Germany: Berlin."))
    )
    whole, learned = encoder.encode(document)
    given = learned.index(True)

    def text(ids: list[int]) -> str:
        return encoder.text([token for token in ids if token < RANK_COUNT])

    seen = set()
    for seed in range(40):
        ids, marks = encoder.encode(document, 0.5, random.Random(seed))
        assert ids[marks.index(True) :] == whole[given:]
        assert sum(marks) == sum(learned)
        assert text(ids) == text(whole)
        seen |= {text([token]) for token in ids[: marks.index(True)]}
    copied = {text([token]) for token in encoder.ids(" Brunhilde")}
    assert len(copied) > 1
    assert copied <= seen
    assert {" Germany", " capital", " cap"} <= seen
    assert encoder.encode(document, 0.0, random.Random(1)) == (whole, learned)


def test_a_packed_row_attends_and_learns_within_one_document() -> None:
    row = [
        (1, False, 0, 0),
        (2, True, 1, 0),
        (3, False, 0, 1),
        (4, True, 1, 1),
        (5, True, 2, 1),
    ]
    batch = Batch([row])
    assert batch.learned.tolist() == [[True, False, True, True]]
    assert batch.targets.tolist() == [[2, 3, 4, 5]]
    assert batch.mask is not None
    assert batch.mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


def test_a_long_row_is_one_conversation_and_a_short_one_holds_whole_documents_first(
    encoder: Encoder,
) -> None:
    batch = BatchStream(encoder, seed=1).long(rows=6, length=1025)
    assert batch.mask is None
    assert batch.positions[:, -1].tolist() == [1024] * 6
    batch = BatchStream(encoder, seed=1).short(rows=4, length=257)
    assert batch.tokens.shape == (4, 257)
    begins = batch.tokens == load_tokenizer(BUNDLED_MODEL).bos_id
    assert torch.equal(begins, batch.positions == 0)


def test_the_vocabulary_gives_the_same_ids_as_the_trained_tokenizer(
    tmp_path: Path,
) -> None:
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    path = BUNDLED_MODEL / "tokenizer.model"
    encoding = load_encoding(path)
    tokens = [
        encoding.decode_single_token_bytes(rank) for rank in range(encoding.n_vocab)
    ]
    write_tokenizer(tokens, tmp_path / "tokenizer.model")
    assert (tmp_path / "tokenizer.model").read_bytes() == path.read_bytes()
    assert _byte_letters() == {letter: byte for byte, letter in enumerate(byte_letters())}
    other = convert.TikTokenConverter(str(path), SPLIT_PATTERN).converted()
    other.model.ignore_merges = False
    stream = DocumentStream(seed=9)
    for _ in range(300):
        for _, content in stream.document().messages:
            assert encoding.encode_ordinary(content) == other.encode(content).ids
