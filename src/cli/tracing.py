"""Turn the trace on and off, by command-line flags and by `/trace`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .. import __version__, ml, trace
from ..inference import ChatTemplate, InferenceEngine
from ..ml import ScaledAdapters
from ..model import InferenceContext
from ..untrusted import reason_of
from .answer import token_text
from .arguments import DEFAULT_DEBUG_LOG, Options
from .console import Console, UsageError

if TYPE_CHECKING:
    from ..drawing import Recorder
    from ..explorer import Collector
    from ..model import Interventions
    from ..trace.logger import TraceLog
    from ..trace.records import Event


@dataclass
class TraceSwitch:
    """Turns the trace on and off. Its files are truncated the first time."""

    options: Options
    console: Console
    engine: InferenceEngine
    chat_format: ChatTemplate | None
    # Returns the adapters of the next answer.
    adapters: Callable[[], ScaledAdapters] = tuple
    # Returns the interventions of the next answer.
    interventions: "Callable[[], Interventions]" = tuple

    def __post_init__(self) -> None:
        L = self.engine.model.args.n_layers
        for layers in self.options.trace_layers or ():
            if layers.stop > L:
                raise UsageError(
                    f"--trace-layers: expected layers from 0 to {L - 1}, got "
                    f"{layers.stop - 1}"
                )
        if self.options.trace_row is not None:
            H = self.engine.model.args.n_heads
            if self.options.trace_row[1] >= H:
                raise UsageError(
                    f"--trace-row: expected a head from 0 to {H - 1}, got "
                    f"{self.options.trace_row[1]}"
                )
        flag_paths = {
            "debug_log": self.options.debug_log,
            "json_lines": self.options.trace_json,
        }
        paths = {name: path for name, path in flag_paths.items() if path is not None}
        self.paths = paths or {"debug_log": DEFAULT_DEBUG_LOG}  # the trace files by kind
        self._mode: Literal["w", "a"] = "w"
        self._log: TraceLog | None = None
        self._recorders: list[Recorder | Collector] = []

    def turn_on(self) -> None:
        """Turn the trace on; raise UsageError if a file cannot be written."""
        if trace.is_on():
            return
        from ..trace.logger import TraceLog  # imports structlog, which is slow

        options = self.options
        sizes = self.engine.model.args.sizes
        try:
            with ExitStack() as opened:
                files: dict[str, Any] = {}
                for kind, path in self.paths.items():
                    # Names in a checkpoint may contain invalid UTF-8.
                    files[kind] = opened.enter_context(
                        open(
                            path, self._mode, encoding="utf-8", errors="backslashreplace"
                        )
                    )
                self._log = TraceLog(
                    sizes | {"C": self.engine.context.memory.capacity},
                    layers=options.trace_layers,
                    stages=options.trace_stages,
                    steps=options.trace_steps,
                    run=self._run(),
                    on_failure=self._warn,
                    **files,
                )
                opened.pop_all()
        except (OSError, ValueError) as error:  # a NUL in the path raises ValueError
            name = error.filename if isinstance(error, OSError) else path
            raise UsageError(
                f"{name}: trace: expected a writable file, got {reason_of(error)}"
            ) from None
        self._mode = "a"
        self._start()

    @contextmanager
    def recorded(self, recorder: "Recorder | Collector") -> Iterator[None]:
        """Also send the events of the block to a recorder; then turn the trace off."""
        self._recorders.append(recorder)
        if not trace.is_on():
            self._start()
        try:
            yield
        finally:
            trace.stop()

    def _start(self) -> None:
        from ..trace.records import RowChoice
        from ..trace.tracer import Tracer

        row = self.options.trace_row
        model = self.engine.model
        tokenizer = self.engine.model.tokenizer
        assert tokenizer is not None  # a session always has a tokenizer
        tracer = Tracer(
            model.args.sizes,
            self._write,
            weight_letters=model.args.tensor_letters,
            wants=lambda *event: any(view.wants(*event) for view in self._views),
            text_of=partial(token_text, tokenizer),
            statistics=self.options.trace_statistics,
            row=None if row is None else RowChoice(*row),
            values=lambda *event: any(
                recorder.wants_values(*event) for recorder in self._recorders
            ),
            close=self._close,
        )
        # Run a pass without a trace, to exclude one-time costs such as page faults on
        # mapped weights.
        model.transformer.forward(InferenceContext(model.args, 1), [0])
        trace.start(tracer)

    @property
    def _views(self) -> "list[TraceLog | Recorder | Collector]":
        return [*([] if self._log is None else [self._log]), *self._recorders]

    def _write(self, event: "Event") -> None:
        for view in self._views:
            if view.wants(event.stage, event.layer, event.step):
                view.write(event)

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log = None
        self._recorders = []

    def _warn(self, line: str) -> None:
        self.console.warn(line)
        if self._log is not None and not self._log.is_open and not self._recorders:
            trace.stop()

    def _run(self) -> dict[str, str]:
        """Return the run metadata for the header of the trace."""
        model = self.engine.model
        info = ml.build_info()
        options = self.options
        rounded = {} if model.activations is None else {"activations": model.activations}
        scaled = [f"{adapter.name} x {scale:g}" for adapter, scale in self.adapters()]
        changes = [each.text for each in self.interventions() if each.kind != "record"]
        return {
            "llama-bolts": __version__,
            "prompt": "see stage 1" if options.prompt is None else repr(options.prompt),
            "seed": "see stage 20" if options.seed is None else str(options.seed),
            "model": model.description,
            "chat format": "none" if self.chat_format is None else self.chat_format.name,
            "instruction set": info["isa"],
            "threads": str(info["threads"]),
            **rounded,
            **({"adapters": ", ".join(scaled)} if scaled else {}),
            **({"interventions": ", ".join(changes)} if changes else {}),
            "attention": "one op per stage, with the bits of the fused op; drafts: none",
        }
