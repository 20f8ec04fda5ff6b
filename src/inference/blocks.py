"""The KV cache of an engine: blocks for one sequence or many, shared where these begin
equally.

A block holds the keys and values of 256 positions. The blocks of all sequences, also of
those that have ended, form a tree: a block hangs below the one before it, and its tokens
say what it holds. A new sequence goes down from the root for as long as blocks have its
tokens, and uses these blocks as they are; of the last one that agrees in part, the part
is copied. A full block never changes. When no block is free, the one that was unused for
the longest time goes, of those without any below. A sequence belongs to a group and
begins with blocks of its group alone, so that neither a count nor a time tells a client
what another one asked.

A `LonePool` holds the one sequence of a chat, whose blocks lie in order.
"""

import weakref
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from .. import ml
from ..model import BatchContext, CacheMemory, InferenceContext, Model
from ..trace import mark
from .sampling import Logits

SIZE = ml.BLOCK_POSITIONS


@dataclass(eq=False, slots=True)
class Block:
    """A block of the cache."""

    place: int
    parent: "Block | None"  # the block before it
    group: Hashable  # whose sequences may begin with it
    # Whose keys and values it holds, at most 256.
    ids: list[int] = field(default_factory=list)
    references: int = 0  # sequences that use it and have not ended


class PooledSequence(InferenceContext):
    """A sequence whose blocks lie in a pool.

    Attributes:
        pool: The pool, held weakly, because it holds the sequence: the memory of an
            engine that is gone is then free at once.
        group: Whose sequences may begin with its blocks.
        most: The blocks that it may take.
        blocks: Its blocks, in the order of its positions.
        ids: Its tokens that are cached. They are noted when the cache holds them:
            wherever an interrupt falls, what is noted is true.
        is_in_order: Whether block b lies at place b, so that no pass needs a table of
            blocks.
    """

    def __init__(
        self,
        pool: "BlockPool",
        blocks: list[Block],
        ids: Sequence[int],
        group: Hashable,
        most: int,
    ) -> None:
        memory = pool.memory
        super().__init__(memory.args, memory.sequence_length, pool.attention, memory)
        self.pool: BlockPool = weakref.proxy(pool)
        self.group = group
        self.most = most
        self.blocks = blocks
        self.ids = list(ids)
        self.length = len(self.ids)
        self.is_in_order = all(block.place == at for at, block in enumerate(blocks))

    def reserve(self, count: int) -> None:
        """Take the blocks for new tokens."""
        while len(self.blocks) * SIZE < len(self.ids) + count:
            block = self.pool._grow(self)
            self.is_in_order = self.is_in_order and block.place == len(self.blocks) - 1

    def begin(self, start_pos: int, count: int) -> tuple[ml.Positions, ml.Tensor]:
        """Begin a pass as `InferenceContext` does; what it writes over is no longer
        noted.
        """
        begun = super().begin(start_pos, count)
        del self.ids[start_pos:]
        return begun

    def confirm(self, *ids: int) -> None:
        """Count the next tokens as cached, such as a drafted one of the last pass."""
        length = len(self.ids)
        for token in ids:
            self.blocks[length // SIZE].ids.append(token)
            self.ids.append(token)
            length += 1
        self.length = length

    def clear(self) -> None:
        """Forget what blocks of this sequence alone hold,
        and all that no sequence uses.
        """
        self.pool.forget()
        for block in self.blocks:
            if block.references == 1:
                block.ids = []
        self.ids = []
        self.length = 0


class Part(NamedTuple):
    """What a pass runs of one sequence.

    Attributes:
        sequence: The sequence.
        ids: Its new tokens.
        certain: How many of them, the first ones, become cached; the others are drafted.
        wanted: After how many of them, the last ones, the logits are wanted.
    """

    sequence: PooledSequence
    ids: Sequence[int]
    certain: int
    wanted: int


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first tokens two texts share."""
    most = min(len(a), len(b))
    return next((at for at in range(most) if a[at] != b[at]), most)


class BlockPool:
    """The KV cache of an engine: blocks, the tree of what they hold, and passes over
    sequences.

    Args:
        model: Runs the tokens.
        sequence_length: The most positions of a sequence.
        blocks: The number of blocks; None for the blocks of one sequence, as in
            `CacheMemory`.

    Raises:
        ModelError, NotEnoughMemoryError: As from `CacheMemory`.
    """

    attention = "fused"

    def __init__(self, model: Model, sequence_length: int, blocks: int | None) -> None:
        self.model = model
        self.memory = CacheMemory(model.args, sequence_length, blocks)
        self.blocks = self.memory.blocks
        self.held = dict[Block, None]()  # the tree, each block after the one before it
        self.sequences: list[PooledSequence] = []  # that have not ended
        self._free = list(range(self.blocks))[::-1]
        # Blocks that only the tree holds, in the order in which they were used last. A
        # block was used with all that are before it, so that none is below the first one.
        self.unused = dict[Block, None]()

    def admit(
        self,
        ids: Sequence[int],
        positions: int,
        share: bool = True,
        group: Hashable = None,
    ) -> PooledSequence | None:
        """Begin a sequence with what is cached of it, but for its last token, if it may
        share that.

        It is promised blocks for all its positions. Return None while there are too few.
        """
        shared, source, common = self._match(ids[:-1], group) if share else ([], None, 0)
        cached = ids[: SIZE * len(shared)]
        sequence = PooledSequence(self, shared, cached, group, -(-positions // SIZE))
        promised = sum(one.most - len(one.blocks) for one in [*self.sequences, sequence])
        revived = sum(not block.references for block in shared)
        if promised + revived > len(self._free) + len(self.unused):
            return None
        self.sequences.append(sequence)
        for block in shared:
            block.references += 1
            self.unused.pop(block, None)
        if common and source:
            if source in self.unused:  # used now, so it is the last to be removed
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
        """Return the blocks that begin a text, then one of which some tokens go on with
        it.
        """
        below = defaultdict[Block | None, list[Block]](list)
        for block in self.held:
            if block.group == group:
                below[block.parent].append(block)
        shared = list[Block]()
        best = None
        while True:
            rest = ids[SIZE * len(shared) : SIZE * (len(shared) + 1)]
            lengths = ((common_length(one.ids, rest), one) for one in below[best])
            common, best = max(lengths, key=itemgetter(0), default=(0, None))
            if best is None or common < SIZE:
                return shared, best, common
            shared.append(best)

    def _grow(self, sequence: PooledSequence) -> Block:
        """Give a sequence one of the blocks that it was promised."""
        if not self._free:
            self._remove(next(iter(self.unused)))
        parent = sequence.blocks[-1] if sequence.blocks else None
        block = Block(self._free.pop(), parent, sequence.group, references=1)
        self.held[block] = None
        sequence.blocks.append(block)
        return block

    def release(self, sequence: PooledSequence) -> None:
        """End a sequence; its blocks stay in the tree until they are needed."""
        self.sequences.remove(sequence)
        for block in reversed(sequence.blocks):
            block.references -= 1
            if not block.references:
                self.unused[block] = None
                if not block.ids:
                    self._remove(block)
        sequence.blocks = []

    def forget(self) -> None:
        """Forget all that no sequence uses."""
        for block in [*self.unused]:
            self._remove(block)

    def _remove(self, block: Block) -> None:
        """Take an unused block without any below out of the tree."""
        del self.held[block], self.unused[block]
        self._free.append(block.place)

    def blocks_to_save(self) -> list[tuple[int, Block]]:
        """Return the blocks of the group None, each with the number of its parent,
        or -1.
        """
        blocks = list[tuple[int, Block]]()
        numbers: dict[Block | None, int] = {None: -1}
        for block in self.held:
            if block.group is None and block.ids and block.parent in numbers:
                numbers[block] = len(blocks)
                blocks.append((numbers[block.parent], block))
        return blocks

    def free_place(self) -> int | None:
        """Return the place that `adopt` takes next, or None if no block is free."""
        return self._free[-1] if self._free else None

    def takes(self, block: Block) -> bool:
        """Return whether `adopt` may take a saved block."""
        return block.parent is None or block.parent in self.held

    def adopt(self, block: Block) -> None:
        """Hold a saved block whose keys and values were written to its place,
        `free_place`.
        """
        self._free.pop()
        self.held[block] = None
        self.unused = {block: None} | self.unused

    def run(self, parts: Sequence[Part]) -> list[Logits]:
        """Run tokens of several sequences in one pass; return the logits [wanted, V] of
        each.

        A sequence that is alone in the pass, and whose blocks lie in order, is its own
        context.
        """
        for part in parts:
            part.sequence.reserve(len(part.ids))
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


class LonePool(BlockPool):
    """A pool for one sequence at a time, whose blocks lie in order: nothing is copied.

    The next sequence goes on in place from what it shares with the sequence before it.
    The tokens of the sequence alone say what is cached: the rest is made of them again
    for each sequence, so that it does not matter where an interrupt left it.

    Args:
        model: Runs the tokens.
        sequence_length: The most positions of the sequence.
        attention: "fused" or "eager", as in `InferenceContext`.

    Attributes:
        sequence: The newest sequence.

    Raises:
        ModelError, NotEnoughMemoryError: As from `CacheMemory`.
    """

    def __init__(
        self, model: Model, sequence_length: int, attention: str = "fused"
    ) -> None:
        super().__init__(model, sequence_length, None)
        self.attention = attention
        self.sequence = self._hold([])

    def admit(
        self,
        ids: Sequence[int],
        positions: int,  # noqa: ARG002 - all blocks belong to the sequence
        share: bool = True,
        group: Hashable = None,  # noqa: ARG002 - there is no other client
    ) -> PooledSequence:
        """Begin a sequence in the place of the one before it."""
        self.attention = self.sequence.attention  # which may have been set
        before = self._hold(self.sequence.ids)
        shared, _, common = self._match(ids[:-1], None) if share else ([], None, 0)
        return self._hold(before.ids[: SIZE * len(shared) + common])

    def clear(self) -> None:
        """Forget the tokens of the sequence."""
        self._hold([])

    def blocks_to_save(self) -> list[tuple[int, Block]]:
        """Return the blocks of the sequence, each with the number of its parent,
        or -1.
        """
        self._hold(self.sequence.ids)
        return super().blocks_to_save()

    def takes(self, block: Block) -> bool:
        """Return whether a saved block goes on with the sequence, and fits."""
        before = -1 if block.parent is None else block.parent.place
        is_next = before == len(self.sequence.blocks) - 1
        end = len(self.sequence.ids) + len(block.ids)
        return is_next and end <= self.memory.sequence_length

    def adopt(self, block: Block) -> None:
        """Let the sequence go on with a saved block."""
        self._hold([*self.sequence.ids, *block.ids])

    def _hold(self, ids: Sequence[int]) -> PooledSequence:
        """Hold some tokens in blocks at places 0, 1, ... as the newest sequence."""
        blocks = list[Block]()
        for at in range(0, len(ids), SIZE):
            parent = blocks[-1] if blocks else None
            blocks.append(Block(len(blocks), parent, None, list(ids[at : at + SIZE]), 1))
        self.held = dict.fromkeys(blocks)
        self._free = list(range(len(blocks), self.blocks))[::-1]
        self.sequence = PooledSequence(self, blocks, ids, None, self.blocks)
        return self.sequence
