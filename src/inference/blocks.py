"""A pool of cache blocks for many sequences; what several of them begin with is kept once.

A block holds the keys and values of 256 positions. The blocks of all sequences, also of those that
have ended, form a tree: a block hangs below the one before it, and its tokens say what it holds. A
new sequence goes down from the root for as long as blocks have its tokens, and uses these blocks as
they are; of the last one that agrees in part, the part is copied. A full block never changes. When
no block is free, the one that was unused for the longest time goes, of those without any below.
A sequence belongs to a group and begins with blocks of its group alone, so that neither a count nor
a time tells a client what another one asked.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import numpy as np

from .. import ml
from ..model import BatchContext, Model, SharedContext
from .prompt_cache import SavedBlock, read_blocks, save_blocks, write_rows
from .sampling import Logits
from .speculation import common_length

SIZE = ml.BLOCK_POSITIONS


@dataclass(eq=False, slots=True)
class Block:
    """A block of the cache."""

    place: int
    parent: "Block | None"  # the block before it
    group: Hashable  # whose sequences may begin with it
    ids: list[int] = field(default_factory=list)  # whose keys and values it holds, at most 256
    references: int = 0  # sequences that use it and have not ended


@dataclass(eq=False)
class PooledSequence:
    """A sequence whose blocks lie in a pool."""

    pool: "BlockPool"
    group: Hashable
    most: int  # blocks that it may take
    blocks: list[Block]
    length: int  # its tokens that are cached

    def span(self, count: int) -> tuple[int, int, list[int]]:
        """Return where new tokens belong, as `ml.Spans` takes it; take blocks for them."""
        while len(self.blocks) * SIZE < self.length + count:
            self.pool._grow(self)
        return self.length, count, [block.place for block in self.blocks]

    def confirm(self, *ids: int) -> None:
        """Count the next tokens as cached, such as a drafted one of the last pass."""
        for token in ids:
            self.blocks[self.length // SIZE].ids.append(token)
            self.length += 1

    def clear(self) -> None:
        """Forget what blocks of this sequence alone hold, and all that no sequence uses."""
        self.pool.forget()
        for block in self.blocks:
            if block.references == 1:
                block.ids = []
        self.length = 0


# New tokens of a sequence for a pass; how many of them, the first ones, become cached; and after
# how many, the last ones, logits are wanted.
Part = tuple[PooledSequence, Sequence[int], int, int]


class BlockPool:
    """Blocks, the tree of what they hold, and passes over sequences; errors of `SharedContext`."""

    def __init__(self, model: Model, sequence_length: int, blocks: int) -> None:
        self.model, self.blocks = model, blocks
        self.context = SharedContext(model.args, sequence_length, blocks)
        self.held = dict[Block, None]()  # the tree, each block after the one before it
        self.sequences: list[PooledSequence] = []  # that have not ended
        self._free = list(range(blocks))[::-1]
        # Blocks that only the tree holds, in the order in which they were used last. A block was
        # used with all that are before it, so that none is below the first one.
        self.unused = dict[Block, None]()

    def admit(
        self, ids: Sequence[int], positions: int, share: bool, group: Hashable = None
    ) -> PooledSequence | None:
        """Begin a sequence with what is cached of it, but for its last token, if it may share that.

        It is promised blocks for all its positions. Return None while there are too few.
        """
        shared, source, common = self._match(ids[:-1], group) if share else ([], None, 0)
        length = SIZE * len(shared)
        sequence = PooledSequence(self, group, -(-positions // SIZE), shared, length)
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
            target = self._grow(sequence)
            if target.place != source.place:
                self.context.copy_block(source.place, target.place)
            sequence.confirm(*source.ids[:common])
        return sequence

    def _match(self, ids: Sequence[int], group: Hashable) -> tuple[list[Block], Block | None, int]:
        """Return the blocks that begin a text, then one of which some tokens go on with it."""
        below = defaultdict[Block | None, list[Block]](list)
        for block in self.held:
            if block.group == group:
                below[block.parent].append(block)
        shared, best = list[Block](), None
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

    def save(self, path: Path) -> None:
        """Write what the tree holds for the group None, or raise PromptCacheError."""
        blocks, numbers = list[SavedBlock](), dict[Block | None, int]({None: -1})
        for block in self.held:
            if block.group is None and block.ids and block.parent in numbers:
                blocks.append((numbers[block.parent], block.ids, block.place * SIZE))
                numbers[block] = len(blocks) - 1
        save_blocks(path, self.model, self.context.caches, blocks)

    def load(self, path: Path) -> int:
        """Read what was saved into free blocks, for the group None; return how many tokens.

        At a damaged block it raises PromptCacheError; the blocks before it are kept.
        """
        tokens, made = 0, dict[int, Block | None]({-1: None})
        for number, (parent, ids, rows) in enumerate(read_blocks(path, self.model)):
            if parent in made and self._free:
                write_rows(self.context.caches, self._free[-1] * SIZE, rows)
                block = made[number] = Block(self._free.pop(), made[parent], None, ids)
                self.held[block] = None
                self.unused = {block: None} | self.unused
                tokens += len(ids)
        return tokens

    def run(self, parts: Sequence[Part]) -> list[Logits]:
        """Run tokens of several sequences in one pass; return the logits [wanted, V] of each."""
        spans = ml.Spans([sequence.span(len(ids)) for sequence, ids, _, _ in parts])
        wanted = [count for *_, count in parts]
        tokens = np.array([token for _, ids, _, _ in parts for token in ids], np.int32)
        context = BatchContext(self.context, spans, wanted)
        logits: Logits = self.model.transformer.forward(context, tokens, spans).numpy()
        for sequence, ids, certain, _ in parts:
            sequence.confirm(*ids[:certain])
        return np.split(logits, np.cumsum(wanted)[:-1])
