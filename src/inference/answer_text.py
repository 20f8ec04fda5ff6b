"""An answer in the making: its tokens, its steps, and its text up to a reason to stop."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..checkpoint import CheckpointError
from ..model import Model, token_tensor
from ..tokenizer import StreamDecoder
from ..trace import clock, is_on, mark
from .errors import ContextFullError, NumericError, PromptError
from .sampling import Choice, Logits, Sampler, SamplingArgs, explain_choice
from .speculation import Drafter, PassCosts

# How many candidates for a token a trace shows.
TRACED_CANDIDATES = 5


@dataclass
class GenerationStats:
    """What one answer took.

    Attributes:
        prompt_tokens: Tokens of the prompt, and of an answer that goes on.
        cached_tokens: How many of them were in the cache already.
        new_tokens: Tokens chosen, the end token included.
        prefill_seconds: Time to run the prompt.
        decode_seconds: Time to choose the tokens and run them; the caller's time between the
            steps is not counted, and neither is what a trace took for itself.
        seed: Seed of the sampling.
        drafted_tokens: Tokens that were guessed and run along with the one before them.
        accepted_tokens: How many of them were then drawn; each saved a step.
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


_THOUGHT, _SAID = "<think>", "</think>"


class StopStrings:
    """Passes text on, except what is, or may still become, a stop string.

    Text that could be the beginning of a stop string is held back until more text decides.
    Of several stop strings, the one that begins first ends the answer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                shown = ascii(stop)[:80]
                raise PromptError(f"[generate] stop must hold texts of >= 1 character: got {shown}")
        self.found = False  # whether one has been met; nothing is passed on after that
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take more text and return what is certain not to belong to a stop string."""
        if self.found:
            return ""
        text = self._held + text
        begins = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if begins:
            self.found, self._held = True, ""
            return text[: min(begins)]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that begins the stop string."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def split_thoughts(text: str, opened: bool = False, is_over: bool = True) -> tuple[str, str]:
    """Return the thoughts that an answer begins with, up to `</think>`, and the rest.

    Args:
        text: The answer as far as it came.
        opened: Whether it begins inside of a thought.
        is_over: Whether no more comes; else what may become a mark is held back.
    """
    begun = text.lstrip()
    if not opened and not begun.startswith(_THOUGHT):
        return "", "" if not is_over and _THOUGHT.startswith(begun) else text
    thought, mark, said = begun.removeprefix(_THOUGHT).partition(_SAID)
    if not mark and not is_over:
        thought = thought[: len(thought) - overlap(thought, _SAID)]
    return thought.strip("\n"), said.lstrip("\n")


class AnswerText:
    """Turns chosen tokens into text and sees when the answer ends.

    Args:
        model: Its tokenizer makes the text; without one, texts are empty and no token ends it.
        stop: Texts that end the answer, or one.
        end_ids: Ids that end it, beside those of the model.
        new_text: Whether the answer begins a text, or goes on from the prompt.
        answer_ids: Tokens that were drawn before; their text comes with that of the next one.

    Raises:
        PromptError: A stop string that is empty or no text, or any without a tokenizer.
    """

    def __init__(
        self,
        model: Model,
        stop: Sequence[str],
        end_ids: Collection[int],
        new_text: bool,
        answer_ids: Sequence[int],
    ) -> None:
        tokenizer = model.tokenizer
        if stop and tokenizer is None:
            raise PromptError("[generate] stop needs a tokenizer: the model's directory holds none")
        self._stops = StopStrings((stop,) if isinstance(stop, str) else stop)
        self._decoder = None if tokenizer is None else StreamDecoder(tokenizer, first=new_text)
        self._stop_ids = frozenset() if tokenizer is None else model.stop_ids.union(end_ids)
        self._begun = ""
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


class TokenMask(Protocol):
    """Says which tokens may come next: a grammar, for one answer."""

    def allowed(self) -> Any:
        """Return which tokens may be drawn now; called once before each draw.

        Returns:
            Bools [V]; or as bits in words of 32, the lowest bit first; or None for all tokens. A
            token that it does not reach is forbidden.
        """

    def accept(self, token_id: int) -> None:
        """Take the token that was drawn."""


class Cached(Protocol):
    """The tokens of a sequence whose keys and values are cached."""

    def confirm(self, token: int) -> None:
        """Count a drafted token as cached, the next one of the last pass."""

    def clear(self) -> None:
        """Forget all tokens."""


class Answer:
    """One answer: draws its tokens from the logits of passes, one step for each, until it ends.

    Whoever runs the passes reads the prompt, calls `begin`, and gives `advance` the logits of each
    pass. After that the next pass is over `newest` and what `draft` returns.

    Args:
        model: The model.
        sequence_length: The positions of its context.
        prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates, answer_ids,
            forced_ids: As in `InferenceEngine.generate`, whose errors are raised.
        mask: Which tokens may be drawn; the logits of all others become -inf.
    """

    def __init__(
        self,
        model: Model,
        sequence_length: int,
        prompt_ids: Sequence[int],
        max_new_tokens: int | None = None,
        sampling: SamplingArgs | None = None,
        stop: Sequence[str] = (),
        end_ids: Collection[int] = (),
        new_text: bool = False,
        candidates: int = 0,
        answer_ids: Sequence[int] = (),
        forced_ids: Sequence[int] = (),
        mask: TokenMask | None = None,
    ) -> None:
        # The tokens of the prompt.
        self.ids = checked_prompt(model, sequence_length, prompt_ids, answer_ids)
        if max_new_tokens is not None:
            check_whole("max_new_tokens", max_new_tokens, 1)
        check_whole("candidates", candidates, 0)
        model.checkpoint.check_unchanged()
        self._model, self._mask, self._candidates = model, mask, candidates
        self._text = AnswerText(model, stop, end_ids, new_text, answer_ids)
        room = sequence_length - len(self.ids)
        # The most tokens to draw.
        self.limit = room if max_new_tokens is None else min(room, max_new_tokens)
        self._at_limit = "max tokens" if self.limit == max_new_tokens else "context full"
        self.sampler = Sampler(sampling if sampling is not None else SamplingArgs(), forced_ids)
        self.stats = GenerationStats(len(self.ids), 0, 0, 0.0, 0.0, self.sampler.seed)
        self.newest, self.is_over = -1, False  # the token that was drawn last
        self._drafter: Drafter | None = None

    def begin(self, cached: Cached, drafter: Drafter | None) -> None:
        """Begin to draw, after the prompt was read.

        Args:
            cached: What forgets its tokens where an error shows that they are wrong.
            drafter: What drafts, if anything.
        """
        self._cached, self._drafter = cached, drafter
        self.sampler.observe(self.ids)

    def end_at_next_step(self, reason: str) -> None:
        """Let the next step be the last one, with a reason."""
        self.limit, self._at_limit = self.stats.new_tokens + 1, reason

    def advance(self, logits: Logits | None) -> Iterator[Step]:
        """Draw the token after the newest one, and those after drafted tokens that were right.

        Of a pass that checks drafted tokens, only the token that was drawn counts as cached; each
        of the others joins it when it is drawn. So the cache is at any time what it would be
        without drafts. A trace shows one token per step.

        Args:
            logits: Those after the newest token [V].

        Yields:
            A step per token; the last one has a reason to stop.
        """
        while logits is not None:
            started = clock()
            step = self._step(logits)
            self.stats.decode_seconds += clock() - started
            yield step
            if self.is_over:
                return
            started = clock()
            logits = None if self._drafter is None else self._drafter.observe(self.newest)
            if is_on():
                logits = None
            if logits is not None:
                self.stats.accepted_tokens += 1
                self._cached.confirm(self.newest)
            self.stats.decode_seconds += clock() - started

    def draft(self, costs: PassCosts | None = None, others: int = 0) -> list[int]:
        """Return what the next pass is to check after the newest token; often nothing.

        Args:
            costs: What passes take from now on; None for no change.
            others: Tokens that the pass checks for other answers.
        """
        if self._drafter is None:
            return []
        most = 0 if is_on() else self.limit - self.stats.new_tokens - 1
        drafted = self._drafter.draft(most, costs, others)
        self.stats.drafted_tokens += len(drafted)
        return drafted

    def note_pass(self, rows: Logits, seconds: float, is_alone: bool = True) -> None:
        """Take what came of a pass.

        Args:
            rows: The logits after the newest token and the n drafted ones [1 + n, V].
            seconds: What it took.
            is_alone: Whether it was for this answer alone; else whoever ran it tells the costs.
        """
        self.stats.decode_seconds += seconds
        if self._drafter is not None and not is_on():
            self.stats.decode_seconds += self._drafter.seconds
            self._drafter.note_step(rows, seconds if is_alone else None)

    def _step(self, logits: Logits) -> Step:
        """Draw a token and say what became certain with it."""
        token, choice = self._choose(logits)
        self.stats.new_tokens += 1
        self.newest = token
        shown, reason = self._text.push(token)
        if reason is None and self.stats.new_tokens == self.limit:
            shown, reason = shown + self._text.finish(), self._at_limit
        mark(21, details={"token": token, "text": shown, "stop_reason": reason})
        if reason is None:
            return Step(token, shown, choice=choice)
        try:  # no answer is complete that weights may have spoiled which were rewritten
            self._model.checkpoint.check_unchanged()
        except CheckpointError:
            self._cached.clear()
            raise
        self.is_over = True
        return Step(token, shown, reason, self.stats, choice)

    def _choose(self, logits: Logits) -> tuple[int, Choice | None]:
        """Draw a token; forget the cache when the logits show that it holds no numbers."""
        sampler, position = self.sampler, len(self.ids) + self.stats.new_tokens
        if self._mask is not None:
            logits = _masked(logits, self._mask.allowed())
        try:
            drawn = sampler.sample(logits, position)
        except NumericError:
            self._cached.clear()
            raise
        token = next(sampler.forced, drawn)
        choice = None
        if self._candidates:
            choice = explain_choice(sampler, logits, token, position, self._candidates)
        if is_on():
            details = {
                "sampling": sampler.args, "seed": sampler.seed, "random": sampler.last_random,
                "token": token,
                "choice": explain_choice(sampler, logits, token, position, TRACED_CANDIDATES),
            }  # fmt: skip
            if drawn != token:
                details["drawn"] = drawn
            mark(20, position=position, inputs={"logits": logits}, details=details)
        sampler.observe((token,), is_drawn=True)
        if self._mask is not None:
            self._mask.accept(token)
        return token, choice


def _masked(logits: Logits, allowed: Any) -> Logits:
    """Return logits with -inf for what a `TokenMask` does not allow."""
    if allowed is None:
        return logits
    bits = np.asarray(allowed)
    if bits.dtype != np.bool_:
        bits = np.unpackbits(bits.view(np.uint8), bitorder="little")[: logits.size].astype(bool)
    masked = np.full_like(logits, -np.inf)
    np.copyto(masked[: bits.size], logits[: bits.size], where=bits[: logits.size])
    return masked


def checked_prompt(
    model: Model, sequence_length: int, prompt_ids: Sequence[int], answer_ids: Sequence[int] = ()
) -> list[int]:
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
    if len(prompt_ids) >= sequence_length:
        raise ContextFullError(len(prompt_ids), sequence_length)
    ids = token_tensor(prompt_ids, model.args.vocab_size)
    mark(2, position=0, T=len(prompt_ids), outputs={"tokens": ids})
    return list(ids.numpy().tolist())


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least a limit."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PromptError(f"[generate] {name} must be a whole number >= {least}: got {value!r}")
