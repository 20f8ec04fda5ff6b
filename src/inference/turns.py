"""Who may change an engine: one call at a time, of one thread.

A lock would have to be released, and Ctrl-C may fall before or after any line. Here a call is held
weakly instead: however its iterator ends, the engine is free when the iterator is gone.
"""

import threading
import weakref

from .errors import InferenceError


class Call:
    """One answer, for as long as its iterator can go on.

    Attributes:
        turns: How many turns the engine had given before the newest of this call; 0 for none.
        is_over: Whether it needs the engine no more.
    """

    __slots__ = ("__weakref__", "is_over", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.is_over = False


class Turns:
    """The turns of the calls of one engine; a turn lasts from one step of a call to the next."""

    def __init__(self) -> None:
        # The newest turn, by the number of turns before it; an older one may be left behind.
        self._turns = {0: _Turn(Call())}

    def take(self, call: Call) -> None:
        """Give the engine to a call, until another takes it.

        Which of several threads gets it is decided by one `setdefault`, which is atomic. A thread
        whose number was outdated by then sees a higher one.

        Raises:
            InferenceError: Another thread is using the engine, or a newer call ended this one.
        """
        newest = max(self._turns)
        if call.turns and call.turns != newest:
            raise InferenceError("[generate] this answer was ended by a newer call")
        before, turn = self._turns.get(newest), _Turn(call)
        is_free = before is not None and (call.turns or before.ends_for_this_thread())
        if not is_free or self._turns.setdefault(newest + 1, turn) is not turn:
            raise InferenceError("this engine is in use by another thread")
        if max(self._turns) != newest + 1:
            del self._turns[newest + 1]
            raise InferenceError("this engine is in use by another thread")
        call.turns = newest + 1
        self._turns.pop(newest, None)


class _Turn:
    """The right of a call to change an engine."""

    __slots__ = ("_call", "_thread")

    def __init__(self, call: Call) -> None:
        self._call = weakref.ref(call)
        self._thread = threading.current_thread()

    def ends_for_this_thread(self) -> bool:
        """Return whether a new call of the calling thread may have the next turn."""
        call = self._call()
        if call is None or call.is_over or not self._thread.is_alive():
            return True
        return self._thread is threading.current_thread()
