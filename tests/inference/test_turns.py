"""Clients take turns, and nobody is passed by for ever."""

import random
from collections import Counter

from src.inference.turns import Ticket, Turns, ticket_to_drop


def serve(turns: Turns, waiting: list[Ticket]) -> str:
    """Begins the ticket whose turn it is and returns its client."""
    ticket = waiting.pop(turns.next(waiting))
    turns.begin(ticket, {each.client for each in waiting})
    return str(ticket.client)


def test_clients_take_turns_whatever_the_length_of_their_lines():
    turns = Turns()
    waiting = [turns.ticket("many") for _ in range(100)]
    assert [serve(turns, waiting) for _ in range(5)] == ["many"] * 5
    waiting.append(turns.ticket("one"))
    waiting += [turns.ticket("two") for _ in range(3)]
    order = [serve(turns, waiting) for _ in range(8)]
    assert order == ["one", "two", "many", "two", "many", "two", "many", "many"]


def test_the_tickets_of_one_client_begin_in_order():
    turns = Turns()
    waiting = [turns.ticket("a") for _ in range(10)]
    first = list(waiting)
    assert [turns.next(waiting) for _ in range(3)] == [0, 0, 0]
    while waiting:
        index = turns.next(waiting)
        assert waiting[index] is first.pop(0)
        turns.begin(waiting.pop(index), {"a"})


def test_a_client_that_returns_again_and_again_passes_another_by_once():
    turns = Turns()
    waiting = [turns.ticket("patient") for _ in range(2)]
    serve(turns, waiting)
    served = []
    for _ in range(6):
        waiting.append(turns.ticket("returning"))
        served.append(serve(turns, waiting))
    assert served.index("patient") <= 1


def test_each_of_several_busy_clients_gets_its_share():
    chance = random.Random(1)
    turns = Turns()
    waiting: list[Ticket] = []
    counts: Counter[str] = Counter()
    for _ in range(3000):
        for client, most in (("a", 60), ("b", 10), ("c", 2)):
            while sum(ticket.client == client for ticket in waiting) < chance.randint(
                1, most
            ):
                waiting.append(turns.ticket(client))
        counts[serve(turns, waiting)] += 1
    assert all(990 <= count <= 1010 for count in counts.values()), counts


def test_what_is_remembered_of_clients_is_bounded():
    turns = Turns()
    for client in range(10_000):
        waiting = [turns.ticket(client), turns.ticket("other")]
        while waiting:
            serve(turns, waiting)
    assert len(turns._last_rounds) <= 3


def test_the_client_with_the_longest_line_gives_way_to_one_with_a_shorter_line():
    turns = Turns()
    waiting = [turns.ticket(client) for client in "ababbb"]
    assert ticket_to_drop(waiting, "c") == 5  # the newest of b
    assert ticket_to_drop(waiting, "a") == 5
    assert ticket_to_drop(waiting, "b") is None
    assert ticket_to_drop([turns.ticket(client) for client in "ab"], "c") is None
    assert ticket_to_drop([turns.ticket(client) for client in "aabb"], "a") is None
