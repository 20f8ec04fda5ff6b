"""The slash commands of the chat."""

import argparse
import difflib
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .. import trace
from ..inference import Message
from ..memory import readable_bytes
from ..untrusted import escape_line
from .answer import INTERRUPTED, SETTINGS, canonical, counted, token_table, token_text
from .arguments import EXAMPLES, MOST_CANDIDATES, example_lines
from .console import UsageError, aligned
from .flag_parser import checked
from .loading import model_parts
from .saved_chat import attach_text, load_chat, save_chat
from .session import Session

_QUOTED = 66  # maximum length of a quoted message, so that it fits on one line
_SIMILARITY = 0.6  # minimum similarity of a suggested name
_NOTHING_YET = "the conversation is empty"
_ON_OFF = ("on", "off")
# Names of the commands in other chats (ollama, llama.cpp, llm), and input lines that are
# commands without a slash.
_OTHER_NAMES = {
    **dict.fromkeys(("/bye", "/quit", "exit", "quit"), "/exit"),
    **dict.fromkeys(("/?", "?", "help"), "/help"),
    **dict.fromkeys(("/retry", "/regenerate"), "/regen"),
    "/reset": "/clear",
}
# Settings of ollama's `/set NAME`, with their equivalents here.
_SET_ELSEWHERE = {
    "verbose": "/stats on shows statistics",
    "quiet": "/stats off hides statistics",
    "nothink": "/set think off asks for answers without thoughts",
    "format": "--json-schema at the start constrains the answers",
    "noformat": "--json-schema at the start constrains the answers",
    "history": "the chat keeps typed lines until it ends",
    "nohistory": "the chat keeps typed lines until it ends",
    "wordwrap": "text is wrapped in a terminal, but not in a pipe",
    "nowordwrap": "text is wrapped in a terminal, but not in a pipe",
}
_ONE_WORD = re.compile(r"/[\w?-]*")
_PUNCTUATION = ",.:;!?)'\""
# Explanations by stop reason.
_CAUSES = {
    "eot": "the model drew {drawn}, which ends an answer",
    "max tokens": "{new} drawn, as many as max_tokens allows; /continue goes on",
    "stop string": "the text reached {stops}, which ends an answer",
    "context full": "prompt and answer fill all {positions} positions of the context",
    INTERRUPTED: "Ctrl-C came after {new}; /continue goes on, /regen asks again",
}
_KEYS = (
    ("", ""),
    ('"""', "encloses a message of several lines; a paste needs no quotes"),
    ("Ctrl-C", "stops an answer; /continue resumes it"),
    ("Ctrl-Z", "suspends the chat; fg in the shell resumes it"),
    ("Ctrl-D", "leaves"),
    ("Tab", "completes a command, its argument or the name of a file"),
    ("Up", "recalls typed lines, which are kept in memory, never in a file"),
)


@dataclass(frozen=True)
class Command:
    """A slash command."""

    usage: str  # the arguments as shown in `/help`; empty if there are none
    summary: str
    # Called with the text after the name. If it returns a string, that is the reply.
    run: Callable[[Session, str], object]
    # Completions for the first argument, or a function that returns them. None completes
    # file names.
    words: Collection[str] | Callable[[], Collection[str]] | None = ()
    # Whether leading and trailing whitespace in the argument is kept.
    keeps_blanks: bool = False


def is_command(line: str) -> bool:
    """Return whether a typed line is a command.

    A line that begins with a path is a message. The first word is a path if it is a file
    on this machine, or if other words follow it and it does not resemble a command.
    """
    if line.strip() in _OTHER_NAMES:
        return True
    if not line.startswith("/") or "\n" in line:
        return False
    name, _, rest = line.partition(" ")
    if name in COMMANDS or name in _OTHER_NAMES:
        return True
    path = name.rstrip(_PUNCTUATION)
    if path.strip("/") and ("/" in path[1:] or os.path.lexists(path)):
        return False
    if _suggestion(name):
        return True
    return not rest.strip() and _ONE_WORD.fullmatch(name) is not None


def run_command(session: Session, line: str) -> None:
    """Run a command and print its reply; an error changes nothing."""
    name, _, argument = line.lstrip().partition(" ")
    name = name.strip()
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None:
        raise UsageError(f"unknown command {name}{_suggestion(name)}; /help lists all")
    if not command.keeps_blanks:
        argument = argument.strip()
    if argument and not command.usage:
        raise UsageError(f"usage: {name}, without an argument: got {argument}")
    reply = command.run(session, argument)
    if isinstance(reply, str):
        session.console.reply(reply)


def _suggestion(name: str) -> str:
    """Return a question that suggests commands similar to an unknown name."""
    if canonical(name[1:]) in SETTINGS:
        return f" (did you mean /set {canonical(name[1:])} VALUE?)"
    similar = difflib.get_close_matches(name.lower(), COMMANDS, cutoff=_SIMILARITY)
    return f" (did you mean {' or '.join(similar)}?)" if similar else ""


def _help(_session: Session, _argument: str) -> str:
    rows = [
        (f"{name} {command.usage}", command.summary) for name, command in COMMANDS.items()
    ]
    return "\n".join(aligned([*rows, *_KEYS], "<<"))


def _exit(_session: Session, _argument: str) -> None:
    raise EOFError  # as after Ctrl-D


def _clear(session: Session, _argument: str) -> str:
    session.clear()
    kept = "; the system prompt is kept" if session.system else ""
    return f"conversation cleared{kept}"


def _system(session: Session, argument: str) -> str:
    if session.completion:
        raise UsageError("/system: expected a chat, got --completion")
    if argument:
        session.system = None if argument == '""' else argument
    return f"system prompt: {session.system or 'none'}"


def _undo(session: Session, _argument: str) -> str:
    return f"removed: {escape_line(session.undo(), _QUOTED)}"


def _number(usage: str, argument: str, most: int) -> int:
    try:
        return checked(int, f"1 to {most}", lambda number: 1 <= number <= most)(argument)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"usage: {usage}, which {error}") from None


def _examples(session: Session, argument: str) -> str | None:
    if not argument:
        return "\n".join(example_lines())
    example = EXAMPLES[_number("/examples N", argument, len(EXAMPLES)) - 1]
    session.console.reply(example.description)
    if example.completion and not session.completion:
        session.answer_apart(example.prompt)
    elif session.completion and not example.completion:
        system = Message("system", example.system or "")
        session.answer_apart([system, Message("user", example.prompt)])
    else:
        session.clear()
        session.system = example.system
        session.ask(example.prompt)
        if example.system:
            session.console.note('the system prompt is kept; /system "" removes it')
    return None


def _set(session: Session, argument: str) -> str:
    # ollama's syntax is `/set parameter NAME VALUE`.
    name, _, value = argument.removeprefix("parameter ").partition(" ")
    if name == "system":
        return _system(session, value.strip())
    if name in _SET_ELSEWHERE:
        raise UsageError(f"no setting {name}: {_SET_ELSEWHERE[name]}")
    if value:
        session.settings = session.settings.changed(name, value.strip())
    return session.settings.line(name) if name else "\n".join(session.settings.lines())


def _show(session: Session, argument: str) -> str:
    topic = _OTHER_TOPICS.get(argument, argument)
    if topic == "system":
        return _system(session, "")
    if topic not in _TOPICS:
        raise UsageError(
            f"usage: /show TOPIC, which must be one of {', '.join(_TOPICS)}: got "
            f"{argument or 'nothing'}"
        )
    return _TOPICS[topic](session)


def _tokens(session: Session, argument: str) -> str:
    if not argument:
        raise UsageError("usage: /tokens TEXT: got nothing")
    ids = session.tokenizer.encode(argument, bos=False, eos=False)
    characters = counted(len(argument), "character")
    size = counted(len(argument.encode()), "byte")
    return f"{token_table(session.tokenizer, ids)}, {characters}, {size}"


def _probs(session: Session, argument: str) -> str:
    if argument == "off":
        session.candidates = 0
        return "candidates: off"
    session.candidates = _number("/probs off or /probs K", argument, MOST_CANDIDATES)
    return (
        f"candidates: the {session.candidates} most probable of each new token, after "
        "each step of the sampling; * marks the drawn token"
    )


def _model(session: Session, argument: str) -> str | None:
    from .model_choice import change_model

    return change_model(session, argument)


def _lora(session: Session, argument: str) -> str:
    from .adapters import change_adapters

    return change_adapters(session, argument)


def _branch(session: Session, argument: str) -> str:
    from .branching import branch_last

    return branch_last(session, argument)


def _intervene(session: Session, argument: str) -> str:
    from .interventions import change_interventions

    return change_interventions(session, argument)


def _models(session: Session, argument: str) -> str:
    from .model_list import reply_models

    return reply_models(session, argument)


def _model_names() -> Collection[str]:
    from .model_list import model_names

    return model_names()


def _explore(session: Session, argument: str) -> None:
    from .explore import explore_last

    explore_last(session, argument)


def _trace(session: Session, argument: str) -> str:
    if _parse_switch("/trace", argument, trace.is_on()):
        session.trace.turn_on()
    else:
        trace.stop()
    files = ", ".join(map(str, session.trace.paths.values()))
    return f"trace: {files if trace.is_on() else 'off'}"


def _stats(session: Session, argument: str) -> str:
    session.statistics = _parse_switch("/stats", argument, session.statistics)
    return f"statistics after each answer: {_ON_OFF[not session.statistics]}"


def _parse_switch(command: str, argument: str, is_on: bool) -> bool:
    """Parse "on" or "off"; an empty argument keeps the current value."""
    if argument not in ("", *_ON_OFF):
        raise UsageError(f"usage: {command} [on|off]: got {argument}")
    return argument == "on" if argument else is_on


def _show_params(session: Session) -> str:
    lines = [*session.settings.lines(), f"system prompt: {session.system or 'none'}"]
    if not session.completion:
        template = session.chat_format
        lines.append(f"chat format: {template.name} (by {template.by})")
    if session.candidates:
        lines.append(f"candidates per token: {session.candidates} (/probs)")
    if session.attached:
        lines.append(
            f"text of /read before the next message: {len(session.attached)} characters"
        )
    return "\n".join(lines)


def _show_cache(session: Session) -> str:
    context = session.engine.context
    cached = session.engine.cached_ids
    caches = context.caches
    first = caches[0]
    layers = len(caches)
    layer = first.nbytes // first.capacity
    used = sum(layer * min(len(cached), cache.capacity) for cache in caches)
    rings = [cache for cache in caches if cache.ring_blocks is not None]
    ring = (
        f"rings: {counted(len(rings), 'layer')} with a window, each with the last "
        f"{rings[0].capacity} positions\n"
        if rings
        else ""
    )
    return (
        f"positions: {len(cached)} of {context.sequence_length} hold keys and values\n"
        f"layers: {layers}, each with keys and values of {first.heads} heads of "
        f"{first.head_dim} values in {first.dtype}\n"
        f"{ring}"
        f"bytes: {readable_bytes(used)} in use of "
        f"{readable_bytes(context.nbytes)}; {layers * layer} per position, "
        f"{counted(layers, 'layer')} * {layer}"
    )


_TOPICS: dict[str, Callable[[Session], str]] = {
    "model": lambda s: "\n".join(
        model_parts(s.engine, None if s.completion else s.chat_format)
    ),
    "params": _show_params,
    "prompt": lambda s: s.tokenizer.decode(s.prompt_ids()) or _NOTHING_YET,
    "cache": _show_cache,
    "tokens": lambda s: token_table(s.tokenizer, s.history_ids()) or _NOTHING_YET,
}
# Topics of ollama's `/show`, with their equivalents here.
_OTHER_TOPICS = {"info": "model", "parameters": "params", "template": "prompt"}


def _why(session: Session, _argument: str) -> str:
    """Return why the last answer stopped and how much of the context is used."""
    last = session.last
    if last is None:
        return "no answer yet"
    if (stats := last.stats) is None:
        return (
            "interrupted: Ctrl-C came before the first forward pass; /continue asks the "
            "question again"
        )
    positions = session.engine.sequence_length
    newest = last.ids[-1:]
    prompt = stats.prompt_tokens
    end = stats.prompt_tokens + stats.new_tokens
    cause = _CAUSES[last.stop_reason].format(
        drawn="".join(
            f"{token_text(session.tokenizer, one)} (token {one})" for one in newest
        ),
        new=counted(stats.new_tokens, "token"),
        stops=" or ".join(map(repr, last.settings.stop)),
        positions=positions,
    )
    return (
        f"{last.stop_reason}: {cause}\n"
        f"prompt: {prompt} tokens, {stats.cached_tokens} of them cached, none dropped\n"
        f"context: {end} of {positions} positions at the end of the answer"
    )


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/exit": Command("", "leave; also /bye, /quit, exit or quit", _exit),
    "/clear": Command(
        "", "clear the conversation; keep system prompt and settings", _clear
    ),
    "/regen": Command("", "answer the last question again", lambda s, _: s.regenerate()),
    "/continue": Command(
        "", "resume the last answer, if it was stopped", lambda s, _: s.resume()
    ),
    "/undo": Command("", "remove the last question and its answer", _undo),
    "/system": Command(
        "TEXT", 'set the system prompt; "" removes it; no TEXT prints it', _system
    ),
    "/set": Command(
        "NAME VALUE", "change a setting; without arguments, list all", _set, SETTINGS
    ),
    "/show": Command(
        "TOPIC", "print the model, params, prompt, cache or tokens", _show, _TOPICS
    ),
    "/model": Command(
        "NAME", "continue the chat with another model", _model, _model_names
    ),
    "/models": Command("", "list the models on this machine", _models),
    "/lora": Command(
        "PATH:SCALE",
        "add a LoRA adapter, or change its scale; off: none",
        _lora,
        None,
    ),
    "/intervene": Command(
        "TEXT",
        "change a tensor of the next answers, x[layer 2]=0; off: none",
        _intervene,
    ),
    "/branch": Command(
        "N TOKEN",
        "show how the last answer goes on with another token N",
        _branch,
        (),
        True,
    ),
    "/save": Command("FILE", "write the chat to a file, as JSON", save_chat, None),
    "/load": Command("FILE", "replace this chat with a saved one", load_chat, None),
    "/read": Command(
        "FILE", "put a text file before the next message", attach_text, None
    ),
    "/examples": Command(
        "[N]", "list prompts to try; N asks one in a new chat", _examples
    ),
    "/tokens": Command(
        "TEXT", "print the tokens of a text: ids, bytes, pieces", _tokens, (), True
    ),
    "/probs": Command(
        "K|off", "show K candidates of each new token, step by step", _probs
    ),
    "/explore": Command(
        "[FILE]", "write the last answer as a page (explore.html)", _explore, None
    ),
    "/why": Command("", "explain why the last answer stopped", _why),
    "/trace": Command(
        "[on|off]", "write the shape of every tensor to a log", _trace, _ON_OFF
    ),
    "/stats": Command("[on|off]", "print statistics after each answer", _stats, _ON_OFF),
}
