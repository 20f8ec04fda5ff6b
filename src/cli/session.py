"""A conversation: its history, pending question and context window."""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from ..inference import (
    ChatTemplate,
    ContextFullError,
    GenerationStats,
    InferenceEngine,
    InferenceError,
    Message,
    Request,
    Step,
    TokenMask,
    encode_chat,
    end_ids,
    split_thoughts,
)
from ..inference.answer import logprobs_of
from ..inference.chat_encoding import opens_thought
from ..inference.engine import mark_prompt
from ..tokenizer import Tokenizer
from ..untrusted import replace_surrogates
from .answer import (
    INTERRUPTED,
    PrintedAnswer,
    Settings,
    choice_table,
    counted,
    statistics_line,
    stream_answer,
)
from .arguments import Options
from .console import Console, UsageError
from .tracing import TraceSwitch

if TYPE_CHECKING:
    from ..model import Interventions, LoadedAdapter

    ChatAdapters = tuple[tuple[LoadedAdapter, float], ...]

# Stop reasons after which an answer can be resumed.
RESUMABLE = (INTERRUPTED, "max tokens", "context full")
_DIGITS = 6  # decimal places of a time in seconds
# Fractions of the context. An eighth is kept free for an answer; if it is not free, turns
# are dropped until a quarter is free. The remaining turns must be processed again, so
# turns should rarely be dropped.
_NEEDED_SHARE = 8
_FREED_SHARE = 4


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str  # may be incomplete
    # The tokens of an answer that can be resumed. Empty if it is complete or was loaded.
    ids: tuple[int, ...] = field(default=(), compare=False)


def messages_of(system: str | None, turns: Sequence[Turn]) -> list[Message]:
    """Return the messages of a conversation."""
    messages = [] if system is None else [Message("system", system)]
    for turn in turns:
        messages += [Message("user", turn.question), Message("assistant", turn.answer)]
    return messages


@dataclass(eq=False)
class Session:
    """The state of a chat or a series of completions, and the engine that answers.

    The history includes incomplete answers. If an answer did not begin, its question is
    not part of the history and thus does not affect the next answer. `/regen` and
    `/continue` ask it again.
    """

    options: Options
    engine: InferenceEngine
    tokenizer: Tokenizer
    console: Console
    settings: Settings
    found_format: ChatTemplate | None  # None for the model's own template
    # If a grammar constrains the answers, returns a new mask for each answer.
    new_mask: Callable[[Sequence[int]], TokenMask] | None
    # The adapters that are loaded. An adapter with a scale of 0 has no effect.
    adapters: "ChatAdapters" = ()
    # The changes of tensors in the next answers.
    interventions: "Interventions" = ()

    def __post_init__(self) -> None:
        self.system = self.options.system
        self.completion = self.options.completion
        self.statistics = self.options.statistics and not self.console.quiet
        self._records = self.options.json or self.options.jsonl is not None
        self.candidates = 0  # number of candidates to report for each token
        self.turns: list[Turn] = []
        self.unanswered: str | None = None  # a question whose answer did not begin
        self.attached = ""  # text attached by `/read`, which precedes the next question
        self.last: PrintedAnswer | None = None  # it may not be part of the history
        self.trace = TraceSwitch(
            self.options,
            self.console,
            self.engine,
            self.found_format,
            lambda: self.active_adapters,
            lambda: self.interventions,
        )
        if self.options.debug_log is not None or self.options.trace_json is not None:
            self.trace.turn_on()

    def ask(self, question: str) -> PrintedAnswer:
        """Answer a message or continue a text.

        An InferenceError rejects the question and leaves the history unchanged, so that
        `/continue`, `/regen` and `/undo` ignore the question.
        """
        previous = self.unanswered
        self.unanswered = question
        try:
            return self._ask(question, self.turns)
        except InferenceError:
            self.unanswered = previous
            raise

    def ask_with_attached(self, question: str) -> PrintedAnswer:
        """Answer a question with the attached text; keep the text if it is rejected."""
        attached = self.attached
        try:
            return self.ask(self.with_attached(question))
        except InferenceError:
            self.attached = attached
            raise

    def regenerate(self) -> PrintedAnswer:
        """Answer the pending question; without one, answer the last question again."""
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns:
            raise UsageError("/regen: expected a question to answer again, got none")
        return self._ask(self.turns[-1].question, self.turns[:-1])

    def resume(self) -> PrintedAnswer:
        """Resume the last answer if it was stopped, or answer the pending question."""
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns or not self.turns[-1].ids:
            raise UsageError(
                "/continue: expected an answer that was stopped (by Ctrl-C or at "
                "max_tokens), got none"
            )
        return self._ask(self.turns[-1].question, self.turns[:-1], self.turns[-1])

    def _ask(
        self, question: str, before: list[Turn], stopped: Turn | None = None
    ) -> PrintedAnswer:
        """Answer a question after some turns; store both if the answer has any tokens."""
        before = self._with_room(before, question, stopped)
        answer = self._answer(self._prompt_after(before, question), stopped)
        if answer.ids:
            ids = answer.ids if answer.stop_reason in RESUMABLE else ()
            self.unanswered = None
            self.turns = [*before, Turn(question, answer.text, ids)]
        self._report(answer)
        return answer

    def _with_room(
        self, before: list[Turn], question: str, stopped: Turn | None
    ) -> list[Turn]:
        """Return the turns before a question, without the oldest if they must be dropped.

        Raises ContextFullError, and drops no turns, if the question alone does not fit.
        """
        if self.completion or self.settings.overflow != "drop":
            return before
        positions = self.engine.sequence_length
        drawn = 0 if stopped is None else len(stopped.ids)
        needed = min(positions // _NEEDED_SHARE, self.settings.max_tokens or positions)

        def size(turns: Sequence[Turn]) -> int:
            return len(self._encoded(self._prompt_after(turns, question))) + drawn

        alone = size([])
        if alone >= positions:
            raise ContextFullError(alone, positions)
        if not before or size(before) + needed <= positions:
            return before
        kept = before[1:]
        while kept and size(kept) + positions // _FREED_SHARE > positions:
            kept = kept[1:]
        dropped = len(before) - len(kept)
        turns = (
            "the oldest turn is" if dropped == 1 else f"the {dropped} oldest turns are"
        )
        line = f"context full: {turns} dropped, {counted(len(kept), 'turn')} kept"
        self.console.note(line, also_when_quiet=True)
        return kept

    def undo(self) -> str:
        """Remove and return the pending question, or else the last turn's question."""
        question = self.unanswered
        self.unanswered = None
        if question is None and not self.turns:
            raise UsageError("/undo: expected a question to remove, got none")
        return self.turns.pop().question if question is None else question

    def clear(self) -> None:
        """Clear the history and attached text; keep the system prompt and settings."""
        self.turns = []
        self.unanswered = None
        self.attached = ""

    def restore(
        self, system: str | None, turns: Sequence[Turn], settings: Settings
    ) -> None:
        """Replace the conversation and its settings, or change nothing and raise."""
        other = copy(self)
        other.clear()
        other.turns = list(turns)
        other.system = system
        other.last = None
        other.settings = replace(
            settings, think=self.settings.think, overflow=self.settings.overflow
        )
        if (tokens := len(other.history_ids())) >= self.engine.sequence_length:
            raise ContextFullError(tokens, self.engine.sequence_length)
        vars(self).update(vars(other))

    def change_model(self, other: "Session", options: Options) -> None:
        """Adopt another session's model and keep the conversation.

        Args:
            other: A session without a conversation, whose settings are adopted.
            options: The options for the new model.

        Raises:
            ContextFullError: The conversation exceeds the new model's context.
            ChatFormatError: The chat format is unknown, or does not support a message in
                the conversation.
        """
        # The ids of a stopped answer belong to the old model's tokenizer.
        turns = [replace(turn, ids=()) for turn in self.turns]
        other.restore(self.system, turns, other.settings)
        other.unanswered = self.unanswered
        other.attached = self.attached
        other.candidates = self.candidates
        other.statistics = self.statistics
        other.options = options
        other.trace = self.trace
        self.trace.engine = other.engine
        self.trace.chat_format = other.found_format
        vars(self).update(vars(other))

    def with_attached(self, question: str) -> str:
        """Return a question preceded by the attached text, and clear that text."""
        attached = self.attached
        self.attached = ""
        gap = "" if self.completion or not attached else "\n\n"
        return f"{attached}{gap}{question}"

    @property
    def active_adapters(self) -> "ChatAdapters":
        """The adapters that change the next answer."""
        return tuple(pair for pair in self.adapters if pair[1])

    @property
    def chat_format(self) -> ChatTemplate:
        """The chat template in use. Raises ChatFormatError if the model has none."""
        return self.found_format or self.engine.chat_format

    def prompt_ids(self) -> list[int]:
        """Return the ids of the last prompt, or else of the system message."""
        if not self.turns:
            return self.history_ids()
        *before, last = self.turns
        return self._encoded(self._prompt_after(before, last.question))

    def ids_of_question(self, question: str) -> list[int]:
        """Return the ids of the prompt for a question without earlier turns."""
        return self._encoded(self._prompt_after([], question))

    def history_ids(self) -> list[int]:
        """Return the token ids of the history as the model sees them."""
        text = "".join(turn.question + turn.answer for turn in self.turns[-1:])
        prompt = text if self.completion else self.messages(self.turns)
        return self._encoded(prompt, False) if prompt else []

    def messages(
        self, turns: Sequence[Turn], question: str | None = None
    ) -> list[Message]:
        """Return the messages of some turns and of the next question, if given."""
        question_message = [] if question is None else [Message("user", question)]
        return messages_of(self.system, turns) + question_message

    def _prompt_after(self, before: Sequence[Turn], question: str) -> str | list[Message]:
        """Return the prompt for a question: text to continue, or a conversation."""
        return question if self.completion else self.messages(before, question)

    def _encoded(
        self, prompt: str | list[Message], opens_answer: bool = True
    ) -> list[int]:
        """Return the token ids of a prompt."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, bos=self.tokenizer.adds_bos, eos=False)
        think = self.settings.think != "off"
        return encode_chat(self.tokenizer, prompt, opens_answer, self.chat_format, think)

    def answer_apart(
        self, prompt: str | list[Message], line: int | None = None
    ) -> PrintedAnswer:
        """Answer a prompt outside the history; its record contains `line`."""
        answer = self._answer(prompt)
        self._report(answer, line)
        return answer

    def _answer(
        self, prompt: str | list[Message], stopped: Turn | None = None
    ) -> PrintedAnswer:
        """Run a prompt and print its answer, or the rest of a stopped answer."""
        self.engine.last_stats = None
        settings = self.settings
        earlier = stopped or Turn(question="", answer="")

        # Contains whether the prompt ends inside a thought, once this has been computed.
        opened: list[bool] = []

        def split(text: str, is_over: bool) -> tuple[str, str]:
            if isinstance(prompt, str) or not text:  # a completion has no thoughts
                return "", text
            template = self.chat_format
            if not opened:
                prompt_ids = self._encoded(prompt)
                opened.append(opens_thought(self.tokenizer, template, prompt_ids))
            return split_thoughts(text, opened[0], is_over, template.thought_form)

        def visible(text: str, is_over: bool) -> tuple[str, str]:
            thoughts, answer = ("", "") if self._records else split(text, is_over)
            return "" if settings.think == "hide" else thoughts, answer

        steps, reason = stream_answer(
            self.console,
            lambda: self.steps(prompt, earlier.ids, settings),
            earlier.answer,
            visible,
        )
        text = "".join(step.text for step in steps) or earlier.answer
        ids = (*earlier.ids, *(step.token_id for step in steps))
        self.last = PrintedAnswer(
            prompt=prompt,
            settings=settings,
            text=text,
            parts=split(text, True),
            ids=ids,
            stop_reason=reason,
            steps=steps,
            stats=self.engine.last_stats,
        )
        return self.last

    def _report(self, answer: PrintedAnswer, line: int | None = None) -> None:
        """Print the record, candidate tables and statistics, if enabled."""
        if answer.stats is None:  # interrupted before the first forward pass
            return
        if self._records:
            self.console.report(self._record(answer, answer.stats, line))
        if self.candidates and answer.choices:
            tables = (choice_table(self.tokenizer, choice) for choice in answer.choices)
            self.console.reply("\n\n".join(tables))
        if self.statistics:
            length = self.engine.sequence_length
            text = statistics_line(answer.stats, answer.stop_reason, length)
            self.console.note(text, also_when_quiet=True)

    def _record(
        self, answer: PrintedAnswer, stats: GenerationStats, line: int | None
    ) -> str:
        """Return an answer as a JSON object on one line of ASCII."""
        statistics = asdict(stats).items()
        top = self.options.logprobs
        lora = [
            {"name": adapter.name, "scale": scale}
            for adapter, scale in self.active_adapters
        ]
        changes = [each.text for each in self.interventions if each.kind != "record"]
        record = {
            **({} if line is None else {"line": line}),
            "model": replace_surrogates(str(self.engine.model.source_directory)),
            **({"lora": lora} if lora else {}),
            **({"interventions": changes} if changes else {}),
            "text": answer.parts[1],
            **({"thoughts": answer.parts[0]} if answer.parts[0] else {}),
            "token_ids": answer.ids,
            "stop_reason": answer.stop_reason,
            "context_length": self.engine.sequence_length,
            **{
                name: round(value, _DIGITS) if isinstance(value, float) else value
                for name, value in statistics
            },
        }
        if top is not None:
            content = [
                logprobs_of(self.tokenizer, choice, top) for choice in answer.choices
            ]
            record["logprobs"] = {"content": content}
        return json.dumps(record)

    def steps(
        self, prompt: str | list[Message], answer_ids: Sequence[int], settings: Settings
    ) -> Iterator[Step]:
        """Return the steps of an answer; `answer_ids` are its earlier tokens."""
        mask = None if self.new_mask is None else self.new_mask(answer_ids)
        prompt_ids = self._encoded(prompt)
        logprobs = self.options.logprobs
        is_chat = not isinstance(prompt, str)
        request = Request(
            prompt_ids=prompt_ids,
            max_new_tokens=settings.max_tokens,
            sampling=settings.sampling,
            stop=settings.stop,
            end_ids=end_ids(self.tokenizer, self.chat_format) if is_chat else (),
            new_text=is_chat,
            candidates=max(self.candidates, 0 if logprobs is None else logprobs or 1),
            answer_ids=answer_ids,
            mask=mask,
            adapters=self.adapters,
            interventions=self.interventions,
        )
        mark_prompt(prompt, prompt_ids)
        progress = self.console.timed_progress("reading the prompt", "tokens")
        return self.engine.answer(request, progress)
