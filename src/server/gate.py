"""A limited number of places, assigned to clients in turns."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from ..inference.turns import Ticket, Turns


class Gate:
    """Assigns places to clients in turns, in order within a client; for one event loop.

    Args:
        places: The number of places.
        most_each: The largest number of places of one client.
    """

    def __init__(self, places: int, most_each: int) -> None:
        self._places = places
        self._most_each = most_each
        self._turns = Turns()
        self._inside = Counter[Hashable]()
        self._waiting: list[tuple[Ticket, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, client: Hashable) -> AsyncIterator[None]:
        """Wait for the client's turn, and occupy a place during the block."""
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
                self._inside += Counter()  # drop clients without a place
            self._admit()

    def _admit(self) -> None:
        """Assign the free places to the clients whose turn it is."""
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
            # A task that has just been cancelled returns the place.
            if not turn.done():
                turn.set_result(None)
