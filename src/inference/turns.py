"""Fair queueing for clients that share a resource: round robin, FIFO per client."""

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the queue, with the client and the round in which it arrived."""

    client: Hashable
    round: int


class Turns:
    """Order tickets so that clients take turns.

    The rounds follow start-time fair queueing. A ticket starts one round after its
    client's previous ticket, but never in a round that was already over when the ticket
    arrived. So a client with 100 tickets and a client with 1 ticket wait for each other
    at most once, and no client can be overtaken repeatedly. The class is not thread-safe,
    so callers must hold a lock.
    """

    def __init__(self) -> None:
        self._round = 0
        self._last_rounds: dict[Hashable, int] = {}

    def ticket(self, client: Hashable) -> Ticket:
        """Return a new ticket at the end of the client's queue."""
        return Ticket(client, self._round)

    def next(self, waiting: Sequence[Ticket]) -> int:
        """Return the index of the ticket whose turn it is.

        Args:
            waiting: The waiting tickets in order of arrival, at least one.
        """
        return min(range(len(waiting)), key=lambda index: self._begins(waiting[index]))

    def begin(self, ticket: Ticket, clients: Set[Hashable]) -> None:
        """Record that a ticket starts.

        Args:
            ticket: The ticket that starts.
            clients: The clients that have waiting tickets.
        """
        begins = self._begins(ticket)
        self._round = max(self._round, begins)
        self._last_rounds[ticket.client] = begins
        # A client without waiting tickets whose last round is over is like a new client.
        self._last_rounds = {
            client: last
            for client, last in self._last_rounds.items()
            if client in clients or last >= self._round
        }

    def _begins(self, ticket: Ticket) -> int:
        """Return the round in which a ticket starts."""
        return max(ticket.round, self._last_rounds.get(ticket.client, -1) + 1)


def ticket_to_drop(waiting: Sequence[Ticket], client: Hashable) -> int | None:
    """Return the index of the ticket to drop from a full queue, or None.

    None means that the new ticket of `client` must be rejected. Otherwise, drop the
    newest ticket of the client with the most tickets, provided that it then still has at
    least as many tickets as `client`.
    """
    counts: dict[Hashable, int] = {}
    for ticket in waiting:
        counts[ticket.client] = counts.get(ticket.client, 0) + 1
    busiest = max(counts, key=lambda each: counts[each])
    if counts[busiest] - 1 < counts.get(client, 0) + 1:
        return None
    return max(index for index, ticket in enumerate(waiting) if ticket.client == busiest)
