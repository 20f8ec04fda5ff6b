"""A conversation: what was said, what is asked next, and what of it the model sees."""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace

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

# Why an answer stopped that can go on.
RESUMABLE = (INTERRUPTED, "max tokens", "context full")
_DIGITS = 6  # of a time in seconds
# Where turns are dropped: an answer needs an eighth of the context, and what is dropped
# leaves a quarter free. The turns that stay are read again, so this is to be rare.
_NEEDED_SHARE = 8
_FREED_SHARE = 4


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str  # as far as it came
    # Tokens of an answer that can go on; none of one that is whole or was loaded.
    ids: tuple[int, ...] = field(default=(), compare=False)


def messages_of(system: str | None, turns: Sequence[Turn]) -> list[Message]:
    """Return the messages of a conversation."""
    messages = [] if system is None else [Message("system", system)]
    for turn in turns:
        messages += [Message("user", turn.question), Message("assistant", turn.answer)]
    return messages


@dataclass(eq=False)
class Session:
    """The state of a chat, or of a series of completions, and the engine that answers.

    The history holds answers as far as they came. A question whose answer did not begin
    is not in it, so that the next answer is what it would have been; `/regen` and
    `/continue` ask it again.
    """

    options: Options
    engine: InferenceEngine
    tokenizer: Tokenizer
    console: Console
    settings: Settings
    found_format: ChatTemplate | None  # None is the model's own
    # Returns a new mask for one answer, if answers follow a grammar.
    new_mask: Callable[[Sequence[int]], TokenMask] | None

    def __post_init__(self) -> None:
        self.system = self.options.system
        self.completion = self.options.completion
        self.statistics = self.options.statistics and not self.console.quiet
        self._records = self.options.json or self.options.jsonl is not None
        self.candidates = 0  # of how many tokens each answer's report tells
        self.turns: list[Turn] = []
        self.unanswered: str | None = None  # the question that has no answer yet
        self.attached = ""  # text that goes before the next question
        self.last: PrintedAnswer | None = None  # it may no longer be in the history
        self.trace = TraceSwitch(
            self.options, self.console, self.engine, self.found_format
        )
        if self.options.debug_log is not None or self.options.trace_json is not None:
            self.trace.turn_on()

    def ask(self, question: str) -> PrintedAnswer:
        """Answer a message or continue a text.

        After an InferenceError, which rejects the question, the history is as before:
        `/continue`, `/regen` and `/undo` do not see the question.
        """
        before = self.unanswered
        self.unanswered = question
        try:
            return self._ask(question, self.turns)
        except InferenceError:
            self.unanswered = before
            raise

    def ask_with_attached(self, question: str) -> PrintedAnswer:
        """Answer a question after the text that is attached; both stay if they are
        rejected.
        """
        attached = self.attached
        try:
            return self.ask(self.with_attached(question))
        except InferenceError:
            self.attached = attached
            raise

    def regenerate(self) -> PrintedAnswer:
        """Answer again what has no answer yet, or else the last question."""
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns:
            raise UsageError("there is no question to answer again")
        return self._ask(self.turns[-1].question, self.turns[:-1])

    def resume(self) -> PrintedAnswer:
        """Go on with the last answer, which was stopped; answer a question that has none
        yet.
        """
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        if not self.turns or not self.turns[-1].ids:
            raise UsageError(
                "there is no answer that was stopped (by Ctrl-C, or at max_tokens)"
            )
        return self._ask(self.turns[-1].question, self.turns[:-1], self.turns[-1])

    def _ask(
        self, question: str, before: list[Turn], begun: Turn | None = None
    ) -> PrintedAnswer:
        """Answer a question after a history; keep both, unless nothing came of it."""
        before = self._with_room(before, question, begun)
        answer = self._answer(self._asked(before, question), begun)
        if answer.ids:
            ids = answer.ids if answer.stop_reason in RESUMABLE else ()
            self.unanswered = None
            self.turns = [*before, Turn(question, answer.text, ids)]
        self._report(answer)
        return answer

    def _with_room(
        self, before: list[Turn], question: str, begun: Turn | None
    ) -> list[Turn]:
        """Return the turns before a question, without the oldest ones if those are to be
        dropped.

        Raise ContextFullError, and drop no turn, where the question alone does not fit.
        """
        if self.completion or self.settings.overflow != "drop":
            return before
        positions = self.engine.sequence_length
        drawn = 0 if begun is None else len(begun.ids)
        needed = min(positions // _NEEDED_SHARE, self.settings.max_tokens or positions)

        def size(turns: Sequence[Turn]) -> int:
            return len(self._encoded(self._asked(turns, question))) + drawn

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
        """Take back the question without an answer,
        or else the last one and its answer.
        """
        question = self.unanswered
        self.unanswered = None
        if question is None and not self.turns:
            raise UsageError("there is nothing to take back")
        return self.turns.pop().question if question is None else question

    def clear(self) -> None:
        """Forget the history and what was attached; the system prompt and the settings
        stay.
        """
        self.turns = []
        self.unanswered = None
        self.attached = ""

    def restore(
        self, system: str | None, turns: Sequence[Turn], settings: Settings
    ) -> None:
        """Take another conversation and its settings; after any exception nothing has
        changed.
        """
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
        """Take the model of another session, and keep the conversation.

        Args:
            other: A session without a conversation, whose settings count.
            options: What `/show` and a later change of the model begin with.

        Raises:
            ContextFullError: The conversation does not fit its context.
            ChatFormatError: Its chat format is not known, or does not have a message of
                these.
        """
        # The ids of an answer that was stopped belong to the tokenizer that is replaced.
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
        """Return a question after the text that was attached to it, which is then used
        up.
        """
        attached = self.attached
        self.attached = ""
        gap = "" if self.completion or not attached else "\n\n"
        return f"{attached}{gap}{question}"

    @property
    def chat_format(self) -> ChatTemplate:
        """The chat template in use; ChatFormatError if the model has none."""
        return self.found_format or self.engine.chat_format

    def prompt_ids(self) -> list[int]:
        """Return the ids of the last prompt in the history, or else of the system
        message.
        """
        if not self.turns:
            return self.history_ids()
        *before, last = self.turns
        return self._encoded(self._asked(before, last.question))

    def history_ids(self) -> list[int]:
        """Return the token ids of the history as the model sees them; none when it is
        empty.
        """
        text = "".join(turn.question + turn.answer for turn in self.turns[-1:])
        asked = text if self.completion else self.messages(self.turns)
        return self._encoded(asked, False) if asked else []

    def messages(
        self, turns: Sequence[Turn], question: str | None = None
    ) -> list[Message]:
        """Return the messages of a history, and of what is asked next, if anything is."""
        asked = [] if question is None else [Message("user", question)]
        return messages_of(self.system, turns) + asked

    def _asked(self, before: Sequence[Turn], question: str) -> str | list[Message]:
        """Return what is asked after some turns: a text to continue,
        or a conversation.
        """
        return question if self.completion else self.messages(before, question)

    def _encoded(
        self, asked: str | list[Message], opens_answer: bool = True
    ) -> list[int]:
        """Return the ids of a text, or of messages."""
        if isinstance(asked, str):
            return self.tokenizer.encode(asked, bos=self.tokenizer.adds_bos, eos=False)
        think = self.settings.think != "off"
        return encode_chat(self.tokenizer, asked, opens_answer, self.chat_format, think)

    def answer_apart(
        self, asked: str | list[Message], line: int | None = None
    ) -> PrintedAnswer:
        """Answer a prompt as `ask` does, beside the history; its record names a line of a
        file.
        """
        answer = self._answer(asked)
        self._report(answer, line)
        return answer

    def _answer(
        self, asked: str | list[Message], begun: Turn | None = None
    ) -> PrintedAnswer:
        """Run one prompt and write its answer, or the rest of one that was begun."""
        self.engine.last_stats = None
        settings = self.settings
        already, drawn = ("", ()) if begun is None else (begun.answer, begun.ids)

        opened: list[
            bool
        ] = []  # whether the prompt ends inside of a thought, once it is known

        def split(text: str, is_over: bool) -> tuple[str, str]:
            if isinstance(asked, str) or not text:  # a completion has no thoughts
                return "", text
            template = self.chat_format
            if not opened:
                prompt = self._encoded(asked)
                opened.append(opens_thought(self.tokenizer, template, prompt))
            return split_thoughts(text, opened[0], is_over, template.thought_form)

        def visible(text: str, is_over: bool) -> tuple[str, str]:
            thoughts, said = ("", "") if self._records else split(text, is_over)
            return "" if settings.think == "hide" else thoughts, said

        steps, reason = stream_answer(
            self.console, lambda: self._steps(asked, drawn), already, visible
        )
        text = "".join(step.text for step in steps) or already
        ids = (*drawn, *(step.token_id for step in steps))
        self.last = PrintedAnswer(
            asked=asked,
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
        """Write what an answer took and how its tokens were chosen, as far as wanted."""
        if answer.stats is None:  # nothing was run
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
        """Return an answer as JSON on one line in ASCII."""
        numbers = asdict(stats).items()
        most = self.options.logprobs
        record = {
            **({} if line is None else {"line": line}),
            "model": replace_surrogates(str(self.engine.model.source_directory)),
            "text": answer.parts[1],
            **({"thoughts": answer.parts[0]} if answer.parts[0] else {}),
            "token_ids": answer.ids,
            "stop_reason": answer.stop_reason,
            "context_length": self.engine.sequence_length,
            **{
                name: round(v, _DIGITS) if isinstance(v, float) else v
                for name, v in numbers
            },
        }
        if most is not None:
            content = [
                logprobs_of(self.tokenizer, choice, most) for choice in answer.choices
            ]
            record["logprobs"] = {"content": content}
        return json.dumps(record)

    def _steps(
        self, asked: str | list[Message], answer_ids: Sequence[int]
    ) -> Iterator[Step]:
        """Return the steps of an answer, of which some tokens were drawn before."""
        mask = None if self.new_mask is None else self.new_mask(answer_ids)
        prompt_ids = self._encoded(asked)
        settings = self.settings
        logprobs = self.options.logprobs
        is_chat = not isinstance(asked, str)
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
        )
        mark_prompt(asked, prompt_ids)
        progress = self.console.timed_progress("reading the prompt", "tokens")
        return self.engine.answer(request, progress)
