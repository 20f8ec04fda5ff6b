"""An engine for one chat, which runs a prompt in chunks and then draws tokens."""

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..ml import ScaledAdapters
from ..ml.errors import declared_lack_of_memory
from ..model import PREFILL_CHUNK, Model, NotEnoughMemoryError
from ..tokenizer import Tokenizer
from ..trace import is_on, mark
from .answer import Answer, GenerationStats, Step
from .blocks import LonePool, Part, PooledSequence
from .chat_encoding import encode_chat, end_ids, find_chat_template
from .chat_template import ChatTemplate
from .errors import InferenceError, PromptError
from .messages import AnyMessage, Message, as_messages
from .passes import Passes, RunningAnswer
from .request import Request, TokenMask
from .sampling import SamplingArgs

if TYPE_CHECKING:
    from ..model import Interventions

# If `progress` is set, chunks are sized to take about this time. The first chunk has
# WATCHED_CHUNK tokens.
WATCHED_SECONDS = 1.0
WATCHED_CHUNK = 64
DEFAULT_SEQUENCE_LENGTH = 4096

# A function that is called with the number of cached prompt tokens and the number of all
# prompt tokens, before the first chunk and after each chunk.
Progress = Callable[[int, int], None]


def mark_prompt(prompt: str | Sequence[Message], prompt_ids: Sequence[int]) -> None:
    """Record stage 1 of the trace: the text or messages, and their token ids."""
    if isinstance(prompt, str):
        details: dict[str, Any] = {"text": prompt}
    else:
        details = {
            "messages": [{"role": each.role, "content": each.content} for each in prompt]
        }
    mark(1, details={**details, "ids": prompt_ids})


@dataclass(eq=False)
class Call:
    """The call that generates one answer, for as long as its iterator exists.

    Attributes:
        thread: The thread that requested the answer's latest step.
        is_over: Whether the answer no longer needs the engine.
    """

    thread: threading.Thread | None = None
    is_over: bool = False

    def close(self) -> None:
        """Release the engine."""
        self.is_over = True


class Claim:
    """A call's exclusive right to use an engine, until `next` contains a newer claim."""

    def __init__(self, call: Call) -> None:
        self.call = weakref.ref(call)
        self.next = dict[str, Claim]()


class Ownership:
    """Track which call owns an engine.

    The owner is referenced weakly, so the engine becomes free when an answer's iterator
    ends or is garbage-collected. An atomic `setdefault` decides which of several threads
    gets the engine. A `threading.Lock` could stay locked forever after an interrupt, or
    in a process that is forked while another thread holds the lock.
    """

    def __init__(self) -> None:
        self._claim = Claim(Call())

    def take(self, call: Call) -> None:
        """Assign the engine to a call, until another call takes it.

        Raises:
            InferenceError: If a call in another thread owns the engine, or if a newer
                call has ended this one.
        """
        thread = threading.current_thread()
        newest = self._claim
        while newest.next:
            newest = newest.next["claim"]
        owner = newest.call()
        if owner is call and call.thread is thread:
            return  # other threads cannot take the engine while this thread is alive
        if call.thread is not None and owner is not call:
            raise InferenceError("[generate] this answer was ended by a newer call")
        claim = Claim(call)
        is_held = False
        if owner is not None and owner is not call and not owner.is_over:
            holder = owner.thread
            is_held = holder is not None and holder is not thread and holder.is_alive()
        call.thread = thread
        if is_held or newest.next.setdefault("claim", claim) is not claim:
            raise InferenceError("this engine is in use by another thread")
        self._claim = claim


class InferenceEngine:
    """Generate one answer at a time, with one model and one KV cache.

    The cache is kept between prompts. A new prompt is run only from the point at which it
    differs from the previous sequence, and the results are bit-identical to running the
    whole prompt. An iterator of steps may be closed at any point, or an exception thrown
    into it, and the engine remains usable. Only the newest iterator of an engine can
    continue.

    An engine belongs to one call at a time. From its first step to its last step, or
    until its iterator is closed or garbage-collected, an answer belongs to the thread
    that requested its latest step. If another thread starts an answer or calls `reset`
    meanwhile, this raises `InferenceError("this engine is in use by another thread")` and
    has no other effect. A new call in the same thread ends the answer. Engines that share
    a model may run in several threads.

    Args:
        model: The model, which several engines may share.
        sequence_length: The context length. The default is 4096, or the model's maximum
            context length if that is less.
        speculation: Whether a step may check guessed tokens together with the newest one
            if that saves time. The answers are bit-identical.
        draft_model: A smaller model with the same vocabulary that guesses tokens. By
            default, guesses are looked up in the text.
        attention: "fused", or "eager" to run attention as separate ops. The results are
            bit-identical.

    Raises:
        ModelError: If the draft model has another vocabulary.

    Attributes:
        sequence_length: The context length.
        last_stats: The statistics of the last answer, even if it was not completed.
    """

    def __init__(
        self,
        model: Model,
        sequence_length: int | None = None,
        *,
        speculation: bool = True,
        draft_model: Model | None = None,
        attention: str = "fused",
    ) -> None:
        if sequence_length is None:
            sequence_length = min(DEFAULT_SEQUENCE_LENGTH, model.args.max_context_length)
        self.model = model
        self.sequence_length = sequence_length
        self.last_stats: GenerationStats | None = None
        self._pool = LonePool(model, sequence_length, attention)
        self._passes = Passes(self._pool, speculation, draft_model)
        self._ownership = Ownership()

    def __repr__(self) -> str:
        cached = f"{len(self.cached_ids)} of {self.sequence_length} positions cached"
        return f"InferenceEngine({self.model!r}, {cached})"

    @property
    def context(self) -> PooledSequence:
        """The sequence in the KV cache."""
        return self._pool.sequence

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """The tokens whose keys and values are in the cache."""
        return tuple(self.context.ids)

    @cached_property
    def chat_format(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            ChatFormatError: If the model has no template, and its special tokens do not
                match a known format.
            TokenizerError: If the file that contains the chat template is damaged.
            PromptError: If the model has no tokenizer.
        """
        return find_chat_template(self.model.source, self._tokenizer())

    def _tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise PromptError(
                "[chat] model must have a tokenizer: its directory contains none"
            )
        return self.model.tokenizer

    @contextmanager
    def idle_pool(self) -> Iterator[LonePool]:
        """Return a context manager that ends the newest answer and yields the KV cache.

        Other threads cannot use the engine inside the `with` block.

        Raises:
            InferenceError: If another thread is using the engine.
        """
        with closing(Call()) as call:
            self._ownership.take(call)
            yield self._pool

    def reset(self) -> None:
        """Clear the cache.

        Raises:
            InferenceError: If another thread is using the engine.
        """
        with self.idle_pool() as pool:
            pool.clear()

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
        adapters: ScaledAdapters = (),
        interventions: "Interventions" = (),
    ) -> Iterator[Step]:
        """Answer the last message of a conversation.

        See `generate` for the other arguments and exceptions.

        Args:
            messages: `Message` objects, or dicts such as
                `{"role": "user", "content": "hi"}`.
            chat_format: A template, or a key of `CHAT_FORMATS`. The default is the
                model's own template.
            think: See `encode_chat`.

        Raises:
            ChatFormatError: If the messages are invalid or empty; if the format is
                unknown, or does not support the messages or answers without thoughts; or
                if the tokenizer does not have a special token that the format requires.
        """
        tokenizer = self._tokenizer()
        template = self.chat_format if chat_format is None else chat_format
        conversation = as_messages(messages)
        prompt_ids = encode_chat(
            tokenizer, conversation, chat_format=template, think=think
        )
        mark_prompt(conversation, prompt_ids)
        request = Request(
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop,
            end_ids=end_ids(tokenizer, template),
            new_text=True,
            candidates=candidates,
            answer_ids=answer_ids,
            mask=mask,
            adapters=adapters,
            interventions=interventions,
        )
        return self.answer(request, progress)

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
        adapters: ScaledAdapters = (),
        interventions: "Interventions" = (),
    ) -> Iterator[Step]:
        """Generate a continuation of a token sequence.

        All arguments are checked before the first step. A rejected call has no effect.

        Args:
            prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates,
                answer_ids, forced_ids, mask, adapters, interventions: See
                `Request`.
            progress: A function that is called while the prompt is run, or None.

        Yields:
            One step per drawn token. If the model has no tokenizer, all texts are empty
            and no token ends the answer.

        Raises:
            PromptError: If the prompt is empty or a string, a limit is less than 1, or
                the number of candidates is negative.
            TokenIdError: If an id is not an integer or not in the vocabulary.
            ContextFullError: If the prompt leaves no room for a new token.
            CheckpointError: If the weight files were rewritten after they were loaded.
                This is checked again before the last step, so that a corrupt answer does
                not appear to be complete.
            InferenceError: If, during iteration, another thread is using the engine or a
                newer call has ended this answer.
            NumericError: If the logits of a step are not finite.
            InterventionError: If an intervention was made for another model, or is at a
                position outside of the context.
            GrammarError: If the mask for a step cannot be computed.
            NotEnoughMemoryError, TensorError: If memory for a step cannot be allocated.
        """
        request = Request(
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop,
            end_ids=end_ids,
            new_text=new_text,
            candidates=candidates,
            answer_ids=answer_ids,
            forced_ids=forced_ids,
            mask=mask,
            adapters=adapters,
            interventions=interventions,
        )
        return self.answer(request, progress)

    def answer(
        self, request: Request, progress: Progress | None = None
    ) -> Iterator[Step]:
        """Answer a `Request`. See `generate`."""
        answer = Answer(self.model, self.sequence_length, request)
        return self._steps(answer, progress)

    def _steps(self, answer: Answer, progress: Progress | None) -> Iterator[Step]:
        """Run the prompt, and then draw, yield and run tokens until the answer ends."""
        with (
            closing(Call()) as call,
            declared_lack_of_memory("generate", NotEnoughMemoryError),
        ):
            self._ownership.take(call)
            running = self._passes.admit(answer)
            assert running is not None, "a pool for one sequence has room for it"
            self.last_stats = answer.stats
            self._read_prompt(call, running, progress)
            while True:
                assert running.steps is not None, "the prompt is read"
                for step in running.steps:
                    assert step is not None, "without a patience, each mask is waited for"
                    call.is_over = answer.is_over
                    yield step
                    if answer.is_over:
                        return
                    self._ownership.take(call)
                [part] = self._passes.newest_parts([running])
                self._make_pass(running, part)

    def _read_prompt(
        self, call: Call, running: RunningAnswer, progress: Progress | None
    ) -> None:
        """Run the uncached part of the prompt in chunks."""
        total = len(running.answer.ids)
        # Traces always use the same chunk size, so that they do not depend on timing.
        is_watched = progress is not None and not is_on()
        chunk = min(WATCHED_CHUNK, PREFILL_CHUNK) if is_watched else PREFILL_CHUNK
        while (start := len(running.sequence.ids)) < total:
            if progress is not None:
                progress(start, total)
                self._ownership.take(call)  # `progress` may have used the engine
            started = time.perf_counter()
            self._make_pass(running, self._passes.prompt_part(running, chunk))
            if is_watched:
                # The chunk size does not affect the results. Longer chunks are more
                # efficient, because the weights are read less often.
                seconds = max(time.perf_counter() - started, 1e-3)
                parts = int(chunk * WATCHED_SECONDS / seconds) // WATCHED_CHUNK
                chunk = min(max(parts, 1) * WATCHED_CHUNK, PREFILL_CHUNK)
        if progress is not None:
            progress(total, total)

    def _make_pass(self, running: RunningAnswer, part: Part) -> None:
        """Run a part of the answer's sequence, and give the answer the logits."""
        [rows], seconds = self._passes.run([running], [part])
        self._passes.take_rows(running, rows, seconds, None)
