"""A conversation: what was said, what is asked next, and what of it the model sees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..inference import (
    CHAT_FORMATS,
    ContextFullError,
    FoundFormat,
    InferenceEngine,
    Message,
    Step,
    TokenMask,
    encode_chat,
    split_thoughts,
)
from ..tokenizer import Tokenizer
from ..trace import mark
from .answer import (
    INTERRUPTED,
    Answer,
    Settings,
    answer_record,
    choice_table,
    statistics_line,
    stream_answer,
)
from .arguments import Options
from .console import Console, UsageError
from .tracing import TraceSwitch

# Why an answer stopped that can go on.
RESUMABLE = (INTERRUPTED, "max tokens", "context full")


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str  # as far as it came
    # Tokens of an answer that can go on; none of one that is whole or was loaded.
    ids: tuple[int, ...] = field(default=(), compare=False)


@dataclass(eq=False)
class Session:
    """The state of a chat, or of a series of completions, and the engine that answers.

    An answer that is stopped stays in the history as far as it came, and can go on. A question that
    is refused or fails, or is stopped before its answer begins, leaves no trace in it, so that the
    next answer is what it would have been; it is remembered apart, for `/regen` and `/continue`.
    """

    options: Options
    engine: InferenceEngine
    tokenizer: Tokenizer
    console: Console
    settings: Settings
    trace: TraceSwitch
    found_format: FoundFormat | None  # None is the model's own
    # Returns a new mask for one answer, if answers follow a grammar.
    new_mask: Callable[[Sequence[int]], TokenMask] | None = None

    def __post_init__(self) -> None:
        self.system = self.options.system
        self.completion = self.options.completion
        self.statistics = self.options.statistics and not self.console.quiet
        self._records = self.options.json or self.options.jsonl is not None
        self.candidates = 0  # of how many tokens each answer's report tells
        self.turns: list[Turn] = []
        self.unanswered: str | None = None  # the question that has no answer yet
        self.attached = ""  # text that goes before the next question
        self.last: Answer | None = None  # it may no longer be in the history
        self.last_request: str | list[Message] = ""  # what it answered

    def ask(self, question: str) -> Answer:
        """Answer a question and add both to the history.

        Args:
            question: The user's message, or the text to continue.

        Raises:
            CheckpointError: The model's files were changed; nothing can be run any more.
            InferenceError: The engine refuses the prompt or fails; the history is as before.
            OutputError: Standard output takes no more.
        """
        self.unanswered = question
        return self._ask(question, self.turns)

    def regenerate(self) -> Answer:
        """Answer again what has no answer yet, or else the last question.

        Raises:
            UsageError: Nothing was asked yet.
            InferenceError: As `ask`.
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
            UsageError: There is no such answer.
            InferenceError: As `ask`.
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
        answer = self._answer(request, begun)
        if answer.ids:
            ids = answer.ids if answer.stop_reason in RESUMABLE else ()
            self.unanswered = None
            self.turns = [*before, Turn(question, answer.text, ids)]
        self._report(answer)
        return answer

    def undo(self) -> str:
        """Take the last question and its answer out of the history and return the question.

        One that has no answer is not in the history; then that one is forgotten.

        Raises:
            UsageError: Nothing was asked.
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
            system: System prompt, or None.
            turns: Its history.
            settings: Its settings.

        Raises:
            ContextFullError: It leaves no room for a question; nothing has changed.
            ChatFormatError: The chat format cannot express it; nothing has changed.
        """
        before = self.system, self.turns, self.settings
        self.system, self.turns = system, list(turns)
        self.settings = replace(settings, think=self.settings.think)
        try:
            self.check_room(len(self.history_ids()))
        except BaseException:  # Ctrl-C as well
            self.system, self.turns, self.settings = before
            raise
        self.unanswered, self.attached, self.last = None, "", None

    def check_room(self, tokens: int) -> None:
        """Refuse what leaves no room for a question and an answer.

        Raises:
            ContextFullError: There are as many tokens as the context has positions, or more.
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
            ChatFormatError: None was asked for, and the model's own is not known.
        """
        return self.found_format or self.engine.chat_format

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
        name, think = self.chat_format.name, self.settings.think != "off"
        return encode_chat(self.tokenizer, messages, chat_format=name, think=think)

    def history_ids(self) -> list[int]:
        """Return the token ids of the history as the model sees them; none when it is empty."""
        if self.completion:
            text = self.turns[-1].question + self.turns[-1].answer if self.turns else ""
            return self._text_ids(text) if text else []
        messages = self.messages(self.turns)
        if not messages:
            return []
        return encode_chat(self.tokenizer, messages, False, self.chat_format.name)

    def messages(self, turns: list[Turn], question: str | None = None) -> list[Message]:
        """Return the messages of a history, and of what is asked next, if anything is."""
        messages = [] if self.system is None else [Message("system", self.system)]
        for turn in turns:
            messages += [Message("user", turn.question), Message("assistant", turn.answer)]
        if question is not None:
            messages.append(Message("user", question))
        return messages

    def answer_apart(self, request: str | list[Message], line: int | None = None) -> Answer:
        """Answer a text to continue, or a conversation, beside the history, which stays as it is.

        Args:
            request: What to answer.
            line: Of the file it comes from, if any, for the record.

        Raises:
            CheckpointError, InferenceError, OutputError: As `ask`.
        """
        answer = self._answer(request, None)
        self._report(answer, line)
        return answer

    def _answer(self, request: str | list[Message], begun: Turn | None) -> Answer:
        """Run one prompt and write its answer, or the rest of one that was begun."""
        self.engine.last_stats = None
        settings, self.last_request = self.settings, request
        text, ids = ("", ()) if begun is None else (begun.answer, begun.ids)
        hides = settings.think == "hide"
        steps, reason = stream_answer(
            self.console,
            lambda: self._steps(request, ids),
            not self._records,
            text,
            lambda *text: ("", self._split(*text)[1]) if hides else self._split(*text),
        )
        whole = "".join(step.text for step in steps) or text
        stats, parts = self.engine.last_stats, self._split(whole, True)
        self.last = Answer(whole, reason, ids, steps, stats, settings, not self.completion, parts)
        return self.last

    def _split(self, text: str, is_over: bool) -> tuple[str, str]:
        """Part an answer into its thoughts and the rest; a text that is continued has none."""
        if self.completion:
            return "", text
        return split_thoughts(text, CHAT_FORMATS[self.chat_format.name].opens_thought, is_over)

    def _report(self, answer: Answer, line: int | None = None) -> None:
        """Write what an answer took and how its tokens were chosen, as far as wanted."""
        if answer.stats is None:  # nothing was run
            return
        if self._records:
            logprobs = self.options.logprobs
            self.console.report_line(answer_record(self.engine, answer, logprobs, line))
        if self.candidates and answer.choices:
            tables = (choice_table(self.tokenizer, choice) for choice in answer.choices)
            self.console.reply("\n\n".join(tables))
        if self.statistics:
            self.console.aside(
                statistics_line(answer.stats, answer.stop_reason, self.engine.sequence_length)
            )

    def _steps(self, request: str | list[Message], answer_ids: Sequence[int]) -> Iterator[Step]:
        limits = self.settings.max_tokens, self.settings.sampling, self.settings.stop
        progress = self.console.timed_progress("reading the prompt", "tokens")
        logprobs = self.options.logprobs
        candidates = max(self.candidates, 0 if logprobs is None else logprobs or 1)
        mask = None if self.new_mask is None else self.new_mask(answer_ids)
        if not isinstance(request, str):
            name, think = self.chat_format.name, self.settings.think != "off"
            return self.engine.chat(
                request, *limits, progress, name, candidates, answer_ids, think, mask
            )
        prompt = self._text_ids(request)
        mark(1, details={"text": request, "ids": prompt})
        return self.engine.generate(
            prompt, *limits, progress, candidates=candidates, answer_ids=answer_ids, mask=mask
        )

    def _text_ids(self, text: str) -> list[int]:
        """Return the token ids of a text that is continued."""
        return self.tokenizer.encode(text, bos=self.tokenizer.adds_bos, eos=False)
