"""Forward passes over prompt chunks and the newest tokens of answers.

`InferenceEngine` runs passes for one answer in the caller's thread. `BatchEngine` runs
passes for many answers in a separate thread. Both use this module.
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

# Maximum number of prompt tokens per pass if all logits are needed. It is small because
# each token needs memory for a row of logits.
_EXPLAINED_CHUNK = 64


@dataclass(eq=False)
class RunningAnswer:
    """An answer whose sequence is in the pool.

    Attributes:
        answer: The answer, which draws the tokens.
        sequence: The sequence of cached tokens.
        prompt_choices: The model's distribution for each prompt token that has been run,
            without sampling steps, or None if `prompt_candidates` is not set. The first
            entry is None.
        is_read: Whether the whole prompt has been run.
        steps: The steps of the latest pass that have not been delivered yet, or None. A
            step is None if its mask is not ready.
    """

    answer: Answer
    sequence: PooledSequence
    prompt_choices: list[Choice | None] | None
    is_read: bool = False
    steps: Iterator[Step | None] | None = None


class Passes:
    """Run forward passes for answers whose sequences share one pool of cache blocks.

    Args:
        pool: The model's cache pool.
        speculation: Whether a pass may check drafted tokens if that saves time.
        draft_model: A smaller model that drafts tokens. By default, drafts are looked up
            in the text.

    Raises:
        ModelError: If the draft model has another vocabulary.
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
        # The measured pass costs, by the number of answers in a pass.
        self._costs_of = cache(partial(PassCosts, stake))

    def admit(self, answer: Answer) -> RunningAnswer | None:
        """Start an answer, reusing its cached prefix; return None if the pool is full."""
        request = answer.request
        explains = request.prompt_candidates > 0
        sequence = self.pool.admit(
            answer.ids,
            positions=len(answer.ids) + answer.limit - 1,  # the last token is not run
            share=not explains and not _records(answer),
            group=request.prefix_group,
            adapters=answer.adapters,
            interventions=answer.interventions,
        )
        if sequence is None:
            return None
        answer.stats.cached_tokens = len(sequence.ids)
        return RunningAnswer(answer, sequence, [None] if explains else None)

    def prompt_part(self, running: RunningAnswer, most: int) -> Part:
        """Return the next part of a prompt, with at most `most` tokens."""
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
        """Return a part for each answer, with its newest token and any drafted tokens."""
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
        """Run a pass, and return the logits [wanted, V] of each part and the duration."""
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
        """Give an answer the logits and the duration of the latest pass.

        If the prompt has been run completely, this sets `running.steps` to an iterator
        over the steps of the pass.
        """
        answer = running.answer
        for intervention in answer.interventions:
            intervention.check_present()
        if running.is_read:
            answer.note_pass(rows, seconds)
        else:
            answer.stats.prefill_seconds += seconds
            self._explain_prompt(running, rows)
            if len(running.sequence.ids) < len(answer.ids):
                return
            started = clock()
            running.is_read = True
            # A drafted token that is not drawn must not be recorded.
            drafts = self.speculation and not _records(answer)
            answer.begin(running.sequence, self._drafter(answer) if drafts else None)
            answer.stats.prefill_seconds += clock() - started
            rows = rows[-1:]
        running.steps = answer.advance(rows[0], patience)

    def _explain_prompt(self, running: RunningAnswer, rows: Logits) -> None:
        """Record the model's distributions for the prompt tokens, if requested."""
        choices = running.prompt_choices
        if choices is None:
            return
        ids = running.answer.ids
        sampler = Sampler(STEPS_OFF)
        count = running.answer.request.prompt_candidates
        for at, row in enumerate(rows[: len(ids) - len(choices)], len(choices)):
            choices.append(explain_choice(sampler, row, ids[at], at, count))

    def _drafter(self, answer: Answer) -> Drafter:
        """Return a drafter for an answer. If there is a draft model, run its prompt."""
        costs = self._costs_of(1)
        if self._draft_model is None or is_on():
            return Drafter(TextIndex(answer.ids), costs)
        self._draft_model.begin(answer.ids, answer.sampler)
        return Drafter(self._draft_model, costs)


def _records(answer: Answer) -> bool:
    """Return whether an intervention of the answer records a tensor."""
    return any(each.kind == "record" for each in answer.interventions)
