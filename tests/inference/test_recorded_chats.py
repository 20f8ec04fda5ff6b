"""Chats have the ids that `tests.inference.record_chats` has recorded."""

import pytest

from src.inference import Message, encode_chat
from tests.inference.byte_tokenizer import spelled
from tests.inference.record_chats import (
    CHATS,
    CHATS_OF_A_SHARD,
    Shard,
    byte_tokenizer,
    can_run,
    differing,
    frozen_date,
    recorded_digests,
    shards,
)

SHARDS_PER_TESTED_ONE = 20


@pytest.mark.slow
def test_a_sample_of_the_recorded_chats_has_the_recorded_ids() -> None:
    """`python -m tests.inference.record_chats --check` compares all of them."""
    digests = recorded_digests()
    sample = {
        shard: digests[shard]
        for shard in list(digests)[::SHARDS_PER_TESTED_ONE]
        if can_run(shard)
    }
    assert len(sample) > 20
    assert [str(shard) for shard in differing(sample)] == []


def test_a_shard_with_another_digest_is_named() -> None:
    shard = Shard("qwen3", 0)
    right = {shard: recorded_digests()[shard]}
    wrong = {shard: "0" * 16}
    assert list(differing(right)) == []
    assert list(differing(wrong)) == [shard]


def test_the_file_records_200_000_chats_of_all_formats() -> None:
    assert list(recorded_digests()) == shards()
    assert len(shards()) * CHATS_OF_A_SHARD == CHATS


@pytest.mark.parametrize(
    ("chat_format", "date"), [("smollm3", "04 July 2025"), ("granite", "July 04, 2025")]
)
def test_the_date_in_recorded_prompts_is_always_the_same(
    chat_format: str, date: str
) -> None:
    tokenizer = byte_tokenizer(chat_format, "bytes")
    with frozen_date():
        ids = encode_chat(tokenizer, [Message("user", "Hi")], chat_format=chat_format)
    assert date in spelled(tokenizer, ids)
