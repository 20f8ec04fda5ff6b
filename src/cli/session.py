"""A conversation: what was said, what is asked next, and what of it the model sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..inference import (
    ContextFullError,
    FoundFormat,
    GenerationStats,
    InferenceEngine,
    Message,
    Step,
    encode_chat,
)
from ..tokenizer import Tokenizer
from ..trace import mark
from .answer import INTERRUPTED, Answer, statistics_line, stream_answer
from .console import Console
from .errors import UsageError
from .probabilities import choices_text
from .progress import reading_progress
from .record import answer_record
from .settings import Settings
from .tracing import TraceSwitch

# Why an answer stopped that can go on.
RESUMABLE = (INTERRUPTED, "max tokens", "context full")


@dataclass(frozen=True)
class Turn:
    """A question and its answer.

    Attributes:
        question: what was asked.
        answer: its text, as far as it came.
        ids: tokens of an answer that can go on; none of one that is whole or was loaded.
    """

    question: str
    answer: str
    ids: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class LastAnswer:
    """What became of the question that was asked last.

    Attributes:
        answer: what was shown, and why it stopped.
        begun: tokens that were drawn before, of an answer that went on.
        steps: the tokens that were drawn, with how they were chosen if that was asked for.
        stats: what it took; None if it was interrupted before anything was run.
        settings: those that it was made with.
        first: whether the answer began a text; see `StreamDecoder`.
    """

    answer: Answer
    begun: tuple[int, ...]
    steps: tuple[Step, ...]
    stats: GenerationStats | None
    settings: Settings
    first: bool

    @property
    def ids(self) -> tuple[int, ...]:
        """Return all tokens of the answer, an end token included."""
        return self.begun + tuple(step.token_id for step in self.steps)


class Session:
    """The state of a chat, or of a series of completions, and the engine that answers.

    An answer that is stopped stays in the history as far as it came, and can go on. A question that
    is refused or fails, or is stopped before its answer begins, leaves no trace in it, so that the
    next answer is what it would have been; it is remembered apart, for `/regen` and `/continue`.

    Args:
        engine: the engine with its model.
        tokenizer: that of the model.
        console: where answers and statistics go.
        settings: sampling, length and stop texts.
        trace: turns the trace on and off.
        system: system prompt, or None.
        completion: continue each text on its own instead of chatting.
        chat_format: the format to write the conversation in; None is the model's own.
        statistics: write a line of statistics after each answer, unless the console is quiet.
        records: write one JSON record for each answer in the place of its text.
        logprobs: of how many tokens each record tells the log-probabilities, beside the drawn one;
            None for none at all.

    Attributes:
        candidates: of how many tokens each answer's report tells; 0 for no report.
        last: the last answer, or None; it may no longer be in the history.
        attached: text that goes before the next question.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: Tokenizer,
        console: Console,
        settings: Settings,
        trace: TraceSwitch,
        *,
        system: str | None = None,
        completion: bool = False,
        chat_format: FoundFormat | None = None,
        statistics: bool = True,
        records: bool = False,
        logprobs: int | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.console = console
        self.settings = settings
        self.trace = trace
        self.system = system
        self.completion = completion
        self._chat_format = chat_format
        self.statistics = statistics and not console.quiet
        self.records = records
        self.logprobs = logprobs
        self.candidates = 0
        self.turns: list[Turn] = []
        self.unanswered: str | None = None
        self.attached = ""
        self.last: LastAnswer | None = None

    def ask(self, question: str) -> Answer:
        """Answer a question and add both to the history.

        Args:
            question: the user's message, or the text to continue.

        Raises:
            CheckpointError: the model's files were changed; nothing can be run any more.
            InferenceError: the engine refuses the prompt or fails; the history is as before.
            OutputError: standard output takes no more.
        """
        self.unanswered = question
        return self._ask(question, self.turns)

    def regenerate(self) -> Answer:
        """Answer again what has no answer yet, or else the last question.

        Raises:
            UsageError: nothing was asked yet.
            InferenceError: as `ask`.
        """
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns:
            raise UsageError("there is no question to answer again")
        *before, last = self.turns
        return self._ask(last.question, before)

    def resume(self) -> Answer:
        """Go on with the last answer, which was stopped; answer a question that has none yet.

        With temperature 0 the answer is what it would have been without the stop.

        Raises:
            UsageError: there is no such answer.
            InferenceError: as `ask`.
        """
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns or not self.turns[-1].ids:
            raise UsageError("there is no answer that was stopped (by Ctrl-C, or at max_tokens)")
        *before, last = self.turns
        return self._ask(last.question, before, last)

    def _ask(self, question: str, before: list[Turn], begun: Turn | None = None) -> Answer:
        """Answer a question after a history; keep both, unless nothing came of it."""
        request = question if self.completion else self.messages(before, question)
        last = self._answer(request, begun)
        if last.ids:
            ids = last.ids if last.answer.stop_reason in RESUMABLE else ()
            self.unanswered = None
            self.turns = [*before, Turn(question, last.answer.text, ids)]
        self._report(last)
        return last.answer

    def undo(self) -> str:
        """Take the last question and its answer out of the history and return the question.

        One that has no answer is not in the history; then that one is forgotten.

        Raises:
            UsageError: nothing was asked.
        """
        if self.unanswered is not None:
            question, self.unanswered = self.unanswered, None
            return question
        if not self.turns:
            raise UsageError("there is nothing to take back")
        return self.turns.pop().question

    def clear(self) -> None:
        """Forget the history and what was attached; the system prompt and the settings stay."""
        self.turns, self.unanswered, self.attached = [], None, ""

    def restore(self, system: str | None, turns: Sequence[Turn], settings: Settings) -> None:
        """Take another conversation and its settings in the place of what there is.

        Args:
            system: system prompt, or None.
            turns: its history.
            settings: its settings.

        Raises:
            ContextFullError: it leaves no room for a question; nothing has changed.
            ChatFormatError: the chat format cannot express it; likewise.
        """
        before = self.system, self.turns, self.settings
        self.system, self.turns, self.settings = system, list(turns), settings
        try:
            self.check_room(len(self.history_ids()))
        except BaseException:  # Ctrl-C as well
            self.system, self.turns, self.settings = before
            raise
        self.unanswered, self.attached, self.last = None, "", None

    def check_room(self, tokens: int) -> None:
        """Refuse what leaves no room for a question and an answer.

        Raises:
            ContextFullError: there are as many tokens as the context has positions, or more.
        """
        if tokens >= self.engine.sequence_length:
            raise ContextFullError(tokens, self.engine.sequence_length)

    def with_attached(self, question: str) -> str:
        """Return a question after the text that was attached to it, which is then used up."""
        attached, self.attached = self.attached, ""
        if not attached:
            return question
        return attached + question if self.completion else f"{attached}\n\n{question}"

    @property
    def chat_format(self) -> FoundFormat:
        """The chat format in use, and what told it.

        Raises:
            ChatFormatError: none was asked for, and the model's own is not known.
        """
        return self.engine.chat_format if self._chat_format is None else self._chat_format

    def prompt_ids(self) -> list[int]:
        """Return the token ids of the last prompt that was answered, as it was sent.

        Before there is one, those of the system message, or none.
        """
        if not self.turns:
            return self.history_ids()
        *before, last = self.turns
        if self.completion:
            return self._text_ids(last.question)
        messages = self.messages(before, last.question)
        return encode_chat(self.tokenizer, messages, chat_format=self.chat_format.name)

    def history_ids(self) -> list[int]:
        """Return the token ids of the history as the model sees them; none when it is empty."""
        if self.completion:
            text = self.turns[-1].question + self.turns[-1].answer if self.turns else ""
            return self._text_ids(text) if text else []
        messages = self.messages(self.turns)
        if not messages:
            return []
        name = self.chat_format.name
        return encode_chat(self.tokenizer, messages, False, name)

    def messages(self, turns: list[Turn], question: str | None = None) -> list[Message]:
        """Return the messages of a conversation.

        Args:
            turns: the history.
            question: what is asked next, or None.
        """
        messages = [] if self.system is None else [Message("system", self.system)]
        for turn in turns:
            messages += [Message("user", turn.question), Message("assistant", turn.answer)]
        if question is not None:
            messages.append(Message("user", question))
        return messages

    def answer_apart(self, request: str | list[Message], line: int | None = None) -> Answer:
        """Answer a text to continue, or a conversation, beside the history, which stays as it is.

        Args:
            request: what to answer.
            line: of the file it comes from, if any, for the record.

        Raises:
            CheckpointError, InferenceError, OutputError: as `ask`.
        """
        last = self._answer(request, None)
        self._report(last, line)
        return last.answer

    def _answer(self, request: str | list[Message], begun: Turn | None) -> LastAnswer:
        """Run one prompt and write its answer, or the rest of one that was begun."""
        self.engine.model.check_unchanged()
        steps: list[Step] = []

        def noted() -> Iterator[Step]:
            for step in self._steps(request, ids):
                steps.append(step)
                yield step

        settings = self.settings
        text, ids = ("", ()) if begun is None else (begun.answer, begun.ids)
        self.engine.last_stats = None
        answer = stream_answer(self.console, noted, shows_text=not self.records, begun=text)
        stats = self.engine.last_stats
        last = LastAnswer(answer, ids, tuple(steps), stats, settings, not self.completion)
        self.last = last
        return last

    def _report(self, last: LastAnswer, line: int | None = None) -> None:
        """Write what an answer took and how its tokens were chosen, as far as wanted."""
        if last.stats is None:  # nothing was run
            return
        choices = [step.choice for step in last.steps if step.choice is not None]
        if self.records:
            self.console.report_line(
                answer_record(
                    self.engine, last.answer, last.ids, last.stats, choices, self.logprobs, line
                )
            )
        if self.candidates and choices:
            self.console.reply(choices_text(self.tokenizer, choices))
        if self.statistics:
            self.console.aside(
                statistics_line(last.stats, last.answer.stop_reason, self.engine.sequence_length)
            )

    def _steps(self, request: str | list[Message], answer_ids: Sequence[int]) -> Iterator[Step]:
        limits = self.settings.max_tokens, self.settings.sampling, self.settings.stop
        progress = reading_progress(self.console)
        candidates = max(self.candidates, 0 if self.logprobs is None else self.logprobs or 1)
        if not isinstance(request, str):
            return self.engine.chat(
                request,
                *limits,
                progress,
                self.chat_format.name,
                candidates,
                answer_ids,
            )
        prompt = self._text_ids(request)
        mark(1, details={"text": request, "ids": prompt})
        return self.engine.generate(
            prompt, *limits, progress, candidates=candidates, answer_ids=answer_ids
        )

    def _text_ids(self, text: str) -> list[int]:
        """Return the token ids of a text that is continued."""
        return self.tokenizer.encode(text, bos=self.tokenizer.adds_bos, eos=False)
