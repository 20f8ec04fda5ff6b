"""Drafts that do not depend on the time, and costs that are known."""

import pytest

from src.inference.speculation import DraftLength, PassCosts


def draft_always(patch: pytest.MonkeyPatch) -> None:
    """Draft as many tokens as allowed, whether it pays or not."""
    patch.setattr(PassCosts, "allows_drafts", True)
    patch.setattr(DraftLength, "best", lambda self, end, most, *_: most)


def costs_of(row: float) -> PassCosts:
    """Return the costs of an engine whose plain steps take a second; its account is full."""
    costs = PassCosts()
    for _ in range(1000):
        costs.note_plain(1.0)
    costs.note_prompt(100, 100 * row)
    return costs
