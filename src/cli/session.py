"""A conversation: what was said, what is asked next, and what of it the model sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from .answer import Answer, statistics_line, stream_answer
from .console import Console
from .errors import UsageError
from .probabilities import choices_text
from .progress import reading_progress
from .record import answer_record
from .settings import Settings
from .tracing import TraceSwitch


@dataclass(frozen=True)
class Turn:
    """A question and its whole answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class LastAnswer:
    """What became of the question that was asked last.

    Attributes:
        answer: what was shown, and why it stopped.
        steps: the tokens that were drawn, with how they were chosen if that was asked for.
        stats: what it took; None if it was interrupted before anything was run.
        settings: those that it was made with.
        first: whether the answer began a text; see `StreamDecoder`.
    """

    answer: Answer
    steps: tuple[Step, ...]
    stats: GenerationStats | None
    settings: Settings
    first: bool


class Session:
    """The state of a chat, or of a series of completions, and the engine that answers.

    The history changes only when an answer is complete. A question that is refused, fails or is
    interrupted leaves no trace in it, so that the next answer is what it would have been; it is
    remembered apart, for `/regen`.

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
        self.candidates = 0
        self.turns: list[Turn] = []
        self.unanswered: str | None = None
        self.attached = ""
        self.last: LastAnswer | None = None

    def ask(self, question: str) -> Answer:
        """Answer a question and add both to the history, unless interrupted.

        Args:
            question: the user's message, or the text to continue.

        Raises:
            CheckpointError: the model's files were changed; nothing can be run any more.
            InferenceError: the engine refuses the prompt or fails; the history is as before.
            OutputError: standard output takes no more.
        """
        self.unanswered = question
        answer = self._answer(question, self.turns)
        if answer.is_complete:
            self.unanswered = None
            self.turns.append(Turn(question, answer.text))
        self._report()
        return answer

    def regenerate(self) -> Answer:
        """Answer again what was interrupted, or else the last question.

        Raises:
            UsageError: nothing was asked yet.
            InferenceError: as `ask`.
        """
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns:
            raise UsageError("there is no question to answer again")
        *before, last = self.turns
        answer = self._answer(last.question, before)
        if answer.is_complete:
            self.turns[-1] = Turn(last.question, answer.text)
        self._report()
        return answer

    def undo(self) -> str:
        """Take the last question and its answer out of the history and return the question.

        One that was interrupted or refused is not in the history; then that one is forgotten.

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
            ContextFullError: so many tokens are as many as the context has positions, or more.
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
        return self._prompt(last.question, before)

    def history_ids(self) -> list[int]:
        """Return the token ids of the history as the model sees them; none when it is empty."""
        if self.completion:
            text = self.turns[-1].question + self.turns[-1].answer if self.turns else ""
            bos = self.tokenizer.adds_bos
            return self.tokenizer.encode(text, bos=bos, eos=False) if text else []
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

    def _answer(self, question: str, turns: list[Turn]) -> Answer:
        """Run one prompt and write its answer."""
        self.engine.model.check_unchanged()
        steps: list[Step] = []

        def noted() -> Iterator[Step]:
            for step in self._steps(question, turns):
                steps.append(step)
                yield step

        settings = self.settings
        self.engine.last_stats = None
        answer = stream_answer(self.console, noted, shows_text=not self.records)
        self.last = LastAnswer(
            answer, tuple(steps), self.engine.last_stats, settings, not self.completion
        )
        return answer

    def _report(self) -> None:
        """Write what the last answer took and how its tokens were chosen, as far as wanted."""
        last = self.last
        if last is None or last.stats is None:  # nothing was run
            return
        if self.records:
            self.console.report_line(
                answer_record(self.engine, last.answer, last.steps, last.stats)
            )
        choices = [step.choice for step in last.steps if step.choice is not None]
        if choices:
            self.console.reply(choices_text(self.tokenizer, choices))
        if self.statistics:
            self.console.aside(
                statistics_line(last.stats, last.answer.stop_reason, self.engine.sequence_length)
            )

    def _steps(self, question: str, turns: list[Turn]) -> Iterator[Step]:
        settings = self.settings
        if self.completion:
            prompt = self._prompt(question, turns)
            mark(1, details={"text": question, "ids": prompt})
            return self.engine.generate(
                prompt,
                settings.max_tokens,
                settings.sampling,
                settings.stop,
                progress=reading_progress(self.console),
                candidates=self.candidates,
            )
        return self.engine.chat(
            self.messages(turns, question),
            settings.max_tokens,
            settings.sampling,
            settings.stop,
            progress=reading_progress(self.console),
            chat_format=self.chat_format.name,
            candidates=self.candidates,
        )

    def _prompt(self, question: str, turns: list[Turn]) -> list[int]:
        """Return the token ids that ask a question after a history."""
        if self.completion:
            return self.tokenizer.encode(question, bos=self.tokenizer.adds_bos, eos=False)
        messages = self.messages(turns, question)
        return encode_chat(self.tokenizer, messages, chat_format=self.chat_format.name)
