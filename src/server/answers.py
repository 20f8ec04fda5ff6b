"""Convert request bodies to engine requests, and generated steps to JSON answers."""

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..inference import (
    Choice,
    GrammarError,
    Request,
    SamplingArgs,
    Step,
    SubmittedAnswer,
    ToolCall,
)
from ..inference.answer import logprobs_of, token_name
from ..inference.answer_forms import (
    CallForm,
    ThoughtForm,
    split_calls,
    split_thoughts,
)
from ..inference.call_grammars import grammar_of_calls
from ..inference.chat_encoding import encode_chat, opens_thought
from ..inference.grammars import Grammar, GrammarMask
from .bodies import ChatBody, CompletionBody
from .errors import RequestError, encode, refusal
from .service import Sender, Service

_SECONDS = 600.0  # time limit for an answer, including its time in the queue
# OpenAI's names for the stop reasons. All others become `length`.
_REASONS = {None: None, "eot": "stop", "stop string": "stop"}

_ID_CHARACTERS = string.ascii_letters + string.digits

Chunk = dict[str, Any]


@dataclass
class _ApiAnswer:
    """An API answer: its request to the engine and the tokens generated so far."""

    service: Service
    sender: Sender
    body: ChatBody | CompletionBody
    prompt_ids: Sequence[int]
    sampling: SamplingArgs
    grammar: Grammar | None
    alternatives: int | None  # alternatives per token in `logprobs`; None to omit it
    echo: str | None = None  # the prompt text, if it precedes the answer
    # Set once the grammar has been compiled.
    mask: GrammarMask | None = field(init=False, default=None)
    submitted: SubmittedAnswer = field(init=False)  # set by `submit`
    ids: list[int] = field(init=False, default_factory=list)

    @property
    def candidates(self) -> int:
        """The number of candidates that each step reports."""
        return 0 if self.alternatives is None else max(self.alternatives, 1)

    def submit(self, deliver: Callable[[Step | Exception], object]) -> None:
        """Submit the request to the engine; raise any error of `BatchEngine.submit`."""
        body = self.body
        is_chat = isinstance(self, ChatAnswer)
        request = Request(
            prompt_ids=self.prompt_ids,
            max_new_tokens=1 if body.max_tokens == 0 else body.max_tokens,
            sampling=self.sampling,
            stop=body.stop or (),
            end_ids=self.service.end_ids if is_chat else (),
            new_text=is_chat,
            candidates=self.candidates,
            mask=self.mask,
            time_limit=_SECONDS,
            prompt_candidates=0 if self.echo is None else self.candidates,
            client=self.sender.client,
            prefix_group=self.service.prefix_group(self.sender, body.prompt_cache_key),
            adapters=self.service.adapters_of(body.model, body.lora),
            interventions=self.service.interventions_of(body.interventions),
        )
        self.submitted = self.service.engine.answer(request, deliver)


@dataclass
class ChatAnswer(_ApiAnswer):
    """An answer in a chat."""

    # The prefix of the id, the type of a whole response and the type of a chunk.
    names = "chatcmpl", "chat.completion", "chat.completion.chunk"

    thoughts: ThoughtForm | None = field(kw_only=True)  # None without thoughts
    opened: bool = field(kw_only=True)  # whether the prompt ends inside a thought
    # The syntax of tool calls, or None if calls are not allowed.
    style: CallForm | None = field(kw_only=True)
    _text: str = field(init=False, default="")
    _sent: tuple[str, str, int] = field(init=False, default=("", "", 0))

    def chunk(self, *steps: Step) -> Chunk:
        """Return the text added by the next steps; the first chunk includes the role."""
        self._text += "".join(step.text for step in steps)
        reason = _REASONS.get(steps[-1].stop_reason, "length")
        thought = ""
        answer = self._text
        calls = list[ToolCall]()
        if self.thoughts is not None:
            is_over = reason is not None
            thought, answer = split_thoughts(answer, self.opened, is_over, self.thoughts)
        if self.style is not None:
            answer, calls = split_calls(self.style, answer, reason is not None)
        old_thought, old_answer, old_calls = self._sent
        self._sent = thought, answer, len(calls)
        delta: Chunk = {"role": "assistant"} if len(self.ids) == len(steps) else {}
        delta["content"] = answer[len(old_answer) :]
        if len(thought) > len(old_thought):
            delta["reasoning_content"] = thought[len(old_thought) :]
        if len(calls) > old_calls:
            delta["tool_calls"] = [
                {
                    "index": index,
                    "id": _call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(calls)
                if index >= old_calls
            ]
        logprobs = None
        if self.alternatives is not None:
            content = [
                logprobs_of(self.service.tokenizer, step.choice, self.alternatives)
                for step in steps
                if step.stop_reason != "eot" and step.choice is not None
            ]
            logprobs = {"content": content}
        reason = "tool_calls" if calls and reason == "stop" else reason
        return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def choice(self, *steps: Step) -> Chunk:
        """Return the message of all steps, for a response that is not streamed."""
        whole = self.chunk(*steps)
        message = whole.pop("delta") | {"refusal": None}
        if "tool_calls" in message:
            message["content"] = message["content"] or None
            for call in message["tool_calls"]:
                del call["index"]
        return {"message": message} | whole


class TextAnswer(_ApiAnswer):
    """A completion."""

    names = "cmpl", "text_completion", "text_completion"
    _offset = 0

    def chunk(self, *steps: Step) -> Chunk:
        """Return the text added by the next steps; the first chunk includes the echo."""
        text = ""
        tokens = list[tuple[int, Choice | None]]()
        if len(self.ids) == len(steps) and self.echo is not None:
            text = self.echo
            tokens += zip(
                self.prompt_ids, self.submitted.prompt_choices or (), strict=False
            )
        if self.body.max_tokens != 0:
            text += "".join(step.text for step in steps)
            tokens += [(s.token_id, s.choice) for s in steps if s.stop_reason != "eot"]
        logprobs = None if self.alternatives is None else self._logprobs(tokens)
        reason = _REASONS.get(steps[-1].stop_reason, "length")
        return {"text": text, "logprobs": logprobs, "finish_reason": reason}

    choice = chunk

    def _logprobs(self, tokens: list[tuple[int, Choice | None]]) -> Chunk:
        """Return lists with one entry per token; the first prompt token has no choice."""
        tokenizer = self.service.tokenizer
        names = "tokens", "token_logprobs", "top_logprobs", "text_offset"
        entries = list[tuple[Any, ...]]()
        for token, choice in tokens:
            name = token_name(tokenizer, token)
            entry = choice and logprobs_of(tokenizer, choice, self.alternatives)
            top = entry and {
                each["token"]: each["logprob"] for each in entry["top_logprobs"]
            }
            entries.append((name, entry and entry["logprob"], top, self._offset))
            # The text might not contain the begin-of-text token.
            if choice is not None or (self.echo or "").startswith(name):
                self._offset += len(name)
        return {
            name: [row[column] for row in entries] for column, name in enumerate(names)
        }


def _call_id() -> str:
    """Return a new call id of nine letters and digits, as Mistral's templates require."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


HttpAnswer = ChatAnswer | TextAnswer


def chat_answers(service: Service, sender: Sender, body: ChatBody) -> list[HttpAnswer]:
    """Return the answers to a chat request, given its body."""
    if (chat := service.chat_format) is None:
        text = (
            "messages: expected a model with a chat format, got none: use /v1/completions"
        )
        raise RequestError(400, text, "messages", "unsupported")
    messages = [message.as_message() for message in body.messages]
    tools, callable_ones = body.offered_tools()
    documents = body.documents or []
    arguments = body.chat_template_kwargs or {}
    texts = [message.content + message.reasoning for message in messages]
    texts += [encode(value).decode() for value in (*tools, *documents, arguments)]
    service.check_length("".join(texts), "messages")
    style = chat.call_form if callable_ones else None
    calls = None
    is_required = body.tool_choice not in (None, "auto")
    if callable_ones and style is None and is_required:
        text = (
            "tool_choice: expected auto, because the call form of this model is unknown"
        )
        raise RequestError(400, text, "tool_choice", "unsupported")
    if style is not None and (is_required or not style.follows_tokens):
        many = body.parallel_tool_calls
        special_ids = service.tokenizer.special_tokens
        calls = grammar_of_calls(
            style, callable_ones, is_required, many is not False, special_ids
        )
    think = body.reasoning_effort != "none"
    if not think and not chat.can_leave_out_thoughts:
        text = (
            "reasoning_effort: expected a value that allows thoughts, because the format "
            f'{chat.name} always has them, got "none"'
        )
        raise RequestError(400, text, "reasoning_effort", "unsupported")
    ids = encode_chat(
        service.tokenizer,
        messages,
        chat_format=chat,
        think=think,
        tools=tools,
        documents=documents,
        template_args=arguments,
    )
    top = (body.top_logprobs or 0) if body.logprobs else None
    opened = opens_thought(service.tokenizer, chat, ids)
    thoughts = chat.thought_form if body.response_format is None else None
    grammar = _grammar(service, body, calls)
    return [
        ChatAnswer(
            service,
            sender,
            body,
            ids,
            sampling,
            grammar,
            top,
            thoughts=thoughts,
            opened=opened,
            style=style,
        )
        for sampling in body.sampling(service.sampling)
    ]


def text_answers(
    service: Service, sender: Sender, body: CompletionBody
) -> list[HttpAnswer]:
    """Return the answers to the body of a completion request."""
    answers = list[HttpAnswer]()
    tokenizer = service.tokenizer
    grammar = _grammar(service, body)
    for prompt in body.prompts():
        if isinstance(prompt, str):
            service.check_length(prompt, "prompt")
            ids = tokenizer.encode(prompt, bos=tokenizer.adds_bos, eos=False)
            text = prompt
        else:
            ids = prompt
            text = tokenizer.decode(prompt)
        echo = text if body.echo else None
        answers += [
            TextAnswer(service, sender, body, ids, sampling, grammar, body.logprobs, echo)
            for sampling in body.sampling(service.sampling)
        ]
    return answers


def _grammar(
    service: Service, body: ChatBody | CompletionBody, calls: str | None = None
) -> Grammar | None:
    """Return the grammar for all answers to a body, or None without a constraint."""
    try:
        if body.response_format is not None:
            return body.response_format.as_grammar()
        return None if calls is None else Grammar("lark", calls)
    except GrammarError as error:
        raise refusal(error, service.log, grammar_param(body)) from None


def grammar_param(body: ChatBody | CompletionBody) -> str:
    """Return the name of the field that defines the grammar."""
    return "tools" if body.response_format is None else "response_format"
