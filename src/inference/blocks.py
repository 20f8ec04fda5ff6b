"""An engine's KV cache, in blocks that are shared by sequences with a common prefix.

A block contains the keys and values of 256 positions. The blocks of all sequences,
including those that have ended, form a tree. A block's parent is the preceding block of
its sequence, and its tokens identify its contents. A new sequence follows the tree from
the root, for as long as it finds blocks with its tokens, and reuses these blocks without
copying them. If the last block matches only in part, that part is copied. Full blocks
never change. If no block is free, the least recently used block without children is
evicted. Each sequence belongs to a group and reuses only blocks of the same group, so
token counts and timings do not reveal anything about other clients' prompts.

A `LonePool` contains the only sequence of a chat, whose blocks are in order.
"""

import weakref
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import ml
from ..model import BatchContext, CacheMemory, InferenceContext, Model
from ..trace import mark
from .sampling import Logits

if TYPE_CHECKING:
    from ..model import Interventions

SIZE = ml.BLOCK_POSITIONS


@dataclass(eq=False, slots=True)
class Block:
    """A block of the cache."""

    place: int
    parent: "Block | None"  # the preceding block
    group: Hashable  # the group whose sequences may reuse the block
    ids: list[int] = field(default_factory=list)  # the cached tokens, at most 256
    references: int = 0  # the number of unfinished sequences that use the block
    has_windows: bool = True  # whether layers with a window contain the block


class PooledSequence(InferenceContext):
    """A sequence whose blocks belong to a pool.

    Attributes:
        pool: The pool. The reference is weak, because the pool refers to the sequence. So
            there is no reference cycle, and an engine's memory is freed immediately.
        group: The group whose sequences may reuse the blocks.
        adapters: The adapters that change the passes of the sequence, and thus its keys
            and values.
        interventions: The interventions in the passes of the sequence, which also change
            its keys and values.
        most: The maximum number of blocks that the sequence may use.
        blocks: The blocks, in order of their positions in the sequence.
        ids: The cached tokens. A token is added only after its keys and values have been
            written, so the list is correct even after an interrupt.
        is_in_order: Whether every block b is at place b, so that passes do not need a
            block table.
    """

    def __init__(
        self,
        pool: "BlockPool",
        blocks: list[Block],
        ids: Sequence[int],
        group: Hashable,
        most: int,
        adapters: ml.ScaledAdapters = (),
    ) -> None:
        memory = pool.memory
        super().__init__(memory.args, memory.sequence_length, pool.attention, memory)
        self.pool: BlockPool = weakref.proxy(pool)
        self.group = group
        self.adapters = adapters
        self.interventions: Interventions = ()
        self.most = most
        self.blocks = blocks
        self.ids = list(ids)
        self.length = len(self.ids)
        self.is_in_order = all(block.place == at for at, block in enumerate(blocks))

    def reserve(self, count: int) -> None:
        """Allocate the blocks for `count` new tokens."""
        while len(self.blocks) * SIZE < len(self.ids) + count:
            block = self.pool._grow(self)
            self.is_in_order = self.is_in_order and block.place == len(self.blocks) - 1

    def begin(self, start_pos: int, count: int) -> tuple[ml.Positions, ml.Tensor]:
        """Begin a pass, and remove the ids at the positions that it overwrites."""
        begun = super().begin(start_pos, count)
        del self.ids[start_pos:]
        return begun

    def confirm(self, *ids: int) -> None:
        """Record that the next tokens are cached, such as drafted tokens that were drawn.

        Their keys and values must already have been written.
        """
        length = len(self.ids)
        for token in ids:
            self.blocks[length // SIZE].ids.append(token)
            self.ids.append(token)
            length += 1
        self.length = length

    def clear(self) -> None:
        """Clear the blocks that only this sequence uses, and remove all unused blocks."""
        self.pool.forget()
        for block in self.blocks:
            if block.references == 1:
                block.ids = []
        self.ids = []
        self.length = 0


class Part(NamedTuple):
    """The part of a pass that runs tokens of one sequence.

    Attributes:
        sequence: The sequence.
        ids: The new tokens.
        certain: The number of leading tokens that are recorded as cached. The others are
            drafted tokens.
        wanted: The number of trailing tokens whose logits are returned.
    """

    sequence: PooledSequence
    ids: Sequence[int]
    certain: int
    wanted: int


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    most = min(len(a), len(b))
    return next((at for at in range(most) if a[at] != b[at]), most)


class BlockPool:
    """An engine's KV cache, which manages its blocks and runs forward passes.

    Args:
        model: The model that runs the tokens.
        sequence_length: The maximum length of a sequence.
        blocks: The number of blocks, or None for as many as one sequence needs. See
            `CacheMemory`.

    Raises:
        ModelError, NotEnoughMemoryError: See `CacheMemory`.
    """

    attention = "fused"

    def __init__(self, model: Model, sequence_length: int, blocks: int | None) -> None:
        self.model = model
        self.memory = CacheMemory(model.args, sequence_length, blocks)
        self.blocks = self.memory.blocks
        self.held = dict[Block, None]()  # the tree, with parents before their children
        self.sequences: list[PooledSequence] = []  # sequences that have not ended
        self._free = list(range(self.blocks))[::-1]
        # Blocks that no sequence uses, the least recently used first. Using a block also
        # uses its ancestors, so the first block in this dict has no children.
        self.unused = dict[Block, None]()

    def admit(
        self,
        ids: Sequence[int],
        positions: int,
        share: bool = True,
        group: Hashable = None,
        adapters: ml.ScaledAdapters = (),
        interventions: "Interventions" = (),
    ) -> PooledSequence | None:
        """Start a sequence, reusing the cached blocks of its prefix if `share` is true.

        Sequences with adapters or interventions reuse only blocks of sequences with the
        same ones. The last token is never reused, because its logits are needed. Blocks
        for all `positions` are reserved. Return None if too few blocks are available.
        """
        if adapters or interventions:
            group = (group, adapters, interventions)
        shared, source, common = self._match(ids[:-1], group) if share else ([], None, 0)
        cached = ids[: SIZE * len(shared)]
        most = -(-positions // SIZE)
        sequence = PooledSequence(self, shared, cached, group, most, adapters)
        sequence.interventions = interventions
        promised = sum(
            each.most - len(each.blocks) for each in [*self.sequences, sequence]
        )
        revived = sum(not block.references for block in shared)
        if promised + revived > len(self._free) + len(self.unused):
            return None
        self.sequences.append(sequence)
        for block in shared:
            block.references += 1
            self.unused.pop(block, None)
        if common and source:
            if source in self.unused:  # it is now the most recently used block
                self.unused[source] = self.unused.pop(source)
            sequence.reserve(1)
            target = sequence.blocks[-1]
            if target.place != source.place:
                self.memory.copy_block(source.place, target.place)
            sequence.confirm(*source.ids[:common])
        return sequence

    def _match(
        self, ids: Sequence[int], group: Hashable
    ) -> tuple[list[Block], Block | None, int]:
        """Find the cached prefix of a sequence.

        Return the full blocks that match, the block that matches the following tokens in
        part or None, and the number of matching tokens in that block. Nothing matches if
        the window of the following token reaches a block that is not in all layers.
        """
        below = defaultdict[Block | None, list[Block]](list)
        for block in self.held:
            if block.group == group:
                below[block.parent].append(block)
        shared = list[Block]()
        best = None
        while True:
            rest = ids[SIZE * len(shared) : SIZE * (len(shared) + 1)]
            lengths = ((common_length(each.ids, rest), each) for each in below[best])
            common, best = max(lengths, key=itemgetter(0), default=(0, None))
            if best is not None and common == SIZE:
                shared.append(best)
                continue
            begin = SIZE * len(shared) + common + 1 - self.memory.window
            seen = [*shared, best] if best and common else shared
            if not all(block.has_windows for block in seen[max(0, begin) // SIZE :]):
                return [], None, 0
            return shared, best, common

    def _grow(self, sequence: PooledSequence) -> Block:
        """Append one of the reserved blocks to a sequence, and return it."""
        if not self._free:
            self._remove(next(iter(self.unused)))
        parent = sequence.blocks[-1] if sequence.blocks else None
        block = Block(self._free.pop(), parent, sequence.group, references=1)
        self.held[block] = None
        sequence.blocks.append(block)
        return block

    def release(self, sequence: PooledSequence) -> None:
        """End a sequence. Its blocks remain in the tree until they are evicted."""
        self.sequences.remove(sequence)
        for block in reversed(sequence.blocks):
            block.references -= 1
            if not block.references:
                self.unused[block] = None
                if not block.ids:
                    self._remove(block)
        sequence.blocks = []

    def forget(self) -> None:
        """Remove all blocks that no sequence uses."""
        for block in [*self.unused]:
            self._remove(block)

    def _remove(self, block: Block) -> None:
        """Remove an unused block without children from the tree."""
        del self.held[block], self.unused[block]
        self._free.append(block.place)

    @property
    def saved_adapters(self) -> ml.ScaledAdapters:
        """The adapters of the blocks that `blocks_to_save` returns."""
        return ()

    def blocks_to_save(self) -> list[tuple[int, Block]]:
        """Return the blocks that belong to no group (`group=None`), parents first.

        Each block is paired with its parent's index in the list, or -1 without a parent.
        """
        blocks = list[tuple[int, Block]]()
        numbers: dict[Block | None, int] = {None: -1}
        for block in self.held:
            if block.group is None and block.ids and block.parent in numbers:
                numbers[block] = len(blocks)
                blocks.append((numbers[block.parent], block))
        return blocks

    def free_place(self) -> int | None:
        """Return the place that the next `adopt` uses, or None if no block is free."""
        return self._free[-1] if self._free else None

    def can_adopt(self, block: Block) -> bool:
        """Return whether a saved block can be adopted, because its parent is cached."""
        return block.parent is None or block.parent in self.held

    def adopt(self, block: Block) -> None:
        """Add a saved block, after its contents have been written to `free_place()`."""
        self._free.pop()
        self.held[block] = None
        self.unused = {block: None} | self.unused

    def run(self, parts: Sequence[Part]) -> list[Logits]:
        """Run tokens of one or more sequences in one pass.

        If there is only one sequence, and its blocks are in order, it is used as the
        inference context itself, without a block table.

        Returns:
            The logits [wanted, V] of each part.
        """
        for part in parts:
            part.sequence.reserve(len(part.ids))
        for part in parts:
            if part.sequence.interventions:
                return self._run_changed(parts)
        with ml.adapted_rows(_adapters_of(parts)):
            return self._run(parts)

    def _run_changed(self, parts: Sequence[Part]) -> list[Logits]:
        """Run tokens of sequences, some of which have interventions.

        A sequence with interventions inside of attention has a separate pass, because
        a pass over several sequences computes attention in one op.
        """
        from ..model.intervened import intervened, own_rows

        args, bounds = own_rows(self.model)
        first = parts[0].sequence
        if len(parts) == 1 and first.is_in_order:
            with (
                ml.adapted_rows(_adapters_of(parts)),
                intervened(args, None, first.interventions, bounds),
            ):
                return self._run(parts)
        logits = dict[int, Logits]()
        together = dict[int, Part]()
        for number, part in enumerate(parts):
            interventions = part.sequence.interventions
            if any(each.address.place.is_spelled_out for each in interventions):
                logits[number] = self._run_alone(part)
            else:
                together[number] = part
        if together:
            results = self._run_together([*together.values()])
            logits.update(zip(together, results, strict=True))
        return [logits[number] for number in range(len(parts))]

    def _run_alone(self, part: Part) -> Logits:
        """Run tokens of a sequence with one op per stage of attention.

        These ops read a cache whose blocks are in order, so the sequence's blocks are
        copied to one, and the new keys and values are copied back.
        """
        from ..model.intervened import PassPart, intervened, own_rows

        sequence = part.sequence
        start = len(sequence.ids)
        count = len(part.ids)
        args = self.memory.args
        longest = self.memory.sequence_length
        memory = CacheMemory(args, longest, len(sequence.blocks))
        ranges = _stored_ranges(sequence, 0, start)
        for cache, ordered in zip(self.memory.caches, memory.caches, strict=True):
            for position, first, end in ranges:
                ordered.store_rows(position, cache.stored_rows(first, end))
        context = InferenceContext(args, longest, memory=memory)
        context.length = start
        whole_args, bounds = own_rows(self.model)
        # All rows count as wanted: the logits have a row per token, or only the last one.
        changed = PassPart(start, count, count, sequence.interventions)
        with (
            ml.adapted_rows(_adapters_of([part])),
            intervened(whole_args, [changed], (), bounds),
        ):
            result = self.model.transformer.forward(
                context, part.ids, start, all_positions=part.wanted > 1
            )
        ranges = _stored_ranges(sequence, start, start + count)
        for cache, ordered in zip(self.memory.caches, memory.caches, strict=True):
            for position, first, end in ranges:
                rows = ordered.stored_rows(position, position + end - first)
                cache.store_rows(first, rows)
        sequence.confirm(*part.ids[: part.certain])
        logits: Logits = result.numpy()
        return logits[len(logits) - part.wanted :]

    def _run_together(self, parts: Sequence[Part]) -> list[Logits]:
        """Run tokens of sequences in one pass, some of which have interventions."""
        from ..model.intervened import PassPart, intervened, own_rows

        args, bounds = own_rows(self.model)
        changed = [
            PassPart(
                len(part.sequence.ids),
                len(part.ids),
                part.wanted,
                part.sequence.interventions,
            )
            for part in parts
        ]
        with (
            ml.adapted_rows(_adapters_of(parts)),
            intervened(args, changed, (), bounds),
        ):
            return self._run(parts)

    def _run(self, parts: Sequence[Part]) -> list[Logits]:
        """Run tokens whose blocks are reserved."""
        first = parts[0]
        forward = self.model.transformer.forward
        if len(parts) == 1 and first.sequence.is_in_order:
            start_pos = len(first.sequence.ids)
            mark(3, position=start_pos, T=len(first.ids))
            wants_all = first.wanted > 1
            result = forward(
                first.sequence, first.ids, start_pos, all_positions=wants_all
            )
            logits: Logits = result.numpy()
            first.sequence.confirm(*first.ids[: first.certain])
            return [logits[len(logits) - first.wanted :]]
        spans = ml.Spans(
            (
                len(part.sequence.ids),
                len(part.ids),
                [block.place for block in part.sequence.blocks],
            )
            for part in parts
        )
        wanted = [part.wanted for part in parts]
        tokens = np.array([token for part in parts for token in part.ids], np.int32)
        logits = forward(BatchContext(self.memory, spans, wanted), tokens).numpy()
        for part in parts:
            part.sequence.confirm(*part.ids[: part.certain])
        return np.split(logits, np.cumsum(wanted)[:-1])


def _adapters_of(
    parts: Sequence[Part],
) -> list[tuple[int, int, ml.ScaledAdapters]]:
    """Return the rows and adapters of a pass, as `ml.adapted_rows` needs them."""
    return [(len(part.ids), part.wanted, part.sequence.adapters) for part in parts]


def _stored_ranges(
    sequence: PooledSequence, start: int, stop: int
) -> list[tuple[int, int, int]]:
    """Return ranges of a sequence's positions as (position, first, end) in the memory."""
    ranges = []
    while start < stop:
        number, offset = divmod(start, SIZE)
        end = min(stop, start - offset + SIZE)
        first = sequence.blocks[number].place * SIZE + offset
        ranges.append((start, first, first + end - start))
        start = end
    return ranges


class LonePool(BlockPool):
    """A pool for one sequence at a time, whose blocks are always in order.

    A new sequence continues in place after the prefix that it shares with the previous
    sequence, so nothing is copied. The tree of blocks is rebuilt from the sequence's
    tokens for each new sequence, so an interrupt cannot leave it inconsistent.

    Args:
        model: The model that runs the tokens.
        sequence_length: The maximum length of the sequence.
        attention: "fused" or "eager". See `InferenceContext`.

    Attributes:
        sequence: The current sequence.

    Raises:
        ModelError, NotEnoughMemoryError: See `CacheMemory`.
    """

    def __init__(
        self, model: Model, sequence_length: int, attention: str = "fused"
    ) -> None:
        super().__init__(model, sequence_length, None)
        self.attention = attention
        self.sequence = self._set_sequence([])

    def admit(
        self,
        ids: Sequence[int],
        positions: int,  # noqa: ARG002 - all blocks belong to the sequence
        share: bool = True,
        group: Hashable = None,  # noqa: ARG002 - there is no other client
        adapters: ml.ScaledAdapters = (),
        interventions: "Interventions" = (),
    ) -> PooledSequence:
        """Replace the current sequence with a new one, and keep the common prefix.

        A sequence with other adapters or interventions has other keys and values, so
        nothing is kept.
        """
        self.attention = self.sequence.attention  # callers may have changed it
        before = self.sequence
        if (adapters, interventions) != (before.adapters, before.interventions):
            return self._set_sequence([], adapters, interventions)
        before = self._set_sequence(before.ids, adapters, interventions)
        shared, _, common = self._match(ids[:-1], None) if share else ([], None, 0)
        kept = before.ids[: SIZE * len(shared) + common]
        return self._set_sequence(kept, adapters, interventions)

    def clear(self, adapters: ml.ScaledAdapters = ()) -> None:
        """Remove all tokens from the sequence, whose next tokens have these adapters."""
        self._set_sequence([], adapters)

    @property
    def saved_adapters(self) -> ml.ScaledAdapters:
        """The adapters of the sequence."""
        return self.sequence.adapters

    def blocks_to_save(self) -> list[tuple[int, Block]]:
        """Return the sequence's blocks, each with its parent's index or -1.

        The keys and values of a sequence with interventions are not saved.
        """
        if self.sequence.interventions:
            return []
        self._set_sequence(self.sequence.ids, self.sequence.adapters)
        return super().blocks_to_save()

    def can_adopt(self, block: Block) -> bool:
        """Return whether a saved block continues the sequence and fits into it."""
        before = -1 if block.parent is None else block.parent.place
        is_next = before == len(self.sequence.blocks) - 1
        end = len(self.sequence.ids) + len(block.ids)
        return is_next and end <= self.memory.sequence_length

    def adopt(self, block: Block) -> None:
        """Append a saved block to the sequence."""
        start = len(self.sequence.ids)
        ids = [*self.sequence.ids, *block.ids]
        self.memory.open(start, len(ids))
        if not block.has_windows:
            self.memory.first_kept = (block.place + 1) * SIZE
        self._set_sequence(ids, self.sequence.adapters)

    def _set_sequence(
        self,
        ids: Sequence[int],
        adapters: ml.ScaledAdapters = (),
        interventions: "Interventions" = (),
    ) -> PooledSequence:
        """Set and return a new sequence, with its blocks at the places 0, 1, ..."""
        blocks = list[Block]()
        for at in range(0, len(ids), SIZE):
            parent = blocks[-1] if blocks else None
            block = Block(len(blocks), parent, None, list(ids[at : at + SIZE]), 1)
            block.has_windows = at >= self.memory.first_kept
            blocks.append(block)
        self.held = dict.fromkeys(blocks)
        self._free = list(range(len(blocks), self.blocks))[::-1]
        self.sequence = PooledSequence(self, blocks, ids, None, self.blocks, adapters)
        self.sequence.interventions = interventions
        return self.sequence
