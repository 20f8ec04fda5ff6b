"""From the events of a run to its part of a document: what the page shows, within a
limit.

A collector takes the events of a trace, as the log and the diagrams do, and asks for the
elements of the tensors that it keeps. What does not fit is left out in a stated order:
later passes before earlier ones; in a pass, the first positions before the last ones; of
the values, layers other than the first and the last. Values of layers wait until the end
of the run, and take what the other kinds of arrays left. The document says what is
missing.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..inference import Sampler, SamplingArgs
from ..model import Model
from ..model.rope import inverse_frequencies
from ..trace.records import Event, Letters, TensorInfo
from .lens import Floats, attribute, read_lens
from .texts import facts_of, token_text
from .write import DeflatedArray, Store, deflate_values

# Passes whose ops are shown one by one: the prompt, and the first new token.
_PASSES_WITH_OPS = 2
_STREAM_BYTES = 32 << 20  # of the residual streams of a pass that wait for the lens
_LENS_BYTES = (
    60  # of the file, per position and depth: about, with the tokens of the union
)
_FIRST_SHARE = 0.85  # of what there is of a kind, for the first pass
_CHOSEN = 64  # most probable tokens of a step whose texts are kept
_BASE64 = 4 / 3


@dataclass
class _Values:
    """The elements of a tensor, which wait until the run has ended."""

    event: list[Any]  # its last item becomes the place of the elements
    array: DeflatedArray
    axis: int | None  # of the tokens; None if there is no such axis
    first: int  # the first token that is kept


@dataclass
class _Pass:
    """One pass through the network, while it runs."""

    number: int
    start: int
    T: int
    token: int | None = None  # that it gave
    rows: int = (
        0  # of the last tokens, whose attention is kept; below, what else is of them
    )
    value_rows: int = 0
    value_layers: tuple[int, ...] = ()
    stream_rows: int = 0
    attention: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    newest: Any = None  # the elements of what the op before made
    logits: Floats | None = None
    # The name and the value of each step that changes logits, with the ids and the new
    # logits.
    changed: list[tuple[str, float | None, npt.NDArray[np.int32], Floats]] = field(
        default_factory=list
    )
    streams: list[Floats] = field(default_factory=list)
    added: list[Floats] = field(default_factory=list)
    heads: list[Floats] = field(default_factory=list)
    rms: list[Floats] = field(default_factory=list)
    norms: list[Floats] = field(default_factory=list)
    cosines: list[Floats] = field(default_factory=list)
    seconds: list[float] = field(default_factory=lambda: [0.0] * 22)  # of the stages
    record: dict[str, Any] = field(default_factory=dict)


class Collector:
    """Makes the part of a document that shows one run.

    Args:
        model: What runs; the lens uses its network, between the ops of the run.
        store: Takes the arrays.
        is_forced: Whether the tokens of the answer are known.
    """

    def __init__(self, model: Model, store: Store, is_forced: bool = False) -> None:
        self._model = model
        self._store = store
        store.begin_run()
        # Before the trace, which would show what is measured.
        self._facts = facts_of(model) | {"forced": is_forced}
        self._sizes = dict(model.args.sizes)
        self._ids: list[int] = []  # of the prompt, then those drawn
        self._prompt: dict[str, Any] = {}
        self._passes: list[dict[str, Any]] = []
        self._pass: _Pass | None = None
        self._waiting: _Pass | None = None
        self._events: list[list[Any]] = []
        # By the place of the layer in the order in which layers are kept, and the pass.
        self._values: dict[tuple[int, int], list[_Values]] = {}
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._shown_ids: set[int] = set()
        self._left_out: dict[str, list[str]] = {}

    def wants(self, *_where: int | None) -> bool:
        """Return whether events are worth making: all are."""
        return True

    def wants_values(self, stage: int, layer: int | None, _step: int | None) -> bool:
        """Return whether the elements of what a stage makes are looked at."""
        one = self._pass
        is_kept = one is not None and layer in one.value_layers
        return stage in (4, 13, 14, 15, 17, 18, 19) or (is_kept and stage > 5)

    def write(self, event: Event) -> None:
        """Take an event."""
        if event.op == "mark":
            self._mark(event)
        elif self._pass is not None and event.op != "layer":
            self._read_waiting()  # here, between the ops, nothing that runs is observed
            self._op(event, self._pass)

    def finish(self) -> dict[str, Any]:
        """Return what the document says of the run."""
        self._end_pass()
        self._read_waiting()
        self._keep_values()
        args = self._model.args
        texts = {}
        for token in sorted({*self._ids, *self._shown_ids}):
            text, is_special = token_text(self._model.tokenizer, token)
            texts[str(token)] = [text, *[1] * is_special]
        frequencies = inverse_frequencies(
            args.head_dim, args.rope_theta, args.rope_scaling
        )
        return {
            **self._facts,
            "sizes": self._sizes,
            "dtype": args.dtype.name,
            "prompt": self._prompt,
            "tokens": self._ids,
            "texts": texts,
            "passes": self._passes,
            "tensors": [list(info) for info in self._tensors],
            "events": self._events,
            "rope": frequencies.numpy().tolist(),
            "leftOut": [
                f"{what}: {'; '.join(parts)}" for what, parts in self._left_out.items()
            ],
        }

    def _mark(self, event: Event) -> None:
        details = event.details
        if event.stage == 1:
            self._prompt = {
                "messages": details.get("messages"),
                "text": details.get("text"),
            }
            self._ids = list(details["ids"])
            self._prompt_length = len(self._ids)
        elif event.stage == 3:
            self._end_pass()  # there is one before a further part of a long prompt
            self._begin_pass(int(event.position or 0), int(details["T"]))
        elif event.stage == 20 and self._pass is not None:
            shown = ("token", "drawn", "random", "seed", "sampling", "choice")
            self._pass.record |= {
                name: details[name] for name in shown if name in details
            }
            candidates = details["choice"]["candidates"]
            self._shown_ids.update(one["token_id"] for one in candidates)
            self._shown_ids.add(details.get("drawn", details["token"]))
            self._change_logits(self._pass, details["sampling"])
        elif event.stage == 21 and self._pass is not None:
            self._pass.record |= {"text": details["text"], "stop": details["stop_reason"]}
            self._ids.append(details["token"])
            self._pass.token = details["token"]
            self._end_pass()

    def _change_logits(self, one: _Pass, sampling: Mapping[str, Any]) -> None:
        """Compute what the bias and the penalties make of the logits, before a token is
        drawn.
        """
        if one.logits is None:
            return
        sampler = Sampler(SamplingArgs(**sampling))
        sampler.observe(self._ids[: self._prompt_length])
        sampler.observe(self._ids[self._prompt_length :], is_drawn=True)
        for name, value, logits in sampler.changed_logits(one.logits):
            ids = np.flatnonzero(logits != one.logits).astype(np.int32)
            one.changed.append((name, value, ids, logits[ids]))

    def _begin_pass(self, start: int, T: int) -> None:
        number = len(self._passes)
        sizes = self._sizes
        one = self._pass = _Pass(number, start, T)
        S = start + T
        L = sizes["L"]
        H = sizes["H"]
        share = _FIRST_SHARE if number == 0 and T > 1 else 1.0
        # Attention weights are mostly small: they deflate to less than half.
        room = self._store.room["attention"] * share * 2 / _BASE64 / (L * H)
        counts = range(1, T + 1)
        one.rows = bisect_right(counts, room, key=lambda n: n * S - n * (n - 1) // 2)
        room = self._store.room["lens"] * share / (_LENS_BYTES * (L + 1))
        limit = _STREAM_BYTES // (4 * sizes["D"] * (L + 1))
        one.stream_rows = min(T, int(room), max(limit, 1))
        if number < _PASSES_WITH_OPS:
            room = self._store.room["values"] * share
            one.value_rows = bisect_right(
                counts, room, key=lambda n: self._value_bytes(n, S)
            )
            if one.value_rows:
                order = dict.fromkeys((0, L - 1, *range(L)))
                fitting = int(self._store.free // self._value_bytes(one.value_rows, S))
                one.value_layers = tuple(order)[:fitting]

    def _value_bytes(self, rows: int, S: int) -> float:
        """Return about how many bytes of the file the values of one layer take."""
        n = self._sizes
        each = self._model.args.dtype.itemsize
        heads = (n["H"] + 2 * n["K"]) * n["h"]
        row = each * (2 * n["D"] + 2 * heads + n["H"] * n["h"] + 3 * n["F"])
        row += 16 * n["D"] + n["H"] * S * (12 + each)
        return (rows * row + 2 * min(rows, S) * n["K"] * n["h"] * each) * _BASE64

    def _op(self, event: Event, one: _Pass) -> None:
        """Keep what is shown of an op, and of what it made."""
        one.seconds[event.stage] += event.seconds or 0.0
        made = event.outputs[0]
        if made.values is not None and made.values.ndim:
            self._look(event, made.letters, made.values, one)
        if event.op == "write_cache":
            self._sizes["C"] = made.shape[0]
        if one.number >= _PASSES_WITH_OPS:
            return
        self._events.append(
            [
                one.number,
                event.stage,
                event.layer,
                event.op,
                [[self._tensor(x), x.id] for x in event.inputs],
                [[self._tensor(x), x.id] for x in event.outputs],
                event.seconds,
                event.bytes,
                event.operations,
                event.code,
                dict(event.details),
                None,
            ]
        )
        self._keep(event, made, one)

    def _tensor(self, x: TensorInfo) -> int:
        return self._tensors.setdefault(
            (x.name, x.shape, x.letters, x.dtype), len(self._tensors)
        )

    def _look(self, event: Event, letters: Letters, values: Any, one: _Pass) -> None:
        """Take the numbers of attention, of the residual stream and of the logits."""
        stage = event.stage
        if stage == 4 and letters == ("T", "D"):  # the last of them is the stream
            one.added = [values[-1].copy()]
            one.streams = []
            one.rms = []
            self._stream(values, one)
        elif stage == 13 and event.op == "softmax" and one.rows:
            first = one.T - one.rows
            steps = np.rint(values[:, first:] * 255.0).astype(np.uint8)  # [H, rows, S]
            # Of each row what its token sees.
            rows = [
                steps[:, row, : one.start + first + row + 1] for row in range(one.rows)
            ]
            one.attention.append(np.concatenate(rows, axis=1))  # [H, entries]
        elif stage == 14 and event.op == "reshape":
            one.heads.append(values[-1].copy())
        elif stage in (15, 18) and event.op == "add":
            one.added.append(one.newest[-1].copy())
            added = one.newest.astype(np.float64)
            before = values.astype(np.float64) - added
            one.norms.append(np.sqrt(np.square(added).sum(-1)))
            lengths = one.norms[-1] * np.sqrt(np.square(before).sum(-1))
            products = (added * before).sum(-1)
            one.cosines.append(
                np.divide(
                    products, lengths, out=np.zeros_like(products), where=lengths > 0
                )
            )
            self._stream(values, one)
        elif stage == 19 and letters[-1:] == (
            "V",
        ):  # the last of them are those that count
            one.logits = values[-1]
        one.newest = values

    def _stream(self, x: Floats, one: _Pass) -> None:
        """Measure the residual stream; keep that of the embeddings and that after each
        layer.
        """
        one.rms.append(np.sqrt(np.square(x.astype(np.float64)).mean(-1)))
        if len(one.rms) % 2 and one.stream_rows:
            one.streams.append(x[-one.stream_rows :].copy())

    def _keep(self, event: Event, made: TensorInfo, one: _Pass) -> None:
        """Keep the elements of a tensor for the last event,
        or let those of a layer wait.
        """
        is_layer = event.layer in one.value_layers and event.stage > 5
        is_outside = (
            event.layer is None and event.stage in (4, 19) and made.name != "logits"
        )
        # A view or a copy shows nothing.
        is_new = event.bytes > 0 and event.op != "repeat_heads"
        values = made.values
        axis = None
        first = 0
        if values is None or not (is_new and (is_layer or is_outside) and one.value_rows):
            return
        if rows := [x for x in ("T", "S") if x in made.letters]:
            axis = made.letters.index(rows[0])
            first = max(values.shape[axis] - one.value_rows, 0)
            values = np.take(values, range(first, values.shape[axis]), axis=axis)
        array = deflate_values(values, made.dtype)
        waiting = _Values(self._events[-1], array, axis, first)
        if event.layer is None:
            self._place(waiting)
        else:
            order = one.value_layers.index(event.layer)
            self._values.setdefault((order, one.number), []).append(waiting)

    def _place(self, waiting: _Values) -> None:
        """Store the elements of a tensor, and write their place into its event."""
        reference = self._store.add_deflated(waiting.array, "values")
        if reference is not None:
            waiting.event[-1] = [reference, waiting.axis, waiting.first]

    def _keep_values(self) -> None:
        """Store the values of as many whole layers as fit into what other kinds left."""
        self._store.lend("values")
        kept: dict[int, list[int]] = {}
        full: set[int] = set()  # passes of which no further layer is kept
        for (order, number), waiting in sorted(self._values.items()):
            size = sum(x.array.size for x in waiting)
            if number in full or size > self._store.room["values"]:
                full.add(number)
                continue
            for x in waiting:
                self._place(x)
            layers = self._passes[number]["values"][1]
            kept.setdefault(number, []).append(layers[order])
        self._values.clear()
        for number, record in enumerate(self._passes[:_PASSES_WITH_OPS]):
            layers = sorted(kept.get(number, []))
            rows = record["values"][0]
            record["values"] = [rows, layers]
            is_whole = rows == record["T"] and len(layers) == self._sizes["L"]
            if not is_whole:
                self._leave_out(
                    "values", f"pass {number} keeps {_kept(layers, rows, record['T'])}"
                )

    def _end_pass(self) -> None:
        """Write down the pass, if there is one; its lens waits until an op of the next
        one.
        """
        one = self._pass
        self._pass = None
        if one is None:
            return
        self._passes.append(one.record)
        add = self._store.add
        one.record |= {
            "start": one.start,
            "T": one.T,
            "seconds": one.seconds,
            "logits": None,
            "changed": None,
            "attention": None,
            "residual": None,
            "lens": None,
            "attribution": None,
            "values": [one.value_rows, list(one.value_layers)],
        }
        if one.logits is not None:
            one.record["logits"] = add(one.logits, "logits")
            one.record["changed"] = self._kept_changes(one)
            near = np.argpartition(-one.logits, min(_CHOSEN, one.logits.size) - 1)[
                :_CHOSEN
            ]
            self._shown_ids.update(near.tolist())
        if one.record["logits"] is None:
            self._leave_out("all logits", f"pass {one.number}")
        elif one.record["changed"] is None:
            self._leave_out("logits after penalties", f"pass {one.number}")
        if len(one.attention) == self._sizes["L"]:
            one.record["attention"] = self._kept_attention(np.stack(one.attention), one)
        self._leave_out_first("attention", one, one.rows)
        if len(one.rms) == 2 * self._sizes["L"] + 1:
            numbers = np.stack((*one.rms, *one.norms, *one.cosines)).astype(np.float32)
            one.record["residual"] = add(numbers, "residual")  # [6 L + 1, T]
        if one.record["residual"] is None:
            self._leave_out("residual stream", f"pass {one.number}")
        one.attention = []
        self._waiting = one

    def _read_waiting(self) -> None:
        """Read the lens of the pass that ended, and who promoted its token."""
        one = self._waiting
        self._waiting = None
        if one is None:
            return
        transformer = self._model.transformer
        if len(one.streams) == self._sizes["L"] + 1 and one.stream_rows:
            last = one.start + one.T
            after = range(last - one.stream_rows + 1, last + 1)
            wanted = [self._ids[p] if p < len(self._ids) else None for p in after]
            lens = read_lens(transformer, np.stack(one.streams), wanted)
            self._shown_ids.update(lens["ids"].tolist())
            kept: dict[str, Any] = {"rows": one.stream_rows}
            for name, array in lens.items():
                kept[name] = self._store.add(array, "lens")
                if kept[name] is None:
                    break
            else:
                one.record["lens"] = kept
        self._leave_out_first("lens", one, one.stream_rows)
        if one.token is not None and len(one.added) == 2 * self._sizes["L"] + 1:
            found = attribute(transformer, np.stack(one.added), one.heads, one.token)
            for name in ("parts", "heads"):
                found[name] = self._store.add(found[name], "residual")
            one.record["attribution"] = None if found["parts"] is None else found

    def _kept_changes(self, one: _Pass) -> list[dict[str, Any]] | None:
        """Store the logits that the bias and the penalties changed; None if there is no
        room.
        """
        changes = []
        for name, value, ids, logits in one.changed:
            places = self._store.add(ids, "logits")
            values = self._store.add(logits, "logits")
            if places is None or values is None:
                return None
            changes.append(
                {"name": name, "value": value, "ids": places, "logits": values}
            )
        return changes

    def _kept_attention(self, weights: npt.NDArray[np.uint8], one: _Pass) -> Any:
        """Keep the attention [L, H, entries] of a pass, of half of the rows until it
        fits.
        """
        data = self._store.add(weights, "attention")
        while data is None and one.rows > 1:
            first = one.start + one.T - one.rows
            dropped = one.rows // 2
            one.rows -= dropped
            weights = weights[..., sum(range(first + 1, first + dropped + 1)) :]
            data = self._store.add(weights, "attention")
        return None if data is None else {"rows": one.rows, "data": data}

    def _leave_out(self, what: str, which: str) -> None:
        self._left_out.setdefault(what, []).append(which)

    def _leave_out_first(self, what: str, one: _Pass, rows: int) -> None:
        """Say which positions are left out of what a pass keeps of its last rows."""
        end = one.start + one.T - (0 if one.record[what] is None else rows)
        if end > one.start:
            is_one = end - one.start == 1
            which = (
                f"position {one.start}"
                if is_one
                else f"positions {one.start} to {end - 1}"
            )
            self._leave_out(what, which)


def _kept(layers: list[int], rows: int, T: int) -> str:
    """Say which values of a pass are kept: their layers and tokens."""
    if not layers:
        return "none"
    names = ("layer " if len(layers) == 1 else "layers ") + ", ".join(map(str, layers))
    if rows == T:
        return f"those of {names}"
    tokens = "token" if rows == 1 else f"{rows} tokens"
    return f"those of {names}, of the last {tokens} of {T}"
