"""Run one model in several MPI processes (ranks), divided by rows and heads.

Each rank owns some rows of every matrix. In attention, it owns the queries, keys and
values of whole heads and their part of the KV cache. After a matrix product, an
all-gather joins the results of all ranks. Each element is thus summed on one rank, in the
same order as in a single process, so the result is bit-identical for any number of ranks.
The norms and the residual stream are small, so every rank computes them in full.

Rank 0 runs the engine. Before each pass, it sends the input to the other ranks.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from .. import ml
from ..checkpoint.names import EMBEDDINGS, OUTPUT, is_harmless
from ..checkpoint.shards import MergedShards
from ..ml.adapted import active_parts
from ..ml.quantized import NESTED_BLOCK
from ..trace import is_on
from .args import ModelArgs
from .context import BatchContext, CacheMemory, InferenceContext, Tokens, token_tensor
from .errors import ModelError
from .forecast import MemoryForecast
from .intervened import PassPart, active_interventions, intervened, own_bounds
from .interventions import Interventions
from .llama import (
    LlamaAttention,
    LlamaFeedForward,
    LlamaTransformer,
    RMSNorm,
    Weights,
)

if TYPE_CHECKING:
    from mpi4py import MPI

# For each row letter in `checkpoint/names.py`, the first row of each rank, followed by
# the number of rows: rank r owns rows bounds[r] to bounds[r + 1].
Bounds = Mapping[str, Sequence[int]]

# Waiting for the next pass: seconds of busy waiting, then seconds between polls.
_SPIN_SECONDS = 0.05
_PAUSE_SECONDS = 0.001


class Ranks:
    """The MPI processes of a run; `fail` ends all of them after an error in a pass."""

    def __init__(
        self, comm: "MPI.Intracomm", fail: Callable[[BaseException], NoReturn]
    ) -> None:
        self.comm = comm
        self.fail = fail
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def command(self, *words: Any) -> None:
        """Send a command to all other ranks. Only rank 0 calls this."""
        self.comm.Ibcast(np.zeros(1, np.int8), root=0).Wait()
        self.comm.bcast(words, root=0)

    def next_command(self) -> tuple[Any, ...]:
        """Wait for the next command from rank 0: spin first, then poll."""
        request = self.comm.Ibcast(np.zeros(1, np.int8), root=0)
        began = time.monotonic()
        while not request.Test():
            if time.monotonic() - began > _SPIN_SECONDS:
                time.sleep(_PAUSE_SECONDS)
        return tuple(self.comm.bcast(None, root=0))

    def all_gather(self, x: ml.Tensor, bounds: Sequence[int]) -> ml.Tensor:
        """Join the columns of all ranks: [T, own columns] -> [T, all columns]."""
        T = x.shape[0]
        itemsize = x.dtype.itemsize
        counts = [T * (after - before) * itemsize for before, after in pairwise(bounds)]
        own = x.contiguous().numpy().reshape(-1)
        joined = np.empty(sum(counts), np.uint8)
        self.comm.Allgatherv([own.view(np.uint8), "B"], [joined, counts, "B"])
        if T > 1:  # the data is grouped by rank; group it by token instead
            parts = np.split(joined, np.cumsum(counts[:-1]))
            rows = [part.reshape(T, part.size // T) for part in parts]
            joined = np.concatenate(rows, axis=1).reshape(-1)
        return ml.Tensor.from_numpy(
            joined.view(x.dtype.numpy_dtype).reshape(T, bounds[-1])
        )


def bounds_of(
    args: ModelArgs, size: int, units: Mapping[str, int] | None = None
) -> Bounds:
    """Divide the rows of the whole model among ranks, as evenly as the units allow.

    Args:
        args: The sizes of the whole model.
        size: The number of ranks.
        units: For each row letter, the number of rows that must stay together; 1 by
            default.
    """
    units = units or {}
    head = {
        "H": args.group_size,
        "Hh": args.group_size * args.head_dim,
        "Kh": args.head_dim,
    }
    heads = math.lcm(*(math.lcm(n, units.get(key, 1)) // n for key, n in head.items()))

    def divide(count: int, unit: int) -> list[int]:
        blocks = -(-count // unit)
        return [min(-(-rank * blocks // size) * unit, count) for rank in range(size + 1)]

    rows = {"D": args.dim, "F": args.ffn_dim, "V": args.vocab_size}
    bounds = {
        letter: divide(count, units.get(letter, 1)) for letter, count in rows.items()
    }
    return bounds | {
        k: [n * at for at in divide(args.n_kv_heads, heads)] for k, n in head.items()
    }


def own_args(args: ModelArgs, bounds: Bounds, rank: int) -> ModelArgs:
    """Return args that contain only the heads of one rank."""
    heads = (bounds["Kh"][rank + 1] - bounds["Kh"][rank]) // args.head_dim
    return replace(args, n_heads=heads * args.group_size, n_kv_heads=heads)


def own_forecast(
    forecast: MemoryForecast, shards: int, size: int, beside: int
) -> MemoryForecast:
    """Return the memory forecast for rank 0, from the forecast for the whole model.

    Args:
        forecast: The forecast for the whole model.
        shards: The number of files that are merged, or 1.
        size: The number of ranks.
        beside: The number of ranks on this machine.
    """
    args = forecast.args
    mapped = forecast.mapped // size
    copied = forecast.copied // size
    # The rows of a rank are all in one file, so row-divided matrices are used in place.
    if shards > 1 and size % shards == 0:
        in_rows = 2 * (args.n_heads + args.n_kv_heads) * args.head_dim + 3 * args.ffn_dim
        cut_by_columns = args.n_heads * args.head_dim + args.ffn_dim
        copied = copied * cut_by_columns // in_rows
        mapped = forecast.copied // size - copied
    free = None if forecast.free is None else forecast.free // beside
    own_sizes = own_args(args, bounds_of(args, size), 0)
    return replace(forecast, args=own_sizes, mapped=mapped, copied=copied, free=free)


class OwnWeights(Mapping[str, ml.Weight]):
    """The rows of the model's weights that one rank owns, sliced on each look-up.

    The embedding table is not divided, because a token reads only one row of it. If the
    table is distributed over several shards, it is divided by columns instead, because it
    is not mapped as a whole anywhere.

    Args:
        args: The sizes of the whole model.
        weights: The weights of the whole model.
        into: The dtype to which matrices are quantized later, or None.
        ranks: The MPI processes.
    """

    def __init__(
        self, args: ModelArgs, weights: Weights, into: ml.BlockDType | None, ranks: Ranks
    ) -> None:
        self.args = args
        self._weights = weights
        self.ranks = ranks
        self._rows = {row.name: row for row in args.tensor_rows}
        self.table_is_split = isinstance(weights, MergedShards)
        self._sources = {name: name for name in weights if not is_harmless(name)}
        self._sources.setdefault(OUTPUT, EMBEDDINGS)
        units: dict[str, int] = {}
        for name, source in self._sources.items():
            letter, *columns = self._rows[name].sizes
            if columns and name != EMBEDDINGS:
                # Blocks can cross row boundaries, but a rank must own whole blocks.
                weight = None if self.table_is_split else weights[source]
                block = 1
                if isinstance(weight, ml.QuantizedTensor):
                    block = weight.dtype.block_size * (
                        NESTED_BLOCK if weight.nested else 1
                    )
                if into:  # the weights may be dequantized first
                    block = math.lcm(block, into.block_size)
                unit = block // math.gcd(block, args.tensor_shapes[name][1])
                units[letter] = math.lcm(units.get(letter, 1), unit)
        self.bounds = bounds_of(args, ranks.size, units)

    def gather(self, x: ml.Tensor, letters: str) -> ml.Tensor:
        """Join the columns of all ranks; `letters` identify the rows of their matrix."""
        return self.ranks.all_gather(x, self.bounds[letters])

    def changes(
        self,
        products: Mapping[str, ml.LowRankPair],
        lookups: Mapping[str, ml.LowRankPair],
    ) -> tuple[dict[str, ml.LowRankPair], dict[str, ml.LowRankPair]]:
        """Return an adapter's changes of the rows that this rank owns.

        Each rank computes A x in full. The rows of B belong to the rows of the weight.
        """
        own = {
            name: self._cut(pair, self._rows[name].sizes[0])
            for name, pair in products.items()
        }
        if not self.table_is_split:
            return own, dict(lookups)
        return own, {name: self._cut(pair, "D") for name, pair in lookups.items()}

    def _cut(self, pair: ml.LowRankPair, letters: str) -> ml.LowRankPair:
        start, stop = self.bounds[letters][self.ranks.rank :][:2]
        return ml.LowRankPair(pair.a, pair.b.slice(start, stop), pair.scale)

    def __getitem__(self, name: str) -> ml.Weight:
        row = self._rows[name]
        source = self._sources[name]
        axis = 1 if name == EMBEDDINGS else 0
        if row.split == "none" or (axis == 1 and not self.table_is_split):
            whole: ml.Weight = self._weights[source]
            return whole
        start, stop = self.bounds[row.sizes[axis]][self.ranks.rank :][:2]
        if isinstance(self._weights, MergedShards):
            return self._weights.part(source, axis, (start, stop)).with_name(name)
        weight = self._weights[source]
        cut = weight.rows if isinstance(weight, ml.QuantizedTensor) else weight.slice
        return cut(start, stop).with_name(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class _NormOfAllHeads(RMSNorm):
    """A norm over the queries or keys of all heads that keeps only this rank's part."""

    def __init__(self, norm: RMSNorm, own: OwnWeights, letters: str) -> None:
        self._norm = norm
        self._ranks = own.ranks
        self._bounds = own.bounds[letters]

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        first, last = self._bounds[self._ranks.rank :][:2]
        whole = self._norm.forward(self._ranks.all_gather(x, self._bounds))
        return whole[:, first:last].contiguous()


class RankedMemory(NamedTuple):
    """A cache memory that each rank allocates for its own heads."""

    number: int
    sequence_length: int
    blocks: int | None  # number of blocks in a pool; None for a single sequence


@dataclass(frozen=True)
class RankedPass:
    """One pass over tokens, as rank 0 sends it to the other ranks.

    Attributes:
        memory: The cache memory that contains the keys and values.
        copies: The (source, target) blocks to copy in that memory before the pass.
        ids: The token ids.
        start_pos, all_positions: As in `LlamaTransformer.forward`.
        spans, wanted: As in `BatchContext`; None for a single sequence.
        attention: As in `InferenceContext`.
        adapted: As in `ml.adapted_rows`, with the numbers of adapters instead of the
            adapters.
        parts, interventions: As in `intervened`.
    """

    memory: RankedMemory
    copies: Sequence[tuple[int, int]]
    ids: Tokens
    start_pos: int
    spans: Sequence[tuple[int, int, Sequence[int]]] | None
    wanted: Sequence[int] | None
    all_positions: bool
    attention: str
    adapted: Sequence[tuple[int, int, Sequence[tuple[int, float]]]]
    parts: Sequence[PassPart] | None
    interventions: Interventions

    def context(self, memory: CacheMemory) -> InferenceContext:
        """Return the context for this pass in the cache memory of another rank."""
        if self.spans is not None and self.wanted is not None:
            return BatchContext(memory, ml.Spans(self.spans), self.wanted)
        args = memory.args
        length = memory.sequence_length
        context = InferenceContext(args, length, self.attention, memory)
        context.length = self.start_pos
        return context


class RankedNetwork(LlamaTransformer):
    """The network of one rank, which joins its results with those of the other ranks.

    Subclasses list it as a base class before the model family's network class.
    """

    def __init__(self, args: ModelArgs, own: OwnWeights, tensors: Weights) -> None:
        super().__init__(args, tensors)
        self.own = own
        self.ranks = own.ranks
        # The adapters that all ranks have loaded, in the same order.
        self.adapters: list[ml.Adapter] = []
        self._dropped = list[int]()
        self._memory_count = 0
        self._numbers = weakref.WeakKeyDictionary[CacheMemory, int]()
        letters = {row.name: row.sizes[0] for row in args.layer_rows}
        for layer in self.layers:
            attention = layer.attention
            feed_forward = layer.feed_forward
            _join(own, attention, "Hh")
            _join(own, feed_forward, "F")
            for name in ("q_norm", "k_norm"):
                rows = letters.get(f"attention.{name}.weight", "h")
                if rows != "h":
                    norm = _NormOfAllHeads(getattr(attention, name), own, rows)
                    setattr(attention, name, norm)

    def embed(self, ids: ml.Tensor) -> ml.Tensor:
        """Return the embeddings of token ids [T], with the columns of all ranks."""
        x = super().embed(ids)
        # A table that is not divided has all columns already.
        return self.own.gather(x, "D") if self.own.table_is_split else x

    def logits(self, x: ml.Tensor) -> ml.Tensor:
        """Return the logits [T, V], joined from the rows of all ranks."""
        return self.own.gather(super().logits(x), "V")

    def forward(
        self,
        context: InferenceContext,
        tokens: Tokens,
        start_pos: int = 0,
        all_positions: bool = False,
    ) -> ml.Tensor:
        """Run a pass on all ranks, which is not possible with a trace."""
        if is_on():
            raise ModelError("[forward] a trace needs one process: several run the model")
        ids = token_tensor(tokens, self.args.vocab_size)
        # Errors in the arguments are raised here, before the other ranks start the pass.
        context.check_pass(start_pos, ids.shape[0])
        batch = context if isinstance(context, BatchContext) else None
        parts, interventions = active_interventions()
        ranked_pass = RankedPass(
            memory=self._describe_memory(context.memory),
            copies=context.memory.copies,
            ids=ids.numpy(),
            start_pos=start_pos,
            spans=None if batch is None else batch.spans.spans,
            wanted=None if batch is None else batch.wanted,
            all_positions=all_positions,
            attention=context.attention,
            adapted=self._numbered(active_parts()),
            parts=parts,
            interventions=interventions,
        )
        dropped = [self._dropped.pop() for _ in self._dropped[:]]
        try:
            self.ranks.command("forward", dropped, ranked_pass)
            return super().forward(context, ids, start_pos, all_positions)
        # After any error, the other ranks wait within the pass and must be ended.
        except BaseException as error:  # noqa: BLE001
            self.ranks.fail(error)

    def _numbered(
        self, parts: Sequence[tuple[int, int, ml.ScaledAdapters]]
    ) -> Sequence[tuple[int, int, Sequence[tuple[int, float]]]]:
        """Return the parts of a pass with the numbers of adapters, for other ranks."""
        number_of = {id(adapter): at for at, adapter in enumerate(self.adapters)}
        return [
            (count, wanted, [(number_of[id(adapter)], x) for adapter, x in adapters])
            for count, wanted, adapters in parts
        ]

    def _describe_memory(self, memory: CacheMemory) -> RankedMemory:
        """Return a description of a cache memory of this rank for the other ranks."""
        if memory not in self._numbers:
            self._memory_count += 1
            self._numbers[memory] = self._memory_count
            weakref.finalize(memory, self._dropped.append, self._memory_count)
        blocks = memory.blocks if memory.is_pool else None
        return RankedMemory(self._numbers[memory], memory.sequence_length, blocks)

    def follow(
        self,
        memories: dict[int, CacheMemory],
        dropped: list[int],
        ranked_pass: RankedPass,
    ) -> None:
        """Run this rank's part of a pass that rank 0 started.

        Args:
            memories: The cache memories of this rank by number.
            dropped: The numbers of the memories that rank 0 has released.
            ranked_pass: The pass.
        """
        for old in dropped:
            memories.pop(old, None)
        number, sequence_length, blocks = ranked_pass.memory
        if number not in memories:
            memories[number] = CacheMemory(self.args, sequence_length, blocks)
        memory = memories[number]
        for source, target in ranked_pass.copies:
            memory.copy_block(source, target)
        parts = [
            (count, wanted, tuple((self.adapters[number], x) for number, x in adapters))
            for count, wanted, adapters in ranked_pass.adapted
        ]
        changes = intervened(
            self.own.args,
            ranked_pass.parts,
            ranked_pass.interventions,
            own_bounds(self.own),
        )
        with ml.adapted_rows(parts), changes:
            super().forward(
                ranked_pass.context(memory),
                ranked_pass.ids,
                ranked_pass.start_pos,
                ranked_pass.all_positions,
            )


def _join(own: OwnWeights, part: LlamaAttention | LlamaFeedForward, letters: str) -> None:
    """Make a part join the columns of all ranks before and after its last product."""
    project = part.project

    def project_joined(columns: ml.Tensor, *choice: ml.Tensor) -> ml.Tensor:
        """Project the columns; `choice` is that of a feed-forward with experts."""
        return own.gather(project(own.gather(columns, letters), *choice), "D")

    part.project = project_joined  # type: ignore[assignment, method-assign]


def ranked_transformer(
    network: type[LlamaTransformer], args: ModelArgs, own: OwnWeights, tensors: Weights
) -> LlamaTransformer:
    """Return one rank's network for a model family."""
    ranked: type[RankedNetwork] = type("RankedTransformer", (RankedNetwork, network), {})
    return ranked(args, own, tensors)
