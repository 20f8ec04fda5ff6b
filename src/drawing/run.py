"""What the diagrams draw: the events of a traced run, and what they say about each stage."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..trace import Event, TensorInfo
from ..trace.events import size_of

_MARK = "mark"
_EVERY_PASS = (3, 20, 21)


class Recorder:
    """Keeps the events of a run that diagrams show, however long its answer is.

    These are those of the first layer in the first pass through the network, and of every pass the
    marks of the loop around it.

    Attributes:
        events: what was kept, in order.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)

    def wants(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether events of a stage, a layer and a step are worth making."""
        return stage in _EVERY_PASS if step else layer in (None, 0)


@dataclass(frozen=True)
class Beside:
    """Another model, whose numbers stand beside those of the run.

    Attributes:
        name: a few letters.
        title: in full.
        sizes: by letter, T and S among them.
    """

    name: str
    title: str
    sizes: Mapping[str, int]

    def numbers(self, x: TensorInfo) -> str:
        """Return the shape that a tensor has there as text, empty where it has no letters."""
        found = self.shape(x)
        return f"[{', '.join(map(str, found))}]" if found else ""

    def shape(self, x: TensorInfo) -> tuple[int, ...]:
        """Return the shape that a tensor has there, empty where it has no letters."""
        found = (size_of(letter, self.sizes) for letter in x.letters)
        return tuple(size for size in found if size is not None)


@dataclass(frozen=True)
class TracedRun:
    """A run to draw.

    Attributes:
        model: what it is called.
        sizes: its sizes by letter.
        events: of one answer, in order.
        pieces: the text of each token that occurs, by its id.
        special: the ids among them that no text gives.
        beside: another model, or None.
    """

    model: str
    sizes: Mapping[str, int]
    events: Sequence[Event]
    pieces: Mapping[int, str]
    special: frozenset[int] = frozenset()
    beside: Beside | None = None

    def first(self, stage: int) -> list[Event]:
        """Return the events of a stage in the first pass and the first layer, without its mark."""
        found: list[Event] = []
        marks = 0
        for event in self.events:
            if event.stage != stage or (event.layer or 0) > self._first_layer:
                continue
            if event.op == _MARK:
                marks += 1
                if marks > 1:
                    break
            else:
                found.append(event)
        return found

    def marks(self, stage: int) -> list[Event]:
        """Return all events that open a stage."""
        return [e for e in self.events if e.stage == stage and e.op == _MARK]

    def passes(self) -> list[tuple[Event, list[int]]]:
        """Return the mark of each pass of the loop, and the tokens that were chosen after it."""
        found: list[tuple[Event, list[int]]] = []
        for event in self.events:
            if event.stage == 3:
                found.append((event, []))
            elif event.stage == 20 and found:
                found[-1][1].append(event.details["token"])
        return found

    def origin(self, x: TensorInfo, stage: int) -> int | None:
        """Return the stage before another one that last made a tensor of this name and shape."""
        found = None
        for event in self.events:
            if event.stage == stage and event.op != "layer":
                break
            if any((made.name, made.shape) == (x.name, x.shape) for made in event.outputs):
                found = event.stage
        return found

    def piece(self, token: int) -> str:
        """Return the text of a token as it can be shown on a line."""
        return self.pieces.get(token, "")

    @property
    def _first_layer(self) -> int:
        return min((e.layer for e in self.events if e.layer is not None), default=0)

    @property
    def new_tokens(self) -> int:
        """The tokens of the first pass."""
        return int(self.passes()[0][0].details["T"])


def pieces_of(events: Iterable[Event], token_bytes: Callable[[int], bytes]) -> dict[int, str]:
    """Return the text of each token that events name, by its id, as it can be shown on a line.

    A space is shown, and so are the bytes of what is not a whole character.

    Args:
        events: of a run.
        token_bytes: gives the bytes of a token, which need not be whole characters.
    """
    ids: set[int] = set()
    for event in events:
        ids.update(event.details.get("ids", ()))
        ids.update(token for token, _ in event.details.get("largest", ()))
        if "token" in event.details:
            ids.add(event.details["token"])
    return {token: _shown(token_bytes(token)) for token in sorted(ids)}


def _shown(data: bytes) -> str:
    try:
        return repr(data.decode())[1:-1].replace(" ", "\u2423")
    except UnicodeDecodeError:
        return repr(data)[2:-1]
