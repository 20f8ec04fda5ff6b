"""Collect the data for one run in an explorer document, within a size limit.

A collector receives trace events, as the log and the diagrams do, and requests the
elements of the tensors that it stores. If the data exceed the limit, some are omitted:
later passes before earlier ones and, within a pass, the first positions before the last
ones. Tensor values are omitted for middle layers before the first and last layers. Layer
values are stored at the end of the run, in the space that the other kinds of arrays have
not used. The document lists all omissions.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml
from ..inference import Sampler, SamplingArgs
from ..model import Interventions, Model
from ..model.rope import pair_frequencies
from ..trace.events import Letters
from ..trace.records import Event, TensorInfo
from .heads import KINDS, HeadScores, name_heads
from .lens import Floats, attribute, read_lens
from .texts import facts_of, token_text
from .write import DeflatedArray, Store, deflate_values

# Number of passes whose individual ops are stored: the prompt and the first new token.
_PASSES_WITH_OPS = 2
# Maximum size of the residual streams that are kept until the logit lens is computed.
_STREAM_BYTES = 32 << 20
# Approximate lens size in the file per position and depth, including the token ids.
_LENS_BYTES = 60
_FIRST_SHARE = 0.85  # the prompt pass's share of each budget
_CHOSEN = 64  # number of most probable tokens per step whose text is stored
_BASE64 = 4 / 3


@dataclass
class _Values:
    """The elements of a tensor, which are stored at the end of the run."""

    event: list[Any]  # the event, whose last item is replaced by the reference
    array: DeflatedArray
    axis: int | None  # the token axis, if any
    first: int  # the index of the first stored token


@dataclass
class _Pass:
    """The data for a forward pass that has not been recorded yet."""

    number: int
    start: int
    T: int
    token: int | None = None  # the token that was sampled
    # The attention of the last `rows` tokens is kept. `value_rows` and `stream_rows` are
    # the same limit for values and residual streams.
    rows: int = 0
    value_rows: int = 0
    value_layers: tuple[int, ...] = ()
    stream_rows: int = 0
    attention: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    sinks: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    # For each layer: the experts of each token, and their weights.
    experts: list[npt.NDArray[np.int32]] = field(default_factory=list)
    expert_weights: list[Floats] = field(default_factory=list)
    newest: Any = None  # the elements of the most recent result
    logits: Floats | None = None
    # (name, value, ids, new logits) for each sampling step that changes logits.
    changed: list[tuple[str, float | None, npt.NDArray[np.int32], Floats]] = field(
        default_factory=list
    )
    streams: list[Floats] = field(default_factory=list)
    added: list[Floats] = field(default_factory=list)
    heads: list[Floats] = field(default_factory=list)
    rms: list[Floats] = field(default_factory=list)
    norms: list[Floats] = field(default_factory=list)
    cosines: list[Floats] = field(default_factory=list)
    # The total duration of the ops in each stage.
    seconds: list[float] = field(default_factory=lambda: [0.0] * 22)
    record: dict[str, Any] = field(default_factory=dict)


class Collector:
    """Builds the document section for one run.

    Args:
        model: The model. To compute the logit lens, its network runs between the ops of
            the run.
        store: The store for the arrays.
        is_forced: Whether the answer's tokens are given instead of sampled.
        adapters: LoRA adapters of the run, with their factors.
        interventions: Changes of tensors in the run.
    """

    def __init__(
        self,
        model: Model,
        store: Store,
        is_forced: bool = False,
        adapters: ml.ScaledAdapters = (),
        interventions: Interventions = (),
    ) -> None:
        self._model = model
        self._store = store
        store.begin_run()
        # Measure before the trace starts, because it would record the measurements.
        self._facts = facts_of(model, adapters, interventions) | {"forced": is_forced}
        self._sizes = dict(model.args.sizes)
        self._has_sinks = [
            getattr(layer.attention, "sinks", None) is not None
            for layer in model.transformer.layers
        ]
        self._heads = HeadScores(model.args.n_layers, model.args.n_heads)
        self._capacities: dict[int, int] = {}  # the positions in the cache of each layer
        self._ids: list[int] = []  # the prompt's ids, followed by the answer's ids
        self._prompt: dict[str, Any] = {}
        self._passes: list[dict[str, Any]] = []
        self._pass: _Pass | None = None
        self._waiting: _Pass | None = None
        self._events: list[list[Any]] = []
        # (rank of the layer by priority, pass) -> values.
        self._values: dict[tuple[int, int], list[_Values]] = {}
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._shown_ids: set[int] = set()
        self._left_out: dict[str, list[str]] = {}

    def wants(self, *_where: int | None) -> bool:
        """Return True, because the collector needs all events."""
        return True

    def wants_values(self, stage: int, layer: int | None, _step: int | None) -> bool:
        """Return whether the elements of a stage's results are needed."""
        current = self._pass
        is_kept = current is not None and layer in current.value_layers
        return stage in (4, 13, 14, 15, 17, 18, 19) or (is_kept and stage > 5)

    def write(self, event: Event) -> None:
        """Process an event."""
        if event.op == "mark":
            self._mark(event)
        elif self._pass is not None and event.op != "layer":
            self._read_waiting()  # no op is observed at this point
            self._op(event, self._pass)

    def finish(self) -> dict[str, Any]:
        """Return the document section for the run."""
        self._end_pass()
        self._read_waiting()
        self._keep_values()
        args = self._model.args
        texts = {}
        for token in sorted({*self._ids, *self._shown_ids}):
            text, is_special = token_text(self._model.tokenizer, token)
            texts[str(token)] = [text, *[1] * is_special]
        frequencies = [
            pair_frequencies(args.rotary_dim, theta, scaling).numpy().tolist()
            for theta, scaling in args.rope_tables
        ]
        tables = args.rope_table_of_layer
        rotated = args.rotated_layers
        return {
            **self._facts,
            "sizes": self._sizes,
            "capacities": sorted(Counter(self._capacities.values()).items()),
            "dtype": args.dtype.name,
            "prompt": self._prompt,
            "tokens": self._ids,
            "texts": texts,
            "passes": self._passes,
            "tensors": [list(info) for info in self._tensors],
            "events": self._events,
            "heads": self._head_names(),
            "windows": list(args.windows),
            "hasSinks": self._has_sinks,
            "rope": frequencies,
            "ropeOf": [
                table if layer in rotated else None for layer, table in enumerate(tables)
            ],
            "leftOut": [
                f"{kind}: {'; '.join(parts)}" for kind, parts in self._left_out.items()
            ],
        }

    def _head_names(self) -> dict[str, Any]:
        """Return the scores of the heads, and the index of each head's name or -1."""
        scores = self._heads.means()
        return {
            "kinds": KINDS,
            "repeated": self._heads.repeated_rows,
            "scores": scores.round(4).tolist(),
            "names": name_heads(scores).tolist(),
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
            self._end_pass()  # the previous pass was an earlier part of a long prompt
            self._begin_pass(int(event.position or 0), int(details["T"]))
        elif event.stage == 20 and self._pass is not None:
            kept = ("token", "drawn", "random", "seed", "sampling", "choice")
            self._pass.record |= {name: details[name] for name in kept if name in details}
            candidates = details["choice"]["candidates"]
            self._shown_ids.update(entry["token_id"] for entry in candidates)
            self._shown_ids.add(details.get("drawn", details["token"]))
            self._change_logits(self._pass, details["sampling"])
        elif event.stage == 21 and self._pass is not None:
            self._pass.record |= {"text": details["text"], "stop": details["stop_reason"]}
            self._ids.append(details["token"])
            self._pass.token = details["token"]
            self._end_pass()

    def _change_logits(self, current: _Pass, sampling: Mapping[str, Any]) -> None:
        """Compute the logits after the bias and each penalty, before sampling."""
        if current.logits is None:
            return
        sampler = Sampler(SamplingArgs(**sampling))
        sampler.observe(self._ids[: self._prompt_length])
        sampler.observe(self._ids[self._prompt_length :], is_drawn=True)
        for name, value, logits in sampler.changed_logits(current.logits):
            ids = np.flatnonzero(logits != current.logits).astype(np.int32)
            current.changed.append((name, value, ids, logits[ids]))

    def _begin_pass(self, start: int, T: int) -> None:
        number = len(self._passes)
        sizes = self._sizes
        current = self._pass = _Pass(number, start, T)
        S = start + T
        L = sizes["L"]
        H = sizes["H"]
        share = _FIRST_SHARE if number == 0 and T > 1 else 1.0
        # Most attention weights are small, so they compress to less than half their size.
        room = self._store.room["attention"] * share * 2 / _BASE64 / (L * H)
        counts = range(1, T + 1)
        current.rows = bisect_right(counts, room, key=lambda n: n * S - n * (n - 1) // 2)
        room = self._store.room["lens"] * share / (_LENS_BYTES * (L + 1))
        limit = _STREAM_BYTES // (4 * sizes["D"] * (L + 1))
        current.stream_rows = min(T, int(room), max(limit, 1))
        if number < _PASSES_WITH_OPS:
            room = self._store.room["values"] * share
            current.value_rows = bisect_right(
                counts, room, key=lambda n: self._value_bytes(n, S)
            )
            if current.value_rows:
                order = dict.fromkeys((0, L - 1, *range(L)))
                fitting = int(
                    self._store.free // self._value_bytes(current.value_rows, S)
                )
                current.value_layers = tuple(order)[:fitting]

    def _value_bytes(self, rows: int, S: int) -> float:
        """Return the approximate size in the file of one layer's values, in bytes."""
        n = self._sizes
        each = self._model.args.dtype.itemsize
        heads = (n["H"] + 2 * n["K"]) * n["h"]
        row = each * (2 * n["D"] + 2 * heads + n["H"] * n["h"] + 3 * n["F"])
        row += 16 * n["D"] + n["H"] * S * (12 + each)
        return (rows * row + 2 * min(rows, S) * n["K"] * n["h"] * each) * _BASE64

    def _op(self, event: Event, current: _Pass) -> None:
        """Record an op and the values of its result."""
        current.seconds[event.stage] += event.seconds or 0.0
        result = event.outputs[0]
        if result.values is not None and result.values.ndim:
            self._process_values(event, result.letters, result.values, current)
        if event.op == "choose_experts" and result.values is not None:
            is_number = result.dtype == "int32"
            stacks = current.experts if is_number else current.expert_weights
            stacks.append(result.values.copy())
        if event.op == "write_cache":
            assert event.layer is not None, "each layer has a cache"
            self._capacities[event.layer] = result.shape[0]
            self._sizes["C"] = max(self._capacities.values())
        if current.number >= _PASSES_WITH_OPS:
            return
        self._events.append(
            [
                current.number,
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
        self._keep(event, result, current)

    def _tensor(self, x: TensorInfo) -> int:
        """Return the index of a tensor's description, adding it if it is new."""
        return self._tensors.setdefault(
            (x.name, x.shape, x.letters, x.dtype), len(self._tensors)
        )

    def _process_values(
        self, event: Event, letters: Letters, values: Any, current: _Pass
    ) -> None:
        """Process the values of the attention, the residual stream or the logits."""
        stage = event.stage
        # The last such result in stage 4 is the residual stream.
        if stage == 4 and letters == ("T", "D"):
            current.added = [values[-1].copy()]
            current.streams = []
            current.rms = []
            self._stream(values, current)
        elif stage == 13 and event.op == "softmax":
            # A layer with a window does not read the earliest positions.
            unread = current.start + current.T - values.shape[-1]
            values = np.pad(values, ((0, 0), (0, 0), (unread, 0)))
            if event.layer is not None:
                self._heads.add(event.layer, values, self._ids)
            if not current.rows:
                return
            first = current.T - current.rows
            if any(self._has_sinks):
                rest = (1.0 - values[:, first:].sum(-1)).clip(0.0, 1.0)  # [H, rows]
                current.sinks.append(np.rint(rest * 255.0).astype(np.uint8))
            steps = np.rint(values[:, first:] * 255.0).astype(np.uint8)  # [H, rows, S]
            # Keep only the positions that each row can see.
            rows = [
                steps[:, row, : current.start + first + row + 1]
                for row in range(current.rows)
            ]
            current.attention.append(np.concatenate(rows, axis=1))  # [H, entries]
        elif stage == 14 and event.op == "reshape":
            current.heads.append(values[-1].copy())
        elif stage in (15, 18) and event.op == "add":
            current.added.append(current.newest[-1].copy())
            added = current.newest.astype(np.float64)
            before = values.astype(np.float64) - added
            current.norms.append(np.sqrt(np.square(added).sum(-1)))
            lengths = current.norms[-1] * np.sqrt(np.square(before).sum(-1))
            products = (added * before).sum(-1)
            current.cosines.append(
                np.divide(
                    products, lengths, out=np.zeros_like(products), where=lengths > 0
                )
            )
            self._stream(values, current)
        elif stage == 19 and letters[-1:] == ("V",):  # later results replace earlier ones
            current.logits = values[-1]
        current.newest = values

    def _stream(self, x: Floats, current: _Pass) -> None:
        """Measure the residual stream, and keep it at the start and after each layer."""
        current.rms.append(np.sqrt(np.square(x.astype(np.float64)).mean(-1)))
        if len(current.rms) % 2 and current.stream_rows:
            current.streams.append(x[-current.stream_rows :].copy())

    def _keep(self, event: Event, result: TensorInfo, current: _Pass) -> None:
        """Store the elements of a result, or queue them if they belong to a layer."""
        is_layer = event.layer in current.value_layers and event.stage > 5
        is_outside = (
            event.layer is None and event.stage in (4, 19) and result.name != "logits"
        )
        # A view or a copy has no new values.
        is_new = event.bytes > 0 and event.op != "repeat_heads"
        values = result.values
        axis = None
        first = 0
        if values is None or not (
            is_new and (is_layer or is_outside) and current.value_rows
        ):
            return
        if rows := [x for x in ("T", "S") if x in result.letters]:
            axis = result.letters.index(rows[0])
            first = max(values.shape[axis] - current.value_rows, 0)
            values = np.take(values, range(first, values.shape[axis]), axis=axis)
        array = deflate_values(values, result.dtype)
        waiting = _Values(self._events[-1], array, axis, first)
        if event.layer is None:
            self._place(waiting)
        else:
            order = current.value_layers.index(event.layer)
            self._values.setdefault((order, current.number), []).append(waiting)

    def _place(self, waiting: _Values) -> None:
        """Store the elements of a tensor, and put the reference into its event."""
        reference = self._store.add_deflated(waiting.array, "values")
        if reference is not None:
            waiting.event[-1] = [reference, waiting.axis, waiting.first]

    def _keep_values(self) -> None:
        """Store values layer by layer, in the space that other arrays have not used."""
        self._store.lend("values")
        kept: dict[int, list[int]] = {}
        full: set[int] = set()  # passes for which no further layer fits
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
        """Record the current pass, if there is one.

        Its logit lens is computed when the first op of the next pass arrives.
        """
        current = self._pass
        self._pass = None
        if current is None:
            return
        self._passes.append(current.record)
        add = self._store.add
        current.record |= {
            "start": current.start,
            "T": current.T,
            "seconds": current.seconds,
            "logits": None,
            "changed": None,
            "attention": None,
            "sinks": None,
            "residual": None,
            "lens": None,
            "attribution": None,
            "values": [current.value_rows, list(current.value_layers)],
        }
        if current.logits is not None:
            current.record["logits"] = add(current.logits, "logits")
            current.record["changed"] = self._kept_changes(current)
            near = np.argpartition(
                -current.logits, min(_CHOSEN, current.logits.size) - 1
            )[:_CHOSEN]
            self._shown_ids.update(near.tolist())
        if current.record["logits"] is None:
            self._leave_out("all logits", f"pass {current.number}")
        elif current.record["changed"] is None:
            self._leave_out("logits after penalties", f"pass {current.number}")
        if len(current.attention) == self._sizes["L"]:
            current.record["attention"] = self._kept_attention(
                np.stack(current.attention), current
            )
            if current.sinks and current.record["attention"] is not None:
                rows = np.stack(current.sinks)[:, :, -current.rows :]  # [L, H, rows]
                current.record["sinks"] = self._store.add(rows, "attention")
        self._leave_out_first("attention", current, current.rows)
        if len(current.rms) == 2 * self._sizes["L"] + 1:
            measures = np.stack((*current.rms, *current.norms, *current.cosines)).astype(
                np.float32
            )
            current.record["residual"] = add(measures, "residual")  # [6 L + 1, T]
        if current.record["residual"] is None:
            self._leave_out("residual stream", f"pass {current.number}")
        if current.experts:
            current.record["experts"] = self._kept_experts(current)
            if current.record["experts"] is None:
                self._leave_out("experts", f"pass {current.number}")
        current.attention = []
        current.sinks = []
        current.experts = []
        current.expert_weights = []
        self._waiting = current

    def _read_waiting(self) -> None:
        """Compute the logit lens and the token attribution for the finished pass."""
        current = self._waiting
        self._waiting = None
        if current is None:
            return
        transformer = self._model.transformer
        if len(current.streams) == self._sizes["L"] + 1 and current.stream_rows:
            last = current.start + current.T
            after = range(last - current.stream_rows + 1, last + 1)
            next_ids = [self._ids[p] if p < len(self._ids) else None for p in after]
            lens = read_lens(transformer, np.stack(current.streams), next_ids)
            self._shown_ids.update(lens["ids"].tolist())
            kept: dict[str, Any] = {"rows": current.stream_rows}
            for name, array in lens.items():
                kept[name] = self._store.add(array, "lens")
                if kept[name] is None:
                    break
            else:
                current.record["lens"] = kept
        self._leave_out_first("lens", current, current.stream_rows)
        if current.token is not None and len(current.added) == 2 * self._sizes["L"] + 1:
            attribution = attribute(
                transformer, np.stack(current.added), current.heads, current.token
            )
            for name in ("parts", "heads"):
                attribution[name] = self._store.add(attribution[name], "residual")
            current.record["attribution"] = (
                None if attribution["parts"] is None else attribution
            )

    def _kept_changes(self, current: _Pass) -> list[dict[str, Any]] | None:
        """Store the changed logits, and return None if they do not fit."""
        changes = []
        for name, value, ids, logits in current.changed:
            places = self._store.add(ids, "logits")
            values = self._store.add(logits, "logits")
            if places is None or values is None:
                return None
            changes.append(
                {"name": name, "value": value, "ids": places, "logits": values}
            )
        return changes

    def _kept_attention(self, weights: npt.NDArray[np.uint8], current: _Pass) -> Any:
        """Store a pass's attention [L, H, entries], halving the rows until it fits."""
        data = self._store.add(weights, "attention")
        while data is None and current.rows > 1:
            first = current.start + current.T - current.rows
            dropped = current.rows // 2
            current.rows -= dropped
            weights = weights[..., sum(range(first + 1, first + dropped + 1)) :]
            data = self._store.add(weights, "attention")
        return None if data is None else {"rows": current.rows, "data": data}

    def _kept_experts(self, current: _Pass) -> dict[str, Any] | None:
        """Store the experts of a pass and their weights [L, T, A], if both fit."""
        kept = {
            "numbers": self._store.add(np.stack(current.experts), "residual"),
            "weights": self._store.add(np.stack(current.expert_weights), "residual"),
        }
        return None if None in kept.values() else kept

    def _leave_out(self, kind: str, omission: str) -> None:
        """Record an omission for the document."""
        self._left_out.setdefault(kind, []).append(omission)

    def _leave_out_first(self, kind: str, current: _Pass, rows: int) -> None:
        """Record that the positions before a pass's kept rows are omitted."""
        end = current.start + current.T - (0 if current.record[kind] is None else rows)
        if end > current.start:
            is_one = end - current.start == 1
            omission = (
                f"position {current.start}"
                if is_one
                else f"positions {current.start} to {end - 1}"
            )
            self._leave_out(kind, omission)


def _kept(layers: list[int], rows: int, T: int) -> str:
    """Describe the layers and tokens of a pass whose values are kept."""
    if not layers:
        return "none"
    names = ("layer " if len(layers) == 1 else "layers ") + ", ".join(map(str, layers))
    if rows == T:
        return f"the values of {names}"
    tokens = "token" if rows == 1 else f"{rows} tokens"
    return f"the values of {names} for the last {tokens} of {T}"
