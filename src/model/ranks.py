"""A model that several processes run together, the ranks of MPI: whole rows, whole heads.

Each rank owns rows of every matrix: queries, keys and values of whole heads, their cache,
and its share of all other rows. After a product, an all-gather joins what the ranks
computed. So each element is summed on one rank, in the order of one process: the bits are
the same for any number of ranks. Norms and the residual stream, which are small, are
computed by each.

Rank 0 runs the engine, and tells the others before each pass what they are to run with
it.
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
from ..checkpoint.names import is_harmless
from ..checkpoint.shards import MergedShards
from ..ml.quantized import NESTED_BLOCK
from ..trace import is_on
from .args import EMBEDDINGS, OUTPUT, ModelArgs
from .context import BatchContext, CacheMemory, InferenceContext, Tokens, token_tensor
from .errors import ModelError
from .forecast import MemoryForecast
from .llama import (
    LlamaAttention,
    LlamaFeedForward,
    LlamaTransformer,
    RMSNorm,
    Weights,
)

if TYPE_CHECKING:
    from mpi4py import MPI

# By the letter of rows, as in `checkpoint/names.py`: rank r owns rows bounds[r] to
# bounds[r + 1].
Bounds = Mapping[str, Sequence[int]]

# of waiting for the next pass, at full speed at first
_SPIN_SECONDS = 0.05
_PAUSE_SECONDS = 0.001


class Ranks:
    """The processes of a run; `fail` ends all because of an error in the middle of a
    pass.
    """

    def __init__(
        self, comm: "MPI.Intracomm", fail: Callable[[BaseException], NoReturn]
    ) -> None:
        self.comm = comm
        self.fail = fail
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def command(self, *words: Any) -> None:
        """Tell all other ranks what comes next; rank 0 alone calls this."""
        self.comm.Ibcast(np.zeros(1, np.int8), root=0).Wait()
        self.comm.bcast(words, root=0)

    def next_command(self) -> tuple[Any, ...]:
        """Wait until rank 0 says what comes next: at first without a pause, then with
        little.
        """
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
        mine = x.contiguous().numpy().reshape(-1)
        found = np.empty(sum(counts), np.uint8)
        self.comm.Allgatherv([mine.view(np.uint8), "B"], [found, counts, "B"])
        if T > 1:  # the rows of a rank follow each other; then the ranks of a row do
            each = np.split(found, np.cumsum(counts[:-1]))
            rows = [part.reshape(T, part.size // T) for part in each]
            found = np.concatenate(rows, axis=1).reshape(-1)
        return ml.Tensor.from_numpy(
            found.view(x.dtype.numpy_dtype).reshape(T, bounds[-1])
        )


def bounds_of(
    args: ModelArgs, size: int, units: Mapping[str, int] | None = None
) -> Bounds:
    """Divide the rows of a whole model among ranks, as evenly as their units allow.

    `units` says by the letter of rows how many cannot be divided: 1 where it says
    nothing.
    """
    units = units or {}
    head = {"Hh": args.group_size * args.head_dim, "Kh": args.head_dim}
    heads = math.lcm(*(math.lcm(n, units.get(key, 1)) // n for key, n in head.items()))

    def divided(count: int, unit: int) -> list[int]:
        blocks = -(-count // unit)
        return [min(-(-rank * blocks // size) * unit, count) for rank in range(size + 1)]

    rows = {"D": args.dim, "F": args.ffn_dim, "V": args.vocab_size}
    bounds = {
        letter: divided(count, units.get(letter, 1)) for letter, count in rows.items()
    }
    return bounds | {
        k: [n * at for at in divided(args.n_kv_heads, heads)] for k, n in head.items()
    }


def own_args(args: ModelArgs, bounds: Bounds, rank: int) -> ModelArgs:
    """Return the sizes with the heads of one rank alone."""
    heads = (bounds["Kh"][rank + 1] - bounds["Kh"][rank]) // args.head_dim
    return replace(args, n_heads=heads * args.group_size, n_kv_heads=heads)


def own_forecast(
    forecast: MemoryForecast, shards: int, size: int, beside: int
) -> MemoryForecast:
    """Return what the first rank needs of a forecast for the whole model.

    `shards` are the files that are merged, or 1; `beside` the ranks on this machine.
    """
    args = forecast.args
    mapped = forecast.mapped // size
    copied = forecast.copied // size
    if (
        shards > 1 and size % shards == 0
    ):  # the rows of a rank lie in one file, and are used there
        in_rows = 2 * (args.n_heads + args.n_kv_heads) * args.head_dim + 3 * args.ffn_dim
        cut_by_columns = args.n_heads * args.head_dim + args.ffn_dim
        copied = copied * cut_by_columns // in_rows
        mapped = forecast.copied // size - copied
    free = None if forecast.free is None else forecast.free // beside
    own_sizes = own_args(args, bounds_of(args, size), 0)
    return replace(forecast, args=own_sizes, mapped=mapped, copied=copied, free=free)


class OwnWeights(Mapping[str, ml.Weight]):
    """The rows of a whole model's weights that one rank owns; each is cut when it is
    looked up.

    The embedding table stays whole, because a token reads one row of it. That of several
    shards, which nothing maps whole, is split by columns. `into` is what matrices are
    quantized into after.
    """

    def __init__(
        self, args: ModelArgs, weights: Weights, into: ml.BlockDType | None, ranks: Ranks
    ) -> None:
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
                # Blocks reach over the ends of rows; no rank owns a part of one.
                weight = None if self.table_is_split else weights[source]
                block = 1
                if isinstance(weight, ml.QuantizedTensor):
                    block = weight.dtype.block_size * (
                        NESTED_BLOCK if weight.nested else 1
                    )
                if into:  # perhaps after they are dequantized
                    block = math.lcm(block, into.block_size)
                unit = block // math.gcd(block, args.tensor_shapes[name][1])
                units[letter] = math.lcm(units.get(letter, 1), unit)
        self.bounds = bounds_of(args, ranks.size, units)

    def gather(self, x: ml.Tensor, letters: str) -> ml.Tensor:
        """Join the columns of all ranks; `letters` are those of the rows that made
        them.
        """
        return self.ranks.all_gather(x, self.bounds[letters])

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
    """A norm over the queries or keys of all heads, of which a rank needs its own."""

    def __init__(self, norm: RMSNorm, own: OwnWeights, letters: str) -> None:
        self._norm = norm
        self._ranks = own.ranks
        self._bounds = own.bounds[letters]

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        first, last = self._bounds[self._ranks.rank :][:2]
        whole = self._norm.forward(self._ranks.all_gather(x, self._bounds))
        return whole[:, first:last].contiguous()


class RankedMemory(NamedTuple):
    """A cache memory that each rank has for its own heads."""

    number: int
    sequence_length: int
    blocks: int | None  # of a pool; None for one sequence


@dataclass(frozen=True)
class RankedPass:
    """One pass over tokens, as rank 0 sends it to the other ranks.

    Attributes:
        memory: Holds the keys and values.
        copies: The blocks of it that are copied before the pass.
        ids: The tokens.
        start_pos, all_positions: As in `LlamaTransformer.forward`.
        spans, wanted: As in `BatchContext`; None for one sequence.
        attention: As in `InferenceContext`.
    """

    memory: RankedMemory
    copies: Sequence[tuple[int, int]]
    ids: Tokens
    start_pos: int
    spans: Sequence[tuple[int, int, Sequence[int]]] | None
    wanted: Sequence[int] | None
    all_positions: bool
    attention: str

    def context(self, memory: CacheMemory) -> InferenceContext:
        """Return the context of the pass in the memory of another rank."""
        if self.spans is not None and self.wanted is not None:
            return BatchContext(memory, ml.Spans(self.spans), self.wanted)
        args = memory.args
        length = memory.sequence_length
        context = InferenceContext(args, length, self.attention, memory)
        context.length = self.start_pos
        return context


class RankedNetwork(LlamaTransformer):
    """The network of one rank, with its sizes and tensors, which joins its results with
    others.

    It comes before the network of a family in the order of base classes.
    """

    def __init__(self, args: ModelArgs, own: OwnWeights, tensors: Weights) -> None:
        super().__init__(args, tensors)
        self.own = own
        self.ranks = own.ranks
        self._dropped = list[int]()
        self._made = 0
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
        """Return all columns of the rows of token ids [T]."""
        x = super().embed(ids)
        # The rows of a whole embedding table are there already.
        return self.own.gather(x, "D") if self.own.table_is_split else x

    def logits(self, x: ml.Tensor) -> ml.Tensor:
        """Return the logits of the rows of all ranks."""
        return self.own.gather(super().logits(x), "V")

    def forward(
        self,
        context: InferenceContext,
        tokens: Tokens,
        start_pos: int = 0,
        all_positions: bool = False,
    ) -> ml.Tensor:
        """Run a pass on all ranks, without a trace."""
        if is_on():
            raise ModelError("[forward] a trace needs one process: several run the model")
        ids = token_tensor(tokens, self.args.vocab_size)
        # An error comes before the other ranks run.
        context.begin(start_pos, ids.shape[0])
        batch = context if isinstance(context, BatchContext) else None
        ranked_pass = RankedPass(
            memory=self._numbered(context.memory),
            copies=context.memory.copies,
            ids=ids.numpy(),
            start_pos=start_pos,
            spans=None if batch is None else batch.spans.spans,
            wanted=None if batch is None else batch.wanted,
            all_positions=all_positions,
            attention=context.attention,
        )
        dropped = [self._dropped.pop() for _ in self._dropped[:]]
        try:
            self.ranks.command("forward", dropped, ranked_pass)
            return super().forward(context, ids, start_pos, all_positions)
        # The other ranks wait in the middle of the call, whatever ended it here.
        except BaseException as error:  # noqa: BLE001
            self.ranks.fail(error)

    def _numbered(self, memory: CacheMemory) -> RankedMemory:
        """Return the number of the cache memory of this rank, and how to make another
        one.
        """
        if memory not in self._numbers:
            self._made += 1
            self._numbers[memory] = self._made
            weakref.finalize(memory, self._dropped.append, self._made)
        blocks = memory.blocks if memory.is_pool else None
        return RankedMemory(self._numbers[memory], memory.sequence_length, blocks)

    def follow(
        self,
        memories: dict[int, CacheMemory],
        dropped: list[int],
        ranked_pass: RankedPass,
    ) -> None:
        """Run the part of this rank in a pass of rank 0.

        Args:
            memories: The cache memories of this rank by their numbers.
            dropped: The numbers of memories that rank 0 no longer has.
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
        super().forward(
            ranked_pass.context(memory),
            ranked_pass.ids,
            ranked_pass.start_pos,
            ranked_pass.all_positions,
        )


def _join(own: OwnWeights, part: LlamaAttention | LlamaFeedForward, letters: str) -> None:
    """Join columns of the ranks before and after the last product of a part."""
    project = part.project

    def joined(columns: ml.Tensor) -> ml.Tensor:
        return own.gather(project(own.gather(columns, letters)), "D")

    part.project = joined  # type: ignore[assignment, method-assign]


def ranked_transformer(
    network: type[LlamaTransformer], args: ModelArgs, own: OwnWeights, tensors: Weights
) -> LlamaTransformer:
    """Return the network of a family for one rank, with its sizes and tensors."""
    ranked: type[RankedNetwork] = type("RankedTransformer", (RankedNetwork, network), {})
    return ranked(args, own, tensors)
