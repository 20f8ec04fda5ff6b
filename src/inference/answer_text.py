"""What an answer consists of: its steps, and its text up to a stop string or the end token."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..model import Model
from ..tokenizer import StreamDecoder
from .errors import PromptError
from .sampling import Choice


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

    Attributes:
        found: Whether a stop string has been met; nothing is passed on after that.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                shown = ascii(stop)[:80]
                raise PromptError(f"[generate] stop must hold texts of >= 1 character: got {shown}")
        self.found = False
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take more text and return what is certain not to belong to a stop string."""
        if self.found:
            return ""
        text = self._held + text
        begins = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if begins:
            self.found = True
            self._held = ""
            return text[: min(begins)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that begins the stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


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
        thought = thought[: len(thought) - _overlap(thought, _SAID)]
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
