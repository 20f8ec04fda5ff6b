"""Drafts that do not depend on the time, and costs that are known."""

import pytest

from src.inference.speculation import Drafter, PassCosts


def draft_always(patch: pytest.MonkeyPatch) -> None:
    """Draft as many tokens as allowed, whether it pays or not."""
    credit = property(lambda _costs: 1.0, lambda _costs, _value: None)
    patch.setattr(PassCosts, "credit", credit, raising=False)
    patch.setattr(Drafter, "best_count", lambda self, most, _others: most)


def costs_of(row: float) -> PassCosts:
    """Return the costs of an engine whose plain steps take a second;
    its account is full.
    """
    costs = PassCosts()
    for _ in range(1000):
        costs.note_pass(0, 1.0)
    costs.note_prompt(100, 100 * row)
    return costs


def guess_and_draw(drafter: Drafter, *, is_right: bool, times: int = 1) -> None:
    """Let a drafter see whether guesses of one token are right."""
    for _ in range(times):
        drafter._expected = [5]
        drafter.observe(5 if is_right else 6)
