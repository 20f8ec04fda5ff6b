"""The server holds against each attack of the list, with the attack's own timing."""

from pathlib import Path

import pytest

from tests.hardening.attacks import ATTACKS, Attack
from tests.hardening.run_attacks import MODULES
from tests.server.running import ROOT


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(
            each, id=f"{each.row}-{each.name}", marks=[pytest.mark.slow] * each.is_slow
        )
        for each in ATTACKS
        if MODULES
    ],
)
def test_the_server_holds(attack: Attack, tmp_path: Path) -> None:
    assert attack.promise.endswith(".")
    print(attack.run(tmp_path))


def test_the_page_lists_each_attack_with_its_promise():
    page = (ROOT / "docs" / "RELIABILITY.md").read_text("utf-8")
    for each in ATTACKS:
        assert f"| {each.row} | `{each.name}` | {each.promise} |" in page
