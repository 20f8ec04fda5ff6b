"""The order of clients that share a resource: round robin, in order per client."""

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the line: the client, and the round of its arrival."""

    client: Hashable
    round: int


class Turns:
    """Order tickets so that clients take turns.

    The rounds follow start-time fair queueing: a ticket begins in the round after the one
    in which its client began last, but never in a round that was over when it arrived. A
    client with 100 tickets and a client with 1 therefore wait for each other at most
    once, and no client can be passed by again and again. The class is not thread-safe:
    the owner holds a lock.
    """

    def __init__(self) -> None:
        self._round = 0
        self._last_rounds: dict[Hashable, int] = {}

    def ticket(self, client: Hashable) -> Ticket:
        """Return a ticket at the end of the client's line."""
        return Ticket(client, self._round)

    def next(self, waiting: Sequence[Ticket]) -> int:
        """Return the index of the ticket whose turn it is.

        Args:
            waiting: The waiting tickets in order of arrival; at least one.
        """
        return min(range(len(waiting)), key=lambda index: self._begins(waiting[index]))

    def begin(self, ticket: Ticket, clients: Set[Hashable]) -> None:
        """Record that a ticket begins.

        Args:
            ticket: The ticket.
            clients: The clients that still wait.
        """
        begins = self._begins(ticket)
        self._round = max(self._round, begins)
        self._last_rounds[ticket.client] = begins
        # A client that does not wait, and whose last round is over, equals a new client.
        self._last_rounds = {
            client: last
            for client, last in self._last_rounds.items()
            if client in clients or last >= self._round
        }

    def _begins(self, ticket: Ticket) -> int:
        """Return the round in which a ticket begins."""
        return max(ticket.round, self._last_rounds.get(ticket.client, -1) + 1)


def ticket_to_drop(waiting: Sequence[Ticket], client: Hashable) -> int | None:
    """Return the index of the ticket to drop from a full line, or None for the newcomer.

    The ticket is the newest one of the client with the most tickets, provided that this
    client then still has as many tickets as the newcomer.
    """
    counts: dict[Hashable, int] = {}
    for ticket in waiting:
        counts[ticket.client] = counts.get(ticket.client, 0) + 1
    busiest = max(counts, key=lambda each: counts[each])
    if counts[busiest] - 1 < counts.get(client, 0) + 1:
        return None
    return max(index for index, ticket in enumerate(waiting) if ticket.client == busiest)
