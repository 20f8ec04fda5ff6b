"""Write the trace with structlog, as a readable log or as JSON lines."""

import contextlib
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

import structlog

from ..sampling_steps import is_worth_showing
from ..untrusted import escape_controls
from .events import LEGEND, STAGES
from .records import LAYER, MARK, Event, TensorInfo

Ranges = Sequence[range]

_WIDTH = 120
_OP_WIDTH = 22
_COLUMNS = "{:>2} {:<22} {:<14} {:>7}  {}"
_STEP_COLUMNS = "{:>5} {:>8}  {:<26} {:<26} {:>6.4f} {:>6.4f} {:>9.3f}"
_BEFORE_INPUTS = 86
_INDENT = " " * 8
_MOST_TOKENS = 64
_MOST_FACT = 200
_PASS_STAGES = (3, 20, 21)
_NOTHING: Mapping[str, Any] = {}


class TraceLog:
    """Writes events to a readable log, to JSON lines, or to both.

    Raises:
        OSError: The header of a file cannot be written.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],  # the model's sizes by letter
        *,
        debug_log: TextIO | None = None,  # receives the readable log
        json_lines: TextIO | None = None,
        # The layers and steps to write in full. By default, the JSON lines contain all of
        # them, and the readable log contains the first layer and the first two steps
        # (step 0 runs the prompt). The log has one line for every other layer and step.
        layers: Ranges | None = None,
        steps: Ranges | None = None,
        stages: Ranges | None = None,  # the stages to write; all by default
        run: Mapping[str, str] = _NOTHING,  # run metadata for the header of both files
        # Called with a message if a write fails.
        on_failure: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._views: list[_View] = []
        if json_lines is not None:
            self._views.append(_JsonLines(json_lines, stages, layers, steps, on_failure))
        if debug_log is not None:
            full_layers = layers or (range(1),)
            full_steps = steps or (range(2),)
            self._views.append(
                _DebugLog(debug_log, stages, full_layers, full_steps, on_failure)
            )
        for view in self._views:
            view.put(view.head(sizes, run))
        self._logger = structlog.wrap_logger(
            structlog.ReturnLogger(), self._views, structlog.BoundLogger
        )

    def write(self, event: Event) -> None:
        """Write an event to each file that includes it."""
        self._logger.msg(event)

    def wants(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether any file includes events with this stage, layer and step."""
        return any(view.wants(stage, layer, step) for view in self._views)

    @property
    def is_open(self) -> bool:
        """Whether any file still accepts events."""
        return any(view.file is not None for view in self._views)

    def close(self) -> None:
        """Close the files."""
        for view in self._views:
            view.close()


@dataclass(eq=False)
class _View(ABC):
    """A structlog processor that writes each event to a file and passes it on."""

    file: TextIO | None  # None after a failed write
    stages: Ranges | None
    layers: Ranges | None
    steps: Ranges | None
    on_failure: Callable[[str], None]

    def wants(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether this file includes events with this stage, layer and step."""
        limits = (self.stages, stage), (self.layers, layer), (self.steps, step)
        return self.file is not None and all(
            _contains(ranges, index) for ranges, index in limits
        )

    @abstractmethod
    def head(self, sizes: Mapping[str, int], run: Mapping[str, str]) -> str:
        """Return the header of the file, including the final newline."""

    @abstractmethod
    def text(self, event: Event) -> str:
        """Return an event as text, including the final newline; empty to skip it."""

    def put(self, text: str) -> None:
        """Write text to the file.

        If writing fails, close the file and raise an OSError that contains its name.
        """
        assert self.file is not None
        try:
            self.file.write(escape_controls(text))
            self.file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.close()) from None

    def __call__(
        self, _logger: Any, _method: str, entry: structlog.typing.EventDict
    ) -> Any:
        event: Event = entry["event"]
        if self.wants(event.stage, event.layer, event.step):
            try:
                self.put(self.text(event))
            except OSError as error:
                self.on_failure(
                    f"{error.filename}: the trace ends here: {error.strerror}"
                )
        return entry

    def close(self) -> str:
        """Close the file, discarding unwritten text, and return its name."""
        file = self.file
        self.file = None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()
        return str(getattr(file, "name", ""))


class _JsonLines(_View):
    """Writes a header object with sizes and run metadata, then one object per event."""

    # The output is pure ASCII, because some readers treat U+2028 as the end of a line.
    _render = structlog.processors.JSONRenderer(
        default=TensorInfo.as_dict, allow_nan=False
    )

    def head(self, sizes: Mapping[str, int], run: Mapping[str, str]) -> str:
        return f"{self._render(None, '', {'sizes': dict(sizes), 'run': dict(run)})!s}\n"

    def text(self, event: Event) -> str:
        return f"{self._render(None, '', vars(event))!s}\n"


class _DebugLog(_View):
    """The readable log, with a heading per stage followed by one or two lines per op."""

    _new = ""  # the positions of the new tokens in the current step
    _last_op = ""
    _after_heading = False
    _in_table = False  # whether the last line belongs to the table of later steps
    _read = ""  # the latest token, which is the input to the next step

    def head(self, sizes: Mapping[str, int], run: Mapping[str, str]) -> str:
        self._sizes = sizes
        self._linked: set[int] = set()  # stages whose links have been written
        # The events of a step that is shown on one line, by stage.
        self._in_step: dict[int, Event] = {}
        values = {letter: f" = {size}" for letter, size in sizes.items()}
        values |= {"G": f" = H/K{values['G']}"} if "G" in values else {}
        letters = [
            f"{letter}{values.get(letter, '')} {meaning}"
            for letter, meaning in LEGEND.items()
            if letter in "TS" or letter in sizes
        ]
        facts = "; ".join(
            f"{name} {_cut(value, _MOST_FACT)}" for name, value in run.items()
        )
        lines = [
            *(line.rstrip() for line in _wrapped(facts, "# ", "#   ")),
            *_packed(letters, "# ", "#   "),
            (
                "# st: stage, which --explain N explains; code: where the op was called; "
                "ms: its time"
            ),
            _COLUMNS.format("st", "op", "code", "ms", "result <- inputs, arguments"),
        ]
        return "".join(f"{line}\n" for line in lines)

    def wants(self, stage: int, layer: int | None, step: int | None) -> bool:
        if _contains(self.steps, step):
            return super().wants(stage, None if stage == 5 else layer, step)
        return stage in _PASS_STAGES and super().wants(stage, None, None)

    def text(self, event: Event) -> str:
        op = event.op
        previous = self._last_op
        self._last_op = event.op
        in_full = _contains(self.steps, event.step)
        self._in_table = self._in_table and not in_full
        if not in_full:
            lines = self._later_step(event)
        elif op == LAYER:
            heading = ["", "# 5 each transformer block: its time, its result, its work"]
            lines = heading * (previous != LAYER) + [_layer_line(event)]
            self._after_heading = False
        elif op != MARK:
            lines = _op_lines(event)
            self._after_heading = False
        elif _contains(self.layers, event.layer):
            heading = self._heading(event)
            below = _mark_lines(event)
            self._after_heading = not below
            lines = [*heading, *below]
        else:
            # A layer that is not shown in full gets a single line when it ends.
            lines = []
            self._last_op = previous
        if event.stage == 21:
            self._read = _token_text(event.details)
        return "".join(f"{line}\n" for line in lines)

    def _heading(self, event: Event) -> list[str]:
        """Return the heading of a stage, with links the first time it appears."""
        stage = STAGES[event.stage]
        details = event.details
        title = f"# {stage.number} {stage.name}"
        if event.layer is not None:
            title += f", layer {event.layer}"
        if stage.number == 3:
            position = event.position
            T = details["T"]
            S = details["S"]
            self._new = (
                f"positions {position} to {S - 1}" if T > 1 else f"position {position}"
            )
            title += f": step {event.step}, T = {T}, S = {S}, {self._new}"
        elif stage.number == 11 and "C" in self._sizes:
            title += f": {self._new} of C = {self._sizes['C']}"
        elif "stages" in details:
            title += f": stages {details['stages']}"
        elif "window" in details:
            title += f": {_limits_text(details)}"
        links: list[str] = []
        if stage.number not in self._linked:
            self._linked.add(stage.number)
            links = _packed(
                [stage.diagram, stage.code, stage.chapter], "#   ", "#   ", "  "
            )
        is_apart = not self._after_heading and (bool(links) or stage.number == 3)
        return [*[""] * is_apart, title, *links]

    def _later_step(self, event: Event) -> list[str]:
        """Return the line for a step that is not shown in full, when the step ends."""
        self._in_step[event.stage] = event
        if event.stage != 21:
            return []
        events = self._in_step
        self._in_step = {}
        if len(events) < len(_PASS_STAGES):
            return []  # some of these stages are not traced
        opening = events[3]
        sampled = events[20].details
        details = event.details
        candidates = {
            c["token_id"]: c["probabilities"] for c in sampled["choice"]["candidates"]
        }
        # The model's probability of the token, then its probability after each sampling
        # step.
        chances = candidates[sampled["token"]]
        row = _STEP_COLUMNS.format(
            event.step,
            opening.position,
            self._read,
            _token_text(details),
            chances[0],
            chances[-1],
            1e3 * (event.start - opening.start),
        )
        heading = (
            []
            if self._in_table
            else [
                "",
                (
                    "# later steps, which --trace-steps shows in full; p by the model, "
                    "and as drawn"
                ),
                (
                    f"{'step':>5} {'position':>8}  {'token in':<26} {'sampled':<26}      "
                    "p      p        ms"
                ),
            ]
        )
        self._in_table = True
        reason = details["stop_reason"]
        return [*heading, row if reason is None else f"{row}  {reason}"]


def _result_line(event: Event, name: str) -> str:
    """Return a line with the stage, code location, duration and results of an event."""
    milliseconds = "" if event.seconds is None else f"{event.seconds * 1e3:.3f}"
    code = event.code.rpartition("/")[2]
    results = ", ".join(map(tensor_text, event.outputs))
    return _COLUMNS.format(event.stage, name, code, milliseconds, results).rstrip()


def _op_lines(event: Event) -> list[str]:
    """Return the lines that show the results and inputs of an op."""
    name = event.op
    if name == MARK:  # show the function, or its class if the name is too long
        name = STAGES[event.stage].function
        name = name if len(name) <= _OP_WIDTH else name.rpartition(".")[0]
    left = _result_line(event, name)
    dtypes = {x.dtype for x in event.outputs}
    read = [_read_text(x, dtypes) for x in event.inputs] + event.arguments
    lines = [left]
    if read:
        right = f"<- {', '.join(read)}"
        if max(len(left) + 1, _BEFORE_INPUTS) + len(right) <= _WIDTH:
            lines = [f"{left:<{_BEFORE_INPUTS - 1}} {right}"]
        else:
            lines += _packed(read, f"{_INDENT}<- ", f"{_INDENT}   ")
    for x in event.outputs:
        if x.row:
            lines.append(f"{_INDENT}{row_text(x)}")
        if x.statistics:
            lines.append(_statistics_line(x.statistics))
    return lines


def _mark_lines(event: Event) -> list[str]:
    """Return the lines below the heading of a stage that does not consist of ops."""
    stage = event.stage
    details = event.details
    if stage in (3, 5, 7, 13):
        return []  # the heading contains everything
    if stage not in (1, 20, 21):
        return _op_lines(event) if event.outputs or event.inputs or details else []
    left = _op_lines(replace(event, details={}, inputs=()))
    if stage == 21:
        text = details["text"]
        reason = details["stop_reason"]
        facts = [f"token {_token_text(details)}, text {text!r}", *details["symbols"]]
        facts += ["waits for the rest of the character"] * details["waits"]
        facts += [f"stop: {reason}"] * (reason is not None)
        return left + _wrapped(", ".join(facts))
    return left + (_prompt_lines(details) if stage == 1 else _choice_lines(details))


def _prompt_lines(details: Mapping[str, Any]) -> list[str]:
    """Return lines with the messages or text of a prompt, and with its tokens."""
    lines = []
    for message in details.get("messages", ()):
        lines += _wrapped(f"{message['role']}: {message['content']!r}")
    if "text" in details:
        lines += _wrapped(f"text: {details['text']!r}")
    if details["symbols"]:
        lines += _wrapped(", ".join(details["symbols"]))
    ids = details["ids"]
    tokens = [
        f"{token} {text}" for token, text in zip(ids, details["texts"], strict=True)
    ]
    more = [f"and {len(ids) - _MOST_TOKENS} more"] if len(ids) > _MOST_TOKENS else []
    first = f"{_INDENT}{len(ids)} tokens: "
    return [*lines, *_packed([*tokens[:_MOST_TOKENS], *more], first, f"{_INDENT}  ")]


def _choice_lines(details: Mapping[str, Any]) -> list[str]:
    """Return a table of the sampling of a token.

    It has one row per candidate token and one column per sampling step.
    """
    sampling = details["sampling"]
    choice = details["choice"]
    settings = ", ".join(
        f"{name} {value}"
        for name, value in sampling.items()
        if name != "seed" and is_worth_showing(name, value)
    )
    random_value = details["random"]
    source = (
        "the largest logit"
        if random_value is None
        else f"random number {random_value:.6f}"
    )
    lines = _wrapped(f"{settings}; seed {details['seed']}; {source}")
    names = [
        stage["name"] if stage["value"] is None else f"{stage['name']} {stage['value']:g}"
        for stage in choice["stages"]
    ]
    head = f"{_INDENT}{'token':<26} {'logit':>9}" + "".join(
        f" {name:>15}" for name in names
    )
    rows = [head[:_WIDTH]]
    columns = choice["candidates"], details["logits"], details["texts"]
    for candidate, logit, text in zip(*columns, strict=True):
        token = candidate["token_id"]
        chances = "".join(
            f" {p:>15.4f}" if p else f" {'-':>15}" for p in candidate["probabilities"]
        )
        row = f"{_INDENT}{_cut(f'{token} {text}', 26):<26} {logit:>9.3f}{chances}"
        rows.append(f"{row} <-" if token == details["token"] else row)
    kept = "".join(f" {stage['kept']:>15}" for stage in choice["stages"])
    return [*lines, *rows, f"{_INDENT}{'tokens that are left':<36}{kept}"]


def _layer_line(event: Event) -> str:
    """Return the summary line of a transformer block."""
    line = _result_line(event, f"layer {event.layer}")
    operations = event.operations / 1e6
    moved = event.bytes / 2**20
    return f"{line:<{_BEFORE_INPUTS - 1}} {operations:.4g} M operations, {moved:.4g} MiB"


def tensor_text(x: TensorInfo) -> str:
    """Format a tensor as `xq [T, H, h] = [22, 32, 128] bfloat16`.

    Unknown letters are omitted.
    """
    letters = f" [{', '.join(x.letters)}] =" if x.letters else ""
    return f"{_name(x)}{letters} [{', '.join(map(str, x.shape))}] {x.dtype}".lstrip()


def _read_text(x: TensorInfo, dtypes: Iterable[str]) -> str:
    """Format an input with its letters, and its dtype if no result has that dtype."""
    sizes = ", ".join(x.letters or map(str, x.shape))
    return f"{_name(x)} [{sizes}]{'' if x.dtype in dtypes else f' {x.dtype}'}".lstrip()


def _name(x: TensorInfo) -> str:
    return x.name if x.name.isprintable() else repr(x.name)


def _limits_text(details: Mapping[str, Any]) -> str:
    """Return the limits of attention in a layer, such as `window of 8, sinks`."""
    window = details["window"]
    parts = ["all positions" if window is None else f"window of {window}"]
    if "W" in details:
        parts.append(f"W = {details['W']}")
    parts += ["sinks"] * details["sinks"] + ["soft cap"] * details["soft_cap"]
    return ", ".join(parts)


def _token_text(details: Mapping[str, Any]) -> str:
    """Return the id and the text of the token in a stage 21 event."""
    return f"{details['token']} {details['texts'][0]}"


def _statistics_line(values: Mapping[str, Any]) -> str:
    columns = ((name, values[name]) for name in ("min", "max", "mean", "rms"))
    summary = " ".join(
        f"{k} {'-' if isinstance(n, str) else _number(n):>10}" for k, n in columns
    )
    first, last = (
        " ".join(_number(n) for n in values[ends]) for ends in ("first", "last")
    )
    return _cut(f"{_INDENT}{summary}  first {first}  last {last}", _WIDTH)


def row_text(x: TensorInfo, width: int = 0) -> str:
    """Format the row of a result as `xq[26, 0, :]   -0.04272  -0.03809 ...`.

    The name and the index are padded to a width.
    """
    assert x.row is not None
    index = ", ".join(":" if i is None else str(i) for i in x.row["index"])
    numbers = " ".join(_element(n) for n in x.row["first"])
    is_cut = len(x.row["first"]) < x.row["length"]
    return f"{f'{_name(x)}[{index}]':<{width}} {numbers}{' ...' if is_cut else ''}"


def _element(value: float | str | Sequence[float]) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{complex(*value):.4g}"
    text = str(value) if isinstance(value, int) else _number(value)
    return f"{text:>9}"


def _number(value: float | str) -> str:
    # Infinity is a string in JSON.
    return value if isinstance(value, str) else f"{value:.4g}"


def _packed(
    items: Sequence[str], first: str, later: str, between: str = ", "
) -> list[str]:
    """Join items into as few lines as possible, each beginning with a prefix."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(between) + len(item) <= _WIDTH:
            lines[-1] += between + item
        else:
            lines.append(_cut(f"{later if lines else first}{item}", _WIDTH))
    return lines


def _wrapped(text: str, first: str = _INDENT, later: str = f"{_INDENT}  ") -> list[str]:
    """Wrap text into indented lines."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        drop_whitespace=False,
        break_on_hyphens=False,
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _contains(ranges: Ranges | None, number: int | None) -> bool:
    """Return whether any range contains a number, or True if either argument is None."""
    return (
        ranges is None or number is None or any(number in numbers for numbers in ranges)
    )
