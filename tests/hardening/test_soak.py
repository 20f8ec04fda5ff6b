"""A short soak: what a long chat leaves behind."""

import pytest

from tests.hardening.soak import soak


@pytest.mark.slow
def test_a_chat_of_30_000_tokens_leaves_nothing_behind_and_answers_as_ever() -> None:
    result = soak(30_000, 10)
    assert not result.has_grown, result.drift
    assert result.same_answers
    for event in ("asked", "context full", "saved", "loaded", "regenerated", "undone"):
        assert result.events[event] > 0
    assert result.events["stopped by interrupted"] > 0
