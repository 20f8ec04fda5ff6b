"""A conversation: what was said, what is asked next, and what of it the model sees."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..inference import FoundFormat, InferenceEngine, Message, Step, encode_chat
from ..tokenizer import Tokenizer
from ..trace import mark
from .answer import Answer, statistics_line, stream_answer
from .console import Console
from .errors import UsageError
from .settings import Settings
from .tracing import TraceSwitch


@dataclass(frozen=True)
class Turn:
    """A question and its whole answer."""

    question: str
    answer: str


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
        statistics: write a line of statistics after each answer.
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
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.console = console
        self.settings = settings
        self.trace = trace
        self.system = system
        self.completion = completion
        self._chat_format = chat_format
        self.statistics = statistics
        self.turns: list[Turn] = []
        self.unanswered: str | None = None

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
        return answer

    def undo(self) -> Turn:
        """Take the last question and its answer out of the history and return them.

        Raises:
            UsageError: the history is empty.
        """
        self.unanswered = None
        if not self.turns:
            raise UsageError("there is nothing to take back")
        return self.turns.pop()

    def clear(self) -> None:
        """Forget the history; the system prompt and the settings stay."""
        self.turns.clear()
        self.unanswered = None

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
        """Run one prompt and write its answer and its statistics."""
        self.engine.model.check_unchanged()
        answer = stream_answer(self.console, lambda: self._steps(question, turns))
        stats = self.engine.last_stats
        if self.statistics and stats is not None:
            self.console.note(
                statistics_line(stats, answer.stop_reason, self.engine.sequence_length)
            )
        return answer

    def _steps(self, question: str, turns: list[Turn]) -> Iterator[Step]:
        settings = self.settings
        if self.completion:
            prompt = self._prompt(question, turns)
            mark(1, details={"text": question, "ids": prompt})
            return self.engine.generate(
                prompt, settings.max_tokens, settings.sampling, settings.stop
            )
        return self.engine.chat(
            self.messages(turns, question),
            settings.max_tokens,
            settings.sampling,
            settings.stop,
            chat_format=self.chat_format.name,
        )

    def _prompt(self, question: str, turns: list[Turn]) -> list[int]:
        """Return the token ids that ask a question after a history."""
        if self.completion:
            return self.tokenizer.encode(question, bos=self.tokenizer.adds_bos, eos=False)
        messages = self.messages(turns, question)
        return encode_chat(self.tokenizer, messages, chat_format=self.chat_format.name)
