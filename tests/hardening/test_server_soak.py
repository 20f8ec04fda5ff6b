"""A short soak of the server: the state after mixed requests is the state after the first
ones.
"""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="the serve extra is not installed")

from src.model import load_model
from tests.hardening.run_server_soak import (
    BEHAVIOURS,
    FORMATS,
    MOST_GROWTH,
    MOST_GROWTH_OF_PROCESSES,
    Reading,
    mixed_clients,
    soak,
)

_FIRST = Reading(500, 60.0, 200 << 20, 20, 10, 9, 190 << 20)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("resident", MOST_GROWTH),
        ("descriptors", 0),
        ("threads", 0),
        ("processes", 0),
        ("processes_resident", MOST_GROWTH_OF_PROCESSES),
    ],
)
def test_growth_beyond_the_bound_is_a_fault(name: str, bound: int) -> None:
    value = getattr(_FIRST, name) + bound
    assert replace(_FIRST, **{name: value}).growth_since(_FIRST) == []
    sentence = f"{name} must grow by at most {bound}: {bound + 1}"
    assert replace(_FIRST, **{name: value + 1}).growth_since(_FIRST) == [sentence]


def test_the_requests_contain_each_behaviour_and_each_grammar() -> None:
    clients = mixed_clients(5000, 1)
    assert {client.behaviour for client in clients} == set(BEHAVIOURS)
    formats = [client.body.get("response_format") for client in clients]
    assert len(FORMATS) > 20
    assert all(each in formats for each in FORMATS)
    choices = {client.body.get("tool_choice") for client in clients}
    assert choices == {None, "auto", "required", "none"}


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--share-prefixes",)], ids=["alone", "shared"])
def test_the_server_holds_nothing_more_after_400_requests(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    result = soak(
        tmp_path, load_model(), count=400, first=200, sample=60, seed=2, flags=flags
    )
    assert result.wrong == []
    assert (result.cached_tokens > 0) == (len(flags) > 0)
    assert result.compared.keys() == {"of text", "by a grammar", "with functions"}
    first, last = result.readings
    # Only a longer soak tells growth from memory that is used for the first time.
    assert not last.has_more_than(first), result.readings
