"""The engine of one chat: run a prompt in chunks, then draw one token at a time."""

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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

# With `progress`, a chunk takes about this time; the first one has WATCHED_CHUNK tokens.
WATCHED_SECONDS = 1.0
WATCHED_CHUNK = 64
DEFAULT_SEQUENCE_LENGTH = 4096

# Called with (prompt tokens in the cache, prompt tokens), before the first chunk and
# after each chunk.
Progress = Callable[[int, int], None]


def mark_prompt(prompt: str | Sequence[Message], prompt_ids: Sequence[int]) -> None:
    """Begin stage 1 of the trace: a text or messages, and their token ids."""
    if isinstance(prompt, str):
        details: dict[str, Any] = {"text": prompt}
    else:
        details = {
            "messages": [{"role": each.role, "content": each.content} for each in prompt]
        }
    mark(1, details={**details, "ids": prompt_ids})


@dataclass(eq=False)
class Call:
    """One answer, while its iterator can continue.

    Attributes:
        thread: The thread that requested its newest step.
        is_over: Whether it no longer needs the engine.
    """

    thread: threading.Thread | None = None
    is_over: bool = False

    def close(self) -> None:
        """Release the engine."""
        self.is_over = True


class Claim:
    """The right of a call to change an engine, until `next` contains a newer claim."""

    def __init__(self, call: Call) -> None:
        self.call = weakref.ref(call)
        self.next = dict[str, Claim]()


class Ownership:
    """The call that an engine belongs to.

    The owner is referenced weakly: the engine becomes free when the iterator of an answer
    ends or is dropped. One atomic `setdefault` decides which of several threads gets the
    engine. A `threading.Lock` would stay locked for ever after an interrupt between its
    last two lines, or in a process that is forked while another thread holds the lock.
    """

    def __init__(self) -> None:
        self._claim = Claim(Call())

    def take(self, call: Call) -> None:
        """Assign the engine to a call, until another call takes it.

        Raises:
            InferenceError: A call of another thread owns the engine, or a newer call has
                ended this call.
        """
        thread = threading.current_thread()
        newest = self._claim
        while newest.next:
            newest = newest.next["claim"]
        owner = newest.call()
        if owner is call and call.thread is thread:
            return  # no other thread takes the engine from a living thread
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
    """Answers prompts with one model and one KV cache: a batch of one.

    The cache is kept between prompts. Of a new prompt, only the part after the common
    prefix with the last sequence is run; the bits equal a run of the whole prompt. An
    iterator of steps may be closed, or an exception thrown into it, at any point; the
    engine stays usable. Only the newest iterator of an engine can continue.

    An engine belongs to one call at a time. From its first step until its last, or until
    its iterator is closed or dropped, an answer belongs to the thread that took its
    newest step. If another thread begins an answer or calls `reset` meanwhile, it gets
    `InferenceError("this engine is in use by another thread")`, and nothing changes. A
    call in the same thread ends the answer. Engines that share a model may run in several
    threads.

    Args:
        model: The model; engines may share it.
        sequence_length: Positions of the context; min(4096, the model's longest) by
            default.
        speculation: Whether a step may check guessed tokens together with the newest one
            if that saves time. The answers are the same, bit for bit.
        draft_model: A smaller model with the same vocabulary that guesses tokens. Without
            it, guesses are looked up in the text.
        attention: "fused", or "eager" for one op per stage of attention, with the same
            bits.

    Raises:
        ModelError: The draft model has another vocabulary.

    Attributes:
        sequence_length: The positions of the context.
        last_stats: The statistics of the last answer, even if it was not finished.
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
        """Find the model's chat template.

        Raises:
            ChatFormatError: The model has no template, and its special tokens belong to
                no format.
            TokenizerError: The file with the chat template is damaged.
            PromptError: The model has no tokenizer.
        """
        return find_chat_template(self.model.source, self._tokenizer())

    def _tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise PromptError(
                "[chat] model must have a tokenizer: its directory holds none"
            )
        return self.model.tokenizer

    @contextmanager
    def idle_pool(self) -> Iterator[LonePool]:
        """End the newest answer and yield its KV cache; reject other threads inside.

        Raises:
            InferenceError: Another thread is using the engine.
        """
        with closing(Call()) as call:
            self._ownership.take(call)
            yield self._pool

    def reset(self) -> None:
        """Forget the cached tokens.

        Raises:
            InferenceError: Another thread is using the engine.
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
    ) -> Iterator[Step]:
        """Answer the last message of a conversation.

        The other arguments and errors are documented at `generate`.

        Args:
            messages: `Message`s, or dicts such as `{"role": "user", "content": "hi"}`.
            chat_format: A template, or a key of `CHAT_FORMATS`; None selects the model's
                own template.
            think: As in `encode_chat`.

        Raises:
            ChatFormatError: The messages are invalid or empty, the format is unknown, it
                cannot express the messages or leave out thoughts, or the tokenizer lacks
                one of its special tokens.
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
    ) -> Iterator[Step]:
        """Continue a sequence of tokens.

        All arguments are checked before the first step. A rejected call changes nothing.

        Args:
            prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates,
                answer_ids, forced_ids, mask: As in `Request`.
            progress: Called while the prompt is run.

        Yields:
            One step per chosen token. Without a tokenizer, the texts are empty and no
            token ends the answer.

        Raises:
            PromptError: The prompt is empty or a text, a limit is below 1, or the number
                of candidates is below 0.
            TokenIdError: An id is not an integer, or outside of the vocabulary.
            ContextFullError: The prompt leaves no room for a token.
            CheckpointError: The weight files were rewritten after they were loaded. This
                is checked again before the last step, so that no spoiled answer ends as
                complete.
            InferenceError: While stepping: another thread is using the engine, or a newer
                call ended this answer.
            NumericError: While stepping: the logits are not finite.
            GrammarError: While stepping: the mask cannot be computed.
            NotEnoughMemoryError, TensorError: While stepping: the system refuses memory.
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
        )
        return self.answer(request, progress)

    def answer(
        self, request: Request, progress: Progress | None = None
    ) -> Iterator[Step]:
        """Return the steps of the answer to a request, as `generate` does."""
        answer = Answer(self.model, self.sequence_length, request)
        return self._steps(answer, progress)

    def _steps(self, answer: Answer, progress: Progress | None) -> Iterator[Step]:
        """Run the prompt; then draw, yield and run tokens until a reason to stop."""
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
        """Run the uncached part of the prompt, and draw from the logits after it."""
        total = len(running.answer.ids)
        # A trace uses chunks of one size, so that it is the same in any window.
        is_watched = progress is not None and not is_on()
        chunk = min(WATCHED_CHUNK, PREFILL_CHUNK) if is_watched else PREFILL_CHUNK
        while (start := len(running.sequence.ids)) < total:
            if progress is not None:
                progress(start, total)
                self._ownership.take(call)  # `progress` may have used the engine
            started = time.perf_counter()
            self._make_pass(running, self._passes.prompt_part(running, chunk))
            if is_watched:
                # The bits do not depend on the size of a chunk. Longer chunks read the
                # weights less often.
                seconds = max(time.perf_counter() - started, 1e-3)
                parts = int(chunk * WATCHED_SECONDS / seconds) // WATCHED_CHUNK
                chunk = min(max(parts, 1) * WATCHED_CHUNK, PREFILL_CHUNK)
        if progress is not None:
            progress(total, total)

    def _make_pass(self, running: RunningAnswer, part: Part) -> None:
        """Run a part of the answer, and let the answer draw from the logits."""
        [rows], seconds = self._passes.run([running], [part])
        self._passes.take_rows(running, rows, seconds, None)
