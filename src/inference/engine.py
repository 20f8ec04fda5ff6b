"""Answers: read a prompt in chunks, then choose and run one token after the other."""

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..checkpoint import CheckpointError
from ..ml.errors import declared_lack_of_memory
from ..model import (
    PREFILL_CHUNK,
    InferenceContext,
    Model,
    NotEnoughMemoryError,
    token_tensor,
)
from ..tokenizer import StreamDecoder
from ..trace import is_on, mark
from .candidates import Choice, explain_choice
from .chat_format import FoundFormat, encode_chat, end_ids, find_chat_format
from .errors import ContextFullError, InferenceError, NumericError, PromptError
from .message import AnyMessage, as_messages
from .sampling import Logits, Sampler, SamplingArgs
from .speculation import Drafter, PassCosts
from .stop_strings import StopStrings

# With `progress`, chunks take about this time; the first has this many tokens.
WATCHED_SECONDS = 1.0
WATCHED_CHUNK = 64
DEFAULT_SEQUENCE_LENGTH = 4096
# How many candidates for a token a trace shows.
TRACED_CANDIDATES = 5

# Called with (prompt tokens in the cache, prompt tokens) before the first chunk and after each.
Progress = Callable[[int, int], None]


@dataclass
class GenerationStats:
    """What one answer took.

    Attributes:
        prompt_tokens: Tokens of the prompt, and of an answer that goes on.
        cached_tokens: How many of them were in the cache already.
        new_tokens: Tokens chosen, the end token included.
        prefill_seconds: Time to run the prompt.
        decode_seconds: Time to choose the tokens and run them; the caller's time between the
            steps is not counted.
        seed: Seed of the sampling.
        drafted_tokens: Tokens that were guessed and run along with the one before them.
        accepted_tokens: How many of them were then drawn: the number of steps that were saved.
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    seed: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class Step:
    """One chosen token.

    Attributes:
        token_id: Its id.
        text: The text that became certain with it; joined over the steps, the answer. Bytes of an
            unfinished character and the possible beginning of a stop string are held back.
        stop_reason: None, or in the last step `eot`, `max tokens`, `stop string` or
            `context full`.
        stats: In the last step, what the answer took.
        choice: How the token was chosen, if candidates were asked for.
    """

    token_id: int
    text: str
    stop_reason: str | None = None
    stats: GenerationStats | None = None
    choice: Choice | None = None


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

    Attributes:
        last_stats: What the last answer took, also when it was not finished.
    """

    def __init__(
        self, model: Model, sequence_length: int | None = None, *, speculation: bool = True
    ) -> None:
        if sequence_length is None:
            sequence_length = min(DEFAULT_SEQUENCE_LENGTH, model.args.max_context_length)
        self.model = model
        self.context = InferenceContext(model.args, sequence_length)
        self.speculation = speculation
        self.last_stats: GenerationStats | None = None
        # Invariant: the cache holds keys and values of these tokens at positions 0, 1, ...
        self._cached_ids: list[int] = []
        # The newest turn, by the number of turns before it; an older one may be left behind.
        self._turns = {0: _Turn(_Call())}
        self._pass_costs = PassCosts()

    def __repr__(self) -> str:
        cached = f"{len(self._cached_ids)} of {self.sequence_length} positions cached"
        return f"InferenceEngine({self.model!r}, {cached})"

    @property
    def sequence_length(self) -> int:
        """Return the positions of the context."""
        return self.context.sequence_length

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """Return the tokens whose keys and values are in the cache."""
        return tuple(self._cached_ids)

    @cached_property
    def chat_format(self) -> FoundFormat:
        """Find the model's chat format.

        Raises:
            ChatFormatError: It is not known.
            TokenizerError: The file with the chat template is damaged.
            PromptError: The model has no tokenizer.
        """
        if self.model.tokenizer is None:
            raise PromptError("[chat] model must have a tokenizer: its directory holds none")
        return find_chat_format(self.model.source_directory, self.model.tokenizer)

    def reset(self) -> None:
        """Forget the cached tokens.

        Raises:
            InferenceError: Another thread is using the engine.
        """
        self._take_turn(_Call())
        self._forget()

    def _forget(self) -> None:
        self._cached_ids = []
        self.context.clear()

    def _take_turn(self, call: "_Call") -> None:
        """Give the engine to a call, until another takes it.

        Which of several threads gets it is decided by one `setdefault`: unlike a lock, that leaves
        nothing to be released, and Ctrl-C may fall before or after any line. A thread whose number
        was outdated by then sees a higher one.

        Raises:
            InferenceError: Another thread is using the engine, or a newer call ended this one.
        """
        newest = max(self._turns)
        if call.turns and call.turns != newest:
            raise InferenceError("[generate] this answer was ended by a newer call")
        before, turn = self._turns.get(newest), _Turn(call)
        is_free = before is not None and (call.turns or before.ends_for_this_thread())
        if not is_free or self._turns.setdefault(newest + 1, turn) is not turn:
            raise InferenceError("this engine is in use by another thread")
        if max(self._turns) != newest + 1:
            del self._turns[newest + 1]
            raise InferenceError("this engine is in use by another thread")
        call.turns = newest + 1
        self._turns.pop(newest, None)

    def chat(
        self,
        messages: Sequence[AnyMessage],
        max_new_tokens: int | None = None,
        sampling: SamplingArgs | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        chat_format: str | None = None,
        candidates: int = 0,
        answer_ids: Sequence[int] = (),
    ) -> Iterator[Step]:
        """Answer the last message of a conversation; arguments and errors as in `generate`.

        Args:
            messages: `Message`s, or dicts such as `{"role": "user", "content": "hi"}`.
            chat_format: A key of `CHAT_FORMATS`; None stands for the model's own.

        Raises:
            ChatFormatError: There are no messages or what is given is none, the format is not
                known or cannot express them, or the tokenizer lacks a special token of it.
        """
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            raise PromptError("[chat] model must have a tokenizer: its directory holds none")
        name = self.chat_format.name if chat_format is None else chat_format
        read = as_messages(messages)
        prompt_ids = encode_chat(tokenizer, read, chat_format=name)
        mark(1, details={"messages": read, "ids": prompt_ids})
        ends = end_ids(tokenizer, name)
        limits = max_new_tokens, sampling, stop
        return self.generate(prompt_ids, *limits, progress, ends, True, candidates, answer_ids)

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
            candidates: How many of the most probable tokens each step tells of, beside the drawn
                one; 0 tells of none, which saves time.
            answer_ids: Tokens of the answer that were drawn before, without an end token: the
                answer goes on after them. Their text comes again, with that of the first step.

        Yields:
            One step per chosen token. Without a tokenizer the texts are empty and no token ends
            the answer.

        Raises:
            PromptError: No prompt, a text in its place, a limit below 1, or a number of candidates
                below 0.
            TokenIdError: Ids that are no whole numbers, or outside of the vocabulary.
            ContextFullError: The prompt leaves no room for a token.
            CheckpointError: The weight files were rewritten since they were loaded; also checked
                before the last step, so that no answer is complete that they may have spoiled.
            InferenceError: While stepping: another thread is using the engine, or a newer call
                ended this answer.
            NumericError: While stepping: the logits are no numbers.
            NotEnoughMemoryError, TensorError: While stepping: the system gives no memory.
        """
        ids = self._checked_prompt(prompt_ids, answer_ids)
        if max_new_tokens is not None:
            _check_whole("max_new_tokens", max_new_tokens, 1)
        _check_whole("candidates", candidates, 0)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if stops and self.model.tokenizer is None:
            raise PromptError("[generate] stop needs a tokenizer: the model's directory holds none")
        self.model.check_unchanged()
        text = _AnswerText(self.model, StopStrings(stops), end_ids, new_text)
        text.begin(answer_ids)
        room = self.sequence_length - len(ids)
        limit = room if max_new_tokens is None else min(room, max_new_tokens)
        at_limit = "max tokens" if limit == max_new_tokens else "context full"
        sampler = Sampler(sampling if sampling is not None else SamplingArgs())
        call = _Call()
        steps = self._steps(call, ids, limit, at_limit, sampler, text, progress, candidates)
        return _declared(call, steps)

    def _checked_prompt(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[int]:
        """Return the tokens to run as a list of ids that the model knows and the context holds."""
        if isinstance(prompt_ids, str | bytes):
            raise PromptError(
                "[generate] prompt_ids must be token ids, such as model.tokenizer.encode(text, "
                f"bos=True, eos=False) gives: got {type(prompt_ids).__name__}"
            )
        if len(prompt_ids) == 0:
            raise PromptError("[generate] prompt_ids must hold at least one token: got none")
        if len(answer_ids):
            prompt_ids = [*prompt_ids, *answer_ids]
        if len(prompt_ids) >= self.sequence_length:
            raise ContextFullError(len(prompt_ids), self.sequence_length)
        ids = token_tensor(prompt_ids, self.model.args.vocab_size)
        mark(2, position=0, T=len(prompt_ids), outputs={"tokens": ids})
        return [int(token) for token in ids.numpy()]

    def _steps(
        self,
        call: "_Call",
        ids: list[int],
        limit: int,
        at_limit: str,
        sampler: Sampler,
        text: "_AnswerText",
        progress: Progress | None,
        candidates: int,
    ) -> Iterator[Step]:
        """Run the prompt, then choose, show and run tokens until a reason to stop."""
        self._take_turn(call)
        stats = GenerationStats(len(ids), self._reusable(ids), 0, 0.0, 0.0, sampler.seed)
        self.last_stats = stats
        started = time.perf_counter()
        logits = self._prefill(ids, stats.cached_tokens, progress)
        sampler.observe(ids)
        drafter = Drafter(ids, self._pass_costs) if self.speculation else None
        stats.prefill_seconds = time.perf_counter() - started
        while True:
            started = time.perf_counter()
            position = len(ids) + stats.new_tokens
            token, choice = self._choose(sampler, logits, position, candidates)
            if is_on():
                self._mark_choice(sampler, logits, token, position)
            sampler.observe((token,))
            stats.new_tokens += 1
            shown, reason = text.push(token)
            if reason is None and stats.new_tokens == limit:
                shown, reason = shown + text.finish(), at_limit
            mark(21, details={"token": token, "text": shown, "stop_reason": reason})
            stats.decode_seconds += time.perf_counter() - started
            if reason is not None:
                self._check_weights()
                call.is_over = True
                yield Step(token, shown, reason, stats, choice)
                return
            yield Step(token, shown, choice=choice)
            self._take_turn(call)
            started = time.perf_counter()
            if drafter is None:
                logits = self._run([token])
            else:
                logits = self._run_drafted(token, drafter, limit - stats.new_tokens - 1, stats)
            stats.decode_seconds += time.perf_counter() - started

    def _choose(
        self, sampler: Sampler, logits: Logits, position: int, candidates: int
    ) -> tuple[int, Choice | None]:
        """Draw a token; forget the cache when the logits show that it holds no numbers."""
        try:
            token = sampler.sample(logits, position)
        except NumericError:
            self._forget()
            raise
        if not candidates:
            return token, None
        return token, explain_choice(sampler, logits, token, position, candidates)

    def _mark_choice(self, sampler: Sampler, logits: Logits, token: int, position: int) -> None:
        """Say how a token was drawn; what was left of the candidates is found for a trace alone."""
        choice = explain_choice(sampler, logits, token, position, TRACED_CANDIDATES)
        mark(
            20,
            position=position,
            inputs={"logits": logits},
            details={
                "sampling": sampler.args, "seed": sampler.seed, "random": sampler.last_random,
                "token": token, "choice": choice,
            },
        )  # fmt: skip

    def _check_weights(self) -> None:
        """Check that the answer was made with the weights as loaded; forget the cache if not."""
        try:
            self.model.check_unchanged()
        except CheckpointError:
            self._forget()
            raise

    def _reusable(self, ids: list[int]) -> int:
        """Return how many tokens of a prompt are cached; its last one always has to be run."""
        most = min(len(ids) - 1, len(self._cached_ids))
        for position in range(most):
            if ids[position] != self._cached_ids[position]:
                return position
        return most

    def _prefill(self, ids: list[int], cached: int, progress: Progress | None) -> Logits:
        """Run the part of the prompt that is not cached; return the logits after its end."""
        del self._cached_ids[cached:]
        is_watched = progress is not None and not is_on()  # a trace shows the same in any window
        chunk = min(WATCHED_CHUNK, PREFILL_CHUNK) if is_watched else PREFILL_CHUNK
        while (start := len(self._cached_ids)) < len(ids):
            if progress is not None:
                progress(start, len(ids))
            started = time.perf_counter()
            logits = self._run(ids[start : start + chunk])
            seconds = time.perf_counter() - started
            self._pass_costs.note_prompt(len(self._cached_ids) - start, seconds)
            if is_watched:
                chunk = _watched_chunk(chunk, seconds)
        if progress is not None:
            progress(len(ids), len(ids))
        return logits

    def _run_drafted(
        self, token: int, drafter: Drafter, most: int, stats: GenerationStats
    ) -> Logits:
        """Return the logits [V] after a drawn token, which may be there already.

        Of a step that checks drafted tokens, only the token that was drawn counts as cached; each
        of the others joins it when it is drawn. So the cache is at any time what it would be
        without drafts. A trace shows one token per step.
        """
        if is_on():
            drafter.observe(token)
            drafter.draft(0)
            return self._run([token])
        started = time.perf_counter()
        row = drafter.observe(token)
        if row is not None:
            stats.accepted_tokens += 1
            self.context.length += 1
            self._cached_ids.append(token)
            return row
        drafted = drafter.draft(most)
        stats.drafted_tokens += len(drafted)
        begun = time.perf_counter()
        logits, rows = self._run_checking(token, drafted) if drafted else (self._run([token]), None)
        drafter.note_step(len(drafted), rows, begun - started, time.perf_counter() - begun)
        return logits

    def _run_checking(self, token: int, drafted: list[int]) -> tuple[Logits, Logits]:
        """Run a token and what may follow it.

        Returns:
            The logits [V] after the token, and those after each of the n others [n, V].
        """
        start_pos = len(self._cached_ids)
        result = self.model.transformer.forward(
            self.context, [token, *drafted], start_pos, all_positions=True
        )
        self.context.length = start_pos + 1
        self._cached_ids.append(token)
        logits: Logits = result.numpy()  # [1 + n, V]
        return logits[0], logits[1:]

    def _run(self, ids: list[int]) -> Logits:
        """Run tokens after the cached ones and return the logits [V] after the last.

        The ids are noted as cached only when the cache holds them: wherever an interrupt falls,
        what is noted is true.
        """
        start_pos = len(self._cached_ids)
        mark(3, position=start_pos, T=len(ids))
        result = self.model.transformer.forward(self.context, ids, start_pos)
        self._cached_ids.extend(ids)
        logits: Logits = result.numpy()[0]  # [1, V] -> [V]
        return logits


class _Call:
    """One answer, for as long as its iterator can go on.

    Attributes:
        turns: How many turns the engine had given before the newest of this call; 0 for none.
        is_over: Whether it needs the engine no more.
    """

    __slots__ = ("__weakref__", "is_over", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.is_over = False


class _Turn:
    """The right of a call to change an engine, from one of its steps to the next.

    The call is held weakly: however its iterator ends, also at an interrupt between any two lines,
    the engine is free when the iterator is gone.
    """

    __slots__ = ("_call", "_thread")

    def __init__(self, call: _Call) -> None:
        self._call = weakref.ref(call)
        self._thread = threading.current_thread()

    def ends_for_this_thread(self) -> bool:
        """Return whether a new call of the calling thread may have the next turn."""
        call = self._call()
        if call is None or call.is_over or not self._thread.is_alive():
            return True
        return self._thread is threading.current_thread()


def _declared(call: _Call, steps: Iterator[Step]) -> Iterator[Step]:
    """Pass steps on; raise a lack of memory as an error of the package; end the call."""
    try:
        with declared_lack_of_memory("generate", NotEnoughMemoryError):
            yield from steps
    finally:
        call.is_over = True


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PromptError(f"[generate] {name} must be a whole number >= {least}: got {value!r}")


def _watched_chunk(chunk: int, seconds: float) -> int:
    """Return the tokens of the next chunk of a prompt, from what the last one took.

    Any chunks give the same bits; longer ones pass over the weights less often.
    """
    wanted = int(chunk * WATCHED_SECONDS / max(seconds, 1e-3)) // WATCHED_CHUNK * WATCHED_CHUNK
    return min(max(wanted, WATCHED_CHUNK), PREFILL_CHUNK)


class _AnswerText:
    """Turns chosen tokens into text and sees when the answer ends."""

    def __init__(
        self, model: Model, stops: StopStrings, end_ids: Collection[int], new_text: bool
    ) -> None:
        tokenizer = model.tokenizer
        self._decoder = None if tokenizer is None else StreamDecoder(tokenizer, first=new_text)
        self._stop_ids = frozenset() if tokenizer is None else model.stop_ids.union(end_ids)
        self._stops = stops
        self._begun = ""

    def begin(self, answer_ids: Sequence[int]) -> None:
        """Take tokens that were drawn before; their text comes with that of the next one."""
        self._begun = "".join([self.push(token)[0] for token in answer_ids])

    def push(self, token: int) -> tuple[str, str | None]:
        """Return the text that became certain with a token, and the reason to stop, if any."""
        begun, self._begun = self._begun, ""
        if token in self._stop_ids:
            return begun + self.finish(), "eot"
        if self._decoder is None:
            return "", None
        shown = begun + self._stops.push(self._decoder.push(token))
        return shown, "stop string" if self._stops.found else None

    def finish(self) -> str:
        """Return the text that was held back: nothing more comes."""
        if self._decoder is None:
            return ""
        return self._stops.push(self._decoder.finish()) + self._stops.finish()
