"""The passes of an engine: each takes parts of prompts and the newest token of every
answer.

`InferenceEngine` makes passes of one answer in the thread of the caller, `BatchEngine`
passes of many answers in a separate thread. What a pass does with an answer is written
here, once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ..model import Model
from ..trace import clock, is_on
from .answer import Answer, Patience, Step
from .blocks import BlockPool, Part, PooledSequence
from .errors import InferenceError
from .sampling import STEPS_OFF, Choice, Logits, Sampler, explain_choice
from .speculation import (
    MODEL_STAKE,
    TEXT_STAKE,
    Drafter,
    DraftModel,
    PassCosts,
    TextIndex,
)

# Tokens of a prompt in a pass whose logits are all wanted: rows over the vocabulary take
# memory.
_EXPLAINED_CHUNK = 64


@dataclass(eq=False)
class RunningAnswer:
    """An answer whose sequence lies in the pool.

    Attributes:
        answer: Draws its tokens.
        sequence: The tokens that are cached.
        prompt_choices: With `prompt_candidates`, for each token of the prompt that was
            read what the model, without any step of the sampling, held of it; None for
            the first.
        is_read: Whether the whole prompt was run.
        steps: The steps of the newest pass that are not delivered yet; each is None while
            the mask is not ready.
    """

    answer: Answer
    sequence: PooledSequence
    prompt_choices: list[Choice | None] | None
    is_read: bool = False
    steps: Iterator[Step | None] | None = None


class Passes:
    """Runs answers whose sequences share one pool of cache blocks.

    Args:
        pool: The keys and values of a model.
        speculation: Whether a pass may check drafted tokens, where that saves time.
        draft_model: A smaller model that drafts; by default drafts are looked up in the
            text.

    Raises:
        ModelError: The draft model has another vocabulary.
    """

    def __init__(
        self, pool: BlockPool, speculation: bool, draft_model: Model | None = None
    ) -> None:
        self.pool = pool
        self.speculation = speculation
        self._draft_model: DraftModel | None = None
        stake = TEXT_STAKE
        if draft_model is not None:
            stake = MODEL_STAKE
            self._draft_model = DraftModel(
                draft_model, pool.memory.sequence_length, pool.model
            )
        # What is known of passes that continue a number of answers.
        self._costs_of = cache(partial(PassCosts, stake))

    def admit(self, answer: Answer) -> RunningAnswer | None:
        """Begin an answer with what is cached of its prompt; None while the pool has no
        room.
        """
        request = answer.request
        explains = request.prompt_candidates > 0
        sequence = self.pool.admit(
            answer.ids,
            positions=len(answer.ids) + answer.limit - 1,  # the last token is not run
            share=not explains,
            group=request.prefix_group,
        )
        if sequence is None:
            return None
        answer.stats.cached_tokens = len(sequence.ids)
        return RunningAnswer(answer, sequence, [None] if explains else None)

    def prompt_part(self, running: RunningAnswer, most: int) -> Part:
        """Return the next tokens of a prompt, at most some."""
        ids = running.answer.ids
        start = len(running.sequence.ids)
        explains = running.prompt_choices is not None
        chunk = ids[start : start + (min(most, _EXPLAINED_CHUNK) if explains else most)]
        is_last = start + len(chunk) == len(ids)
        return Part(
            running.sequence, chunk, len(chunk), len(chunk) if explains else int(is_last)
        )

    def newest_parts(
        self, decoding: Sequence[RunningAnswer], drafts: bool = True
    ) -> list[Part]:
        """Return the newest token of each answer, with what is drafted after it."""
        costs = self._costs_of(len(decoding)) if drafts and decoding else None
        parts: list[Part] = []
        drafted = 0
        for running in decoding:
            answer = running.answer
            if len(running.sequence.ids) != len(answer.ids) + answer.stats.new_tokens - 1:
                raise InferenceError("[generate] the context of this answer was changed")
            draft = [] if costs is None else answer.draft(costs, drafted)
            drafted += len(draft)
            parts.append(
                Part(running.sequence, [answer.newest, *draft], 1, 1 + len(draft))
            )
        return parts

    def run(
        self, runs: Sequence[RunningAnswer], parts: Sequence[Part]
    ) -> tuple[list[Logits], float]:
        """Make a pass; return the logits [wanted, V] of each part, and the seconds that
        it took.
        """
        started = clock()
        rows = self.pool.run(parts)
        seconds = clock() - started
        tokens = 0
        certain = 0
        reads_prompts = False
        for running, part in zip(runs, parts, strict=True):
            tokens += len(part.ids)
            certain += part.certain
            reads_prompts = reads_prompts or not running.is_read
        if not reads_prompts:
            if not is_on():
                self._costs_of(len(runs)).note_pass(tokens - certain, seconds)
        elif len(runs) == 1:
            self._costs_of(1).note_prompt(tokens, seconds)
        return rows, seconds

    def take_rows(
        self,
        running: RunningAnswer,
        rows: Logits,
        seconds: float,
        patience: Patience | None,
    ) -> None:
        """Let an answer draw from the logits of a pass that took some seconds.

        Its `steps` are then the steps of the pass, or None while the prompt is not read.
        """
        answer = running.answer
        if running.is_read:
            answer.note_pass(rows, seconds)
        else:
            answer.stats.prefill_seconds += seconds
            self._explain_prompt(running, rows)
            if len(running.sequence.ids) < len(answer.ids):
                return
            started = clock()
            running.is_read = True
            answer.begin(
                running.sequence, self._drafter(answer) if self.speculation else None
            )
            answer.stats.prefill_seconds += clock() - started
            rows = rows[-1:]
        running.steps = answer.advance(rows[0], patience)

    def _explain_prompt(self, running: RunningAnswer, rows: Logits) -> None:
        """Note what the model held of the tokens of a prompt, if that is asked for."""
        choices = running.prompt_choices
        if choices is None:
            return
        ids = running.answer.ids
        sampler = Sampler(STEPS_OFF)
        many = running.answer.request.prompt_candidates
        for at, row in enumerate(rows[: len(ids) - len(choices)], len(choices)):
            choices.append(explain_choice(sampler, row, ids[at], at, many))

    def _drafter(self, answer: Answer) -> Drafter:
        """Return the drafter of an answer; a draft model reads the prompt."""
        costs = self._costs_of(1)
        if self._draft_model is None or is_on():
            return Drafter(TextIndex(answer.ids), costs)
        self._draft_model.begin(answer.ids, answer.sampler)
        return Drafter(self._draft_model, costs)
