"""An answer in progress: drawing tokens, decoding their text, and stop conditions."""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..checkpoint import CheckpointError
from ..ml import ScaledAdapters
from ..model import Model, token_list, token_tensor
from ..tokenizer import StreamDecoder, Tokenizer
from ..trace import clock, is_on, mark
from .errors import ContextFullError, GrammarError, NumericError, PromptError
from .request import Request, SlowMask
from .sampling import Choice, Logits, Sampler, SamplingArgs, explain_choice
from .speculation import Drafter, PassCosts

if TYPE_CHECKING:
    from ..model import Interventions

# How many candidates a trace shows per token.
TRACED_CANDIDATES = 5


@dataclass
class GenerationStats:
    """Token counts and timings of one answer.

    Attributes:
        prompt_tokens: The number of prompt tokens, including the earlier tokens of an
            answer that is being continued.
        cached_tokens: The number of prompt tokens that were already in the cache.
        new_tokens: The number of drawn tokens, including the end token.
        prefill_seconds: The time to run the prompt.
        decode_seconds: The time to draw and run tokens, excluding the caller's time
            between steps and the tracing overhead.
        seed: The sampling seed.
        drafted_tokens: The number of guessed tokens that were run together with the token
            before them.
        accepted_tokens: The number of drafted tokens that were then drawn. Each of them
            saves a step.
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
    """One drawn token.

    Attributes:
        token_id: The token's id.
        text: The text that the token completes. The answer is the concatenation of all
            steps' texts. Incomplete characters and possible beginnings of a stop string
            are held back for a later step.
        stop_reason: None, except in the last step: `eot`, `max tokens`, `stop string`,
            `context full` or `time limit`.
        stats: The answer's statistics in the last step, and None before.
        choice: How the token was chosen, if candidates were requested.
    """

    token_id: int
    text: str
    stop_reason: str | None = None
    stats: GenerationStats | None = None
    choice: Choice | None = None


class StopStrings:
    """Forward text up to the first stop string, holding back possible partial matches."""

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                shown = ascii(stop)[:80]
                raise PromptError(
                    f"[generate] stop must contain texts of >= 1 character: got {shown}"
                )
        self.found = False  # whether a stop string has ended the text
        self.held = ""  # text that may be the beginning of a stop string
        self._stops = tuple(stops)

    def push(self, text: str) -> str:
        """Return text that cannot be part of a stop string, and hold back the rest."""
        if self.found:
            return ""
        text = self.held + text
        begins = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        kept = max((overlap(text, stop) for stop in self._stops), default=0)
        end = min(begins, default=len(text) - kept)
        self.found = bool(begins)
        self.held = "" if begins else text[end:]
        return text[:end]


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def _as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """Return an argument as a tuple; raise PromptError if it is not iterable."""
    try:
        return tuple(values)
    except TypeError:
        kind = type(values).__name__
        raise PromptError(f"[generate] {name} must be a sequence: got {kind}") from None


class AnswerText:
    """Convert drawn tokens to text, and detect the end of the answer.

    If the model does not have a tokenizer, all texts are empty, no token ends the answer,
    and stop strings raise PromptError.
    """

    def __init__(
        self, model: Model, stop: Sequence[str], end_ids: Collection[int], new_text: bool
    ) -> None:
        tokenizer = model.tokenizer
        stops = _as_tuple("stop", (stop,) if isinstance(stop, str) else stop)
        if stops and tokenizer is None:
            raise PromptError(
                "[generate] stop needs a tokenizer: the model's directory contains none"
            )
        ends = token_list("[generate] end_ids", [*_as_tuple("end_ids", end_ids)])
        self._stops = StopStrings(stops)
        self._decoder = (
            None if tokenizer is None else StreamDecoder(tokenizer, first=new_text)
        )
        self._stop_ids = frozenset() if tokenizer is None else model.stop_ids.union(ends)

    def push(self, token: int) -> tuple[str, str | None]:
        """Return the text that a token completes, and the stop reason or None."""
        if token in self._stop_ids:
            return self.finish(), "eot"
        if self._decoder is None:
            return "", None
        text = self._stops.push(self._decoder.push(token))
        return text, "stop string" if self._stops.found else None

    def finish(self) -> str:
        """End the answer, and return the text that was held back."""
        if self._decoder is None:
            return ""
        return self._stops.push(self._decoder.finish()) + self._stops.held


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token's text; a partial character is shown as `bytes:\xe2\x80`."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def logprobs_of(
    tokenizer: Tokenizer, choice: Choice, count: int | None
) -> dict[str, Any]:
    """Return a token and the most probable tokens in the format of OpenAI's chat API.

    Each entry also contains its token id. Log probabilities are natural logarithms of the
    model's probabilities. -inf, which JSON cannot represent, is replaced by -9999.
    """
    entries = {
        candidate.token_id: {
            "id": candidate.token_id,
            "token": token_name(tokenizer, candidate.token_id),
            "bytes": list(tokenizer.token_bytes(candidate.token_id)),
            "logprob": max(candidate.log_probability, -9999.0),
        }
        for candidate in choice.candidates
    }
    return entries[choice.token_id] | {"top_logprobs": [*entries.values()][:count]}


@dataclass
class Patience:
    """The time that all requests in a pass together may still wait for their masks."""

    seconds: float

    def waits_for(self, mask: SlowMask) -> bool:
        """Wait for a mask while time remains, and return whether the mask is ready."""
        started = clock()
        is_ready = mask.is_ready(self.seconds)
        self.seconds = max(self.seconds - (clock() - started), 0.0)
        return is_ready


class _Cached(Protocol):
    """A sequence with cached keys and values."""

    def confirm(self, token: int) -> None: ...

    def clear(self) -> None: ...


class Answer:
    """An answer in progress, which draws one token per step from the model's logits.

    The caller runs the forward passes. After running the prompt it calls `begin`, and it
    passes the logits of each pass to `advance`. The next pass then runs `newest` and the
    tokens returned by `draft`.

    Args:
        model: The model that runs the tokens.
        sequence_length: The context length.
        request: The prompt and the settings.

    Attributes:
        request: The argument.
        ids: The prompt tokens, including the earlier tokens of an answer that is being
            continued.
        limit: The maximum number of tokens to draw.
        adapters: The adapters with their factors, without factors of 0.
        interventions: The changes of tensors in the passes of the answer.
        sampler: The sampler that draws the tokens.
        stats: The token counts and timings so far.
        newest: The most recently drawn token.
        is_over: Whether the last step has been made.

    Raises:
        PromptError, TokenIdError, ContextFullError, CheckpointError, InterventionError:
            As in `InferenceEngine.generate`.
    """

    def __init__(self, model: Model, sequence_length: int, request: Request) -> None:
        self.ids = _checked_prompt(model, sequence_length, request)
        most = request.max_new_tokens
        if most is not None:
            check_whole("max_new_tokens", most, 1)
        check_whole("candidates", request.candidates, 0)
        check_whole("prompt_candidates", request.prompt_candidates, 0)
        seconds = math.inf if request.time_limit is None else request.time_limit
        if not seconds > 0:
            raise PromptError(f"[generate] time_limit must be above 0: got {seconds!r}")
        self._deadline = time.monotonic() + seconds
        model.checkpoint.check_unchanged()
        self.request = request
        self.adapters = _checked_adapters(model, request.adapters)
        self.interventions = _checked_interventions(
            model, sequence_length, request.interventions
        )
        self._model = model
        self._slow_mask = request.mask if isinstance(request.mask, SlowMask) else None
        self._text = AnswerText(model, request.stop, request.end_ids, request.new_text)
        # The first step repeats the text of the tokens that were drawn earlier.
        begun = self.ids[len(request.prompt_ids) :]
        self._begun = "".join([self._text.push(token)[0] for token in begun])
        room = sequence_length - len(self.ids)
        self.limit = room if most is None else min(room, most)
        self._at_limit = "max tokens" if self.limit == most else "context full"
        self.sampler = Sampler(request.sampling or SamplingArgs())
        self.sampler.check_vocabulary(model.args.vocab_size)
        self._forced = iter(_checked_forced(model, request.forced_ids))
        self.stats = GenerationStats(len(self.ids), 0, 0, 0.0, 0.0, self.sampler.seed)
        self.newest = -1
        self.is_over = False
        self._cached: _Cached
        self._drafter: Drafter | None = None

    def begin(self, cached: _Cached, drafter: Drafter | None) -> None:
        """Prepare to draw tokens, after the prompt has been run.

        Args:
            cached: The sequence in the cache, which is cleared if an error may have
                corrupted it.
            drafter: The drafter that guesses tokens, or None.
        """
        self._cached = cached
        self._drafter = drafter
        self.sampler.observe(self.ids)

    @property
    def is_late(self) -> bool:
        """Whether the time limit has expired, so that the next step is the last one."""
        return time.monotonic() >= self._deadline

    def advance(
        self, logits: Logits, patience: Patience | None = None
    ) -> Iterator[Step | None]:
        """Draw from the logits [V] after the newest token, then after each drafted token.

        Yields:
            Each step, or None if the mask is not ready and `patience` is exhausted. After
            None, the caller may process other answers and then resume this iterator. If
            `patience` is None, every mask is waited for.

        When a pass checks drafted tokens, only the token before them counts as cached at
        first. A drafted token is confirmed when it is drawn, so the cache always has the
        same contents as without drafts. While a trace is on, nothing is drafted. The last
        step has a stop reason.
        """
        while True:
            while (
                patience is not None
                and self._slow_mask is not None
                and not patience.waits_for(self._slow_mask)
            ):
                yield None
            if self.is_late:
                self.limit = self.stats.new_tokens + 1
                self._at_limit = "time limit"
            started = clock()
            following = None
            try:
                step = self._step(logits)
            except (NumericError, CheckpointError):  # cached values may also be corrupt
                self._cached.clear()
                raise
            if self._drafter is not None and not self.is_over:
                following = self._drafter.observe(self.newest)
            self.stats.decode_seconds += clock() - started
            yield step
            if following is None or is_on():
                return
            self.stats.accepted_tokens += 1
            self._cached.confirm(self.newest)
            logits = following

    def draft(self, costs: PassCosts | None = None, others: int = 0) -> list[int]:
        """Return the drafted tokens for the next pass. See `Drafter.draft`."""
        if self._drafter is None:
            return []
        started = clock()
        most = 0 if is_on() else self.limit - self.stats.new_tokens - 1
        drafted = self._drafter.draft(most, costs, others)
        self.stats.drafted_tokens += len(drafted)
        self.stats.decode_seconds += clock() - started
        return drafted

    def note_pass(self, rows: Logits, seconds: float) -> None:
        """Record a pass with n drafted tokens: its logits [1 + n, V] and its duration."""
        self.stats.decode_seconds += seconds
        if self._drafter is not None:
            self._drafter.note_rows(rows)

    def _step(self, logits: Logits) -> Step:
        """Draw a token, and return its step with the text that the token completes."""
        token, choice = self._choose(logits)
        self.stats.new_tokens += 1
        self.newest = token
        text, reason = self._text.push(token)
        text = self._begun + text
        self._begun = ""
        if reason is None and self.stats.new_tokens == self.limit:
            text = text + self._text.finish()
            reason = self._at_limit
        mark(21, details={"token": token, "text": text, "stop_reason": reason})
        if reason is None:
            return Step(token, text, choice=choice)
        # If a weight file was rewritten meanwhile, the answer may be wrong.
        self._model.checkpoint.check_unchanged()
        self.is_over = True
        return Step(token, text, reason, self.stats, choice)

    def _choose(self, logits: Logits) -> tuple[int, Choice | None]:
        """Draw a token, and return it with its `Choice` if candidates were requested."""
        sampler = self.sampler
        position = len(self.ids) + self.stats.new_tokens
        mask = self.request.mask
        if mask is not None:
            logits = _apply_mask(logits, mask.allowed())
        drawn = sampler.sample(logits, position)
        token = next(self._forced, drawn)
        explained = partial(explain_choice, sampler, logits, token, position)
        candidates = self.request.candidates
        choice = explained(candidates) if candidates else None
        if is_on():
            details = {
                "sampling": sampler.args,
                "seed": sampler.seed,
                "random": sampler.last_random,
                "token": token,
                "choice": explained(TRACED_CANDIDATES),
            }
            if drawn != token:
                details["drawn"] = drawn
            mark(20, position=position, inputs={"logits": logits}, details=details)
        sampler.observe((token,), is_drawn=True)
        if mask is not None:
            mask.accept(token)
        return token, choice


def _apply_mask(logits: Logits, allowed: Any) -> Logits:
    """Return the logits, with -inf for every token that a `TokenMask` forbids.

    The mask may be shorter or longer than the logits. Raise GrammarError if it does not
    allow any token that has a logit.
    """
    if allowed is None:
        return logits
    bits = np.asarray(allowed)
    if bits.dtype != np.bool_:
        bits = np.unpackbits(bits.view(np.uint8), bitorder="little")[
            : logits.size
        ].astype(bool)
    if not bits[: logits.size].any():
        rule = (
            f"an allowed token id must be below the {logits.size} rows of the embeddings"
        )
        raise GrammarError(f"[grammar] {rule}: got none")
    masked = np.full_like(logits, -np.inf)
    np.copyto(masked[: bits.size], logits[: bits.size], where=bits[: logits.size])
    return masked


def _checked_prompt(model: Model, sequence_length: int, request: Request) -> list[int]:
    """Return the tokens to run, checked against the vocabulary and the context length."""
    prompt_ids = request.prompt_ids
    if isinstance(prompt_ids, str | bytes):
        raise PromptError(
            "[generate] prompt_ids must be token ids, such as "
            "model.tokenizer.encode(text, bos=True) gives: got "
            f"{type(prompt_ids).__name__}"
        )
    ids = token_list("[generate] prompt_ids", prompt_ids)
    if not ids:
        raise PromptError(
            "[generate] prompt_ids must contain at least one token: got none"
        )
    ids = ids + token_list("[generate] answer_ids", request.answer_ids)
    if len(ids) >= sequence_length:
        raise ContextFullError(len(ids), sequence_length)
    tokens = token_tensor(ids, model.args.vocab_size)
    mark(2, position=0, T=len(ids), outputs={"tokens": tokens})
    return ids


def _checked_adapters(model: Model, adapters: object) -> ScaledAdapters:
    """Return the adapters of a request, without those whose factor is 0."""
    checked: list[tuple[Any, float]] = []
    for pair in _as_tuple("adapters", adapters):
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        adapter, factor = pair if is_pair else (None, 1.0)
        if getattr(adapter, "args", None) != model.args:
            rule = "adapters must be pairs of an adapter for this model and a factor"
            raise PromptError(f"[generate] {rule}: got {ascii(pair)[:200]}")
        if not isinstance(factor, int | float) or not math.isfinite(factor):
            rule = "the factor of an adapter must be a finite number"
            raise PromptError(f"[generate] {rule}: got {ascii(factor)[:80]}")
        if factor:
            checked.append((adapter, float(factor)))
    return tuple(checked)


def _checked_interventions(
    model: Model, sequence_length: int, interventions: "Interventions"
) -> "Interventions":
    """Return the interventions of a request, whose positions must be in the context."""
    if not interventions:
        return ()
    from ..model.interventions import check_interventions

    checked = check_interventions(model, interventions)
    for intervention in checked:
        intervention.check_positions(sequence_length)
    return checked


def _checked_forced(model: Model, forced_ids: Sequence[int]) -> list[int]:
    """Return the forced tokens, checked against the vocabulary."""
    ids = token_list("[generate] forced_ids", forced_ids)
    return list(token_tensor(ids, model.args.vocab_size).tolist()) if ids else []


def check_whole(name: str, value: object, least: int) -> None:
    """Raise PromptError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PromptError(
            f"[generate] {name} must be a whole number >= {least}: got {value!r}"
        )
