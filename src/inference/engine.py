"""Answers: read a prompt in chunks, then choose and run one token after the other."""

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

from ..ml.errors import declared_lack_of_memory
from ..model import PREFILL_CHUNK, Model, NotEnoughMemoryError
from ..tokenizer import Tokenizer
from ..trace import clock, is_on, mark
from .answer_text import Answer, GenerationStats, Step, TokenMask
from .chat_encoding import encode_chat, end_ids, find_chat_template
from .chat_template import ChatTemplate
from .errors import InferenceError, PromptError
from .messages import AnyMessage, as_messages
from .sampling import Logits, Sampler, SamplingArgs
from .speculation import MODEL_STAKE, CachedSequence, Drafter, DraftModel, PassCosts, TextIndex

# With `progress`, chunks take about this time; the first has WATCHED_CHUNK tokens.
WATCHED_SECONDS = 1.0
WATCHED_CHUNK = 64
DEFAULT_SEQUENCE_LENGTH = 4096

# Called with (prompt tokens in the cache, prompt tokens) before the first chunk and after each.
Progress = Callable[[int, int], None]


@dataclass(eq=False)
class Call:
    """One answer, for as long as its iterator can go on."""

    thread: threading.Thread | None = None  # that asked for its newest step
    is_over: bool = False  # whether it needs the engine no more

    def close(self) -> None:
        """Let the engine go."""
        self.is_over = True


class Turn:
    """The right of a call to change an engine, from one step to the next.

    A lock could stay held for ever, by Ctrl-C or in a forked process. Here the call is held weakly
    instead: however its iterator ends, the engine is free when the iterator is gone.
    """

    def __init__(self, call: Call) -> None:
        self.call, self.next = weakref.ref(call), dict[str, Turn]()


class InferenceEngine:
    """Answers prompts with one model and one KV cache.

    The cache is kept between prompts: of a new prompt only what differs from the last sequence is
    run, with the same bits as if all of it were. An iterator of steps may be closed, or an
    exception thrown into it, at any point; the engine stays usable. Only the newest iterator of an
    engine can go on.

    An engine belongs to one call at a time. From its first step until its last, or until its
    iterator is closed or dropped, an answer belongs to the thread that took its newest step. Any
    other thread that begins an answer or calls `reset` meanwhile gets
    `InferenceError("this engine is in use by another thread")`, and nothing changes; a call in the
    same thread ends the answer. Engines that share a model may run in several threads.

    Args:
        model: The model; engines may share it.
        sequence_length: Positions of the context; min(4096, the model's longest) by default.
        speculation: Whether a step may check guessed tokens along with the newest one, where that
            saves time. The answers are the same, bit for bit.
        draft_model: A smaller model with the same vocabulary that guesses them; without one they
            are looked up in the text.

    Raises:
        ModelError: The draft model has another vocabulary.

    Attributes:
        context: The KV cache.
        sequence_length: The positions of the context.
        last_stats: What the last answer took, also when it was not finished.
    """

    def __init__(
        self,
        model: Model,
        sequence_length: int | None = None,
        *,
        speculation: bool = True,
        draft_model: Model | None = None,
    ) -> None:
        if sequence_length is None:
            sequence_length = min(DEFAULT_SEQUENCE_LENGTH, model.args.max_context_length)
        self.model, self.speculation, self.sequence_length = model, speculation, sequence_length
        self.last_stats: GenerationStats | None = None
        self._cached = CachedSequence(model, sequence_length)
        self.context = self._cached.context
        self._turn = Turn(Call())
        self._pass_costs, self._draft_model = PassCosts(), None
        if draft_model is not None:
            self._pass_costs = PassCosts(MODEL_STAKE)
            self._draft_model = DraftModel(draft_model, sequence_length, model)

    def __repr__(self) -> str:
        cached = f"{len(self._cached.ids)} of {self.sequence_length} positions cached"
        return f"InferenceEngine({self.model!r}, {cached})"

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """Return the tokens whose keys and values are in the cache."""
        return tuple(self._cached.ids)

    @cached_property
    def chat_format(self) -> ChatTemplate:
        """Find the model's chat template.

        Raises:
            ChatFormatError: It has none, and its special tokens belong to no format.
            TokenizerError: The file with the chat template is damaged.
            PromptError: The model has no tokenizer.
        """
        return find_chat_template(self.model.source, self._tokenizer())

    def _tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise PromptError("[chat] model must have a tokenizer: its directory holds none")
        return self.model.tokenizer

    def reset(self) -> None:
        """Forget the cached tokens.

        Raises:
            InferenceError: Another thread is using the engine.
        """
        self._take(Call())
        self._cached.clear()

    def _take(self, call: Call) -> None:
        """Give the engine to a call, until another one may have it, or raise InferenceError.

        Which of several threads gets it is decided by one `setdefault`, which is atomic.
        """
        newest, turn, thread = self._turn, Turn(call), threading.current_thread()
        while newest.next:
            newest = newest.next["turn"]
        owner = newest.call()
        if call.thread is not None and owner is not call:
            raise InferenceError("[generate] this answer was ended by a newer call")
        holder = None if owner is None or owner is call or owner.is_over else owner.thread
        is_held = holder is not None and holder is not thread and holder.is_alive()
        call.thread = thread
        if is_held or newest.next.setdefault("turn", turn) is not turn:
            raise InferenceError("this engine is in use by another thread")
        self._turn = turn

    def chat(
        self,
        messages: Sequence[AnyMessage],
        max_new_tokens: int | None = None,
        sampling: SamplingArgs | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        chat_format: str | ChatTemplate | None = None,
        candidates: int = 0,
        answer_ids: Sequence[int] = (),
        think: bool = True,
        mask: TokenMask | None = None,
    ) -> Iterator[Step]:
        """Answer the last message of a conversation; arguments and errors as in `generate`.

        Args:
            messages: `Message`s, or dicts such as `{"role": "user", "content": "hi"}`.
            chat_format: A template, or a key of `CHAT_FORMATS`; None stands for the model's own.
            think: As in `encode_chat`.

        Raises:
            ChatFormatError: The messages cannot be read or there are none, the format is not
                known, cannot express them or leave out thoughts, or the tokenizer lacks a special
                token of it.
        """
        tokenizer = self._tokenizer()
        template = self.chat_format if chat_format is None else chat_format
        read = as_messages(messages)
        prompt_ids = encode_chat(tokenizer, read, chat_format=template, think=think)
        said = [{"role": message.role, "content": message.content} for message in read]
        mark(1, details={"messages": said, "ids": prompt_ids})
        ends = end_ids(tokenizer, template)
        how = max_new_tokens, sampling, stop, progress, ends, True, candidates, answer_ids
        return self.generate(prompt_ids, *how, mask=mask)

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int | None = None,
        sampling: SamplingArgs | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        end_ids: Collection[int] = (),
        new_text: bool = False,
        candidates: int = 0,
        answer_ids: Sequence[int] = (),
        forced_ids: Sequence[int] = (),
        mask: TokenMask | None = None,
    ) -> Iterator[Step]:
        """Continue a sequence of tokens.

        Everything is checked before the first step is asked for; a refused call changes nothing.

        Args:
            prompt_ids: Token ids; at least one, and fewer than the context has positions.
            max_new_tokens: The most tokens to choose, `--max-tokens` on the command line; None goes
                on until another reason stops.
            sampling: How to choose; None stands for the defaults.
            stop: Texts that end the answer and are not part of it.
            progress: Called while the prompt is read.
            end_ids: Ids that end the answer, beside those of the model.
            new_text: Whether the answer begins a text, so that the space which some tokenizers
                put before one is not shown; otherwise it goes on from the prompt.
            candidates: How many of the most probable tokens each step reports, beside the drawn
                one; 0 for none, which saves time.
            answer_ids: Tokens of the answer that were drawn before, without an end token: the
                answer goes on after them. Their text comes again, with that of the first step.
            forced_ids: The first tokens of the answer, one a step, whatever is drawn: a trace
                shows an answer that is known.
            mask: Which tokens may be drawn, as a grammar says; the logits of all others become
                -inf before the sampler and `candidates` see them.

        Yields:
            One step per chosen token. Without a tokenizer the texts are empty and no token ends
            the answer.

        Raises:
            PromptError: No prompt, a text in its place, a limit below 1, or a number of candidates
                below 0.
            TokenIdError: Ids that are not whole numbers, or outside of the vocabulary.
            ContextFullError: The prompt leaves no room for a token.
            CheckpointError: The weight files were rewritten since they were loaded; also checked
                before the last step, so that no answer is complete that they may have spoiled.
            InferenceError: While stepping: another thread is using the engine, or a newer call
                ended this answer.
            NumericError: While stepping: the logits are not finite.
            GrammarError: While stepping: the mask cannot be made.
            NotEnoughMemoryError, TensorError: While stepping: the system refuses memory.
        """
        given = prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates
        answer = Answer(self.model, self.sequence_length, *given, answer_ids, forced_ids, mask)
        return self._steps(answer, progress)

    def _steps(self, answer: Answer, progress: Progress | None) -> Iterator[Step]:
        """Run the prompt, then draw, show and run tokens until a reason to stop."""
        with closing(Call()) as call, declared_lack_of_memory("generate", NotEnoughMemoryError):
            self._take(call)
            ids, stats, cached = answer.ids, answer.stats, self._cached
            stats.cached_tokens = cached.reusable(ids)
            self.last_stats = stats
            started = clock()
            rows = self._prefill(ids, stats.cached_tokens, progress)
            answer.begin(cached, self._drafter(ids, answer.sampler) if self.speculation else None)
            stats.prefill_seconds = clock() - started
            while True:
                for step in answer.advance(rows[0]):
                    call.is_over = answer.is_over
                    yield step
                    if answer.is_over:
                        return
                    self._take(call)
                drafted = answer.draft()
                started = clock()
                rows = cached.run([answer.newest], drafted)
                seconds = clock() - started
                answer.note_pass(rows, seconds)
                if not is_on():
                    self._pass_costs.note_pass(len(drafted), seconds)

    def _drafter(self, ids: list[int], sampler: Sampler) -> Drafter:
        """Return what drafts an answer; a draft model has read the prompt."""
        if self._draft_model is None or is_on():
            return Drafter(TextIndex(ids), self._pass_costs)
        self._draft_model.begin(ids, sampler)
        return Drafter(self._draft_model, self._pass_costs)

    def _prefill(self, ids: list[int], cached: int, progress: Progress | None) -> Logits:
        """Run the part of the prompt that is not cached; return the logits after its end [1, V]."""
        del self._cached.ids[cached:]
        is_watched = progress is not None and not is_on()  # a trace shows the same in any window
        chunk = min(WATCHED_CHUNK, PREFILL_CHUNK) if is_watched else PREFILL_CHUNK
        while (start := len(self._cached.ids)) < len(ids):
            if progress is not None:
                progress(start, len(ids))
            started = time.perf_counter()
            rows = self._cached.run(ids[start : start + chunk])
            seconds = time.perf_counter() - started
            self._pass_costs.note_prompt(len(self._cached.ids) - start, seconds)
            if is_watched:
                # Any chunks give the same bits; longer ones pass over the weights less often.
                parts = int(chunk * WATCHED_SECONDS / max(seconds, 1e-3)) // WATCHED_CHUNK
                chunk = min(max(parts, 1) * WATCHED_CHUNK, PREFILL_CHUNK)
        if progress is not None:
            progress(len(ids), len(ids))
        return rows
