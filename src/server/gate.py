"""A limited number of places, which clients occupy in turn."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from ..inference.turns import Ticket, Turns


class Gate:
    """Limits the number of tasks that run at a time, with clients taking turns.

    All tasks must run in one event loop. The tasks of a client are admitted in order.

    Args:
        places: The maximum number of admitted tasks.
        most_each: The maximum number of admitted tasks per client.
    """

    def __init__(self, places: int, most_each: int) -> None:
        self._places = places
        self._most_each = most_each
        self._turns = Turns()
        self._inside = Counter[Hashable]()
        self._waiting: list[tuple[Ticket, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, client: Hashable) -> AsyncIterator[None]:
        """Wait for the client's turn, and occupy a place during the `with` block."""
        turn = asyncio.get_running_loop().create_future()
        entry = (self._turns.ticket(client), turn)
        self._waiting.append(entry)
        self._admit()
        try:
            await turn
            yield
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            else:
                self._inside[client] -= 1
                self._inside += Counter()  # remove clients without a place
            self._admit()

    def _admit(self) -> None:
        """Assign free places to the clients whose turn it is."""
        while self._inside.total() < self._places:
            may_enter = [
                entry
                for entry in self._waiting
                if self._inside[entry[0].client] < self._most_each
            ]
            if not may_enter:
                return
            ticket, turn = may_enter[
                self._turns.next([ticket for ticket, _ in may_enter])
            ]
            self._waiting.remove((ticket, turn))
            self._turns.begin(ticket, {each.client for each, _ in self._waiting})
            self._inside[ticket.client] += 1
            # If the task has just been cancelled, it releases the place itself.
            if not turn.done():
                turn.set_result(None)
