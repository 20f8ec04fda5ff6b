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
from .answer import INTERRUPTED, SETTINGS, canonical, counted, piece, token_table
from .arguments import EXAMPLES, MOST_CANDIDATES, example_lines
from .console import UsageError, aligned
from .flag_parser import checked
from .loading import model_parts
from .saved_chat import attach_text, load_chat, save_chat
from .session import Session

_QUOTED = 66  # characters of a message that is named, so that it stays on a line
_NEAR = 0.6  # how alike a name must be to be suggested
_NOTHING_YET = "nothing was said yet"
_ON_OFF = ("on", "off")
# The names of our commands in other chats (ollama, llama.cpp, llm), and words that are
# commands without a slash if they are the whole line.
_OTHER_NAMES = {
    **dict.fromkeys(("/bye", "/quit", "exit", "quit"), "/exit"),
    **dict.fromkeys(("/?", "?", "help"), "/help"),
    **dict.fromkeys(("/retry", "/regenerate"), "/regen"),
    "/reset": "/clear",
}
# The command that does what `/set NAME` does in ollama.
_SET_ELSEWHERE = {
    "verbose": "/stats on shows statistics",
    "quiet": "/stats off hides statistics",
    "nothink": "/set think off asks for answers without thoughts",
    "format": "--json-schema at the start constrains the answers",
    "noformat": "--json-schema at the start constrains the answers",
    "history": "what was typed is remembered until the chat ends",
    "nohistory": "what was typed is remembered until the chat ends",
    "wordwrap": "a terminal gets wrapped text, a pipe does not",
    "nowordwrap": "a terminal gets wrapped text, a pipe does not",
}
_ONE_WORD = re.compile(r"/[\w?-]*")
_PUNCTUATION = ",.:;!?)'\""
# Why an answer ended, in words.
_CAUSES = {
    "eot": "the model drew {drawn}, which ends an answer",
    "max tokens": "{new} drawn, as many as max_tokens allows; /continue goes on",
    "stop string": "the text came to {stops}, which ends an answer",
    "context full": "prompt and answer filled all {positions} positions of the context",
    INTERRUPTED: "Ctrl-C came after {new}; /continue goes on, /regen asks again",
}
_KEYS = (
    ("", ""),
    ('"""', "around a message of several lines; a paste needs none"),
    ("Ctrl-C", "stops an answer; /continue goes on with it"),
    ("Ctrl-Z", "suspends the chat; fg in the shell goes on"),
    ("Ctrl-D", "leaves"),
    ("Tab", "completes a command, its argument or the name of a file"),
    ("Up", "brings back what was typed; kept in memory, never in a file"),
)


@dataclass(frozen=True)
class Command:
    """One command."""

    usage: str  # its arguments, as `/help` shows them; a command without takes none
    summary: str
    # With the text after its name; a text is its reply.
    run: Callable[[Session, str], object]
    # Its first argument, for completion, or what returns it; None: a file.
    words: Collection[str] | Callable[[], Collection[str]] | None = ()
    keeps_blanks: bool = (
        False  # whether all after the one blank after the name is its argument
    )


def is_command(line: str) -> bool:
    """Return whether what was typed is a command.

    A line that begins with a path is a message: its first word names a file of this
    machine, or it is not the name of a command, nor near to one, and other words follow
    it.
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
    if _near(name):
        return True
    return not rest.strip() and _ONE_WORD.fullmatch(name) is not None


def run_command(session: Session, line: str) -> None:
    """Run a command as it was typed, and reply; after an error of ours nothing has
    changed.
    """
    name, _, argument = line.lstrip().partition(" ")
    name = name.strip()
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None:
        raise UsageError(f"no command {name}{_near(name)}; /help lists them all")
    if not command.keeps_blanks:
        argument = argument.strip()
    if argument and not command.usage:
        raise UsageError(f"{name} takes nothing after it: got {argument}")
    reply = command.run(session, argument)
    if isinstance(reply, str):
        session.console.reply(reply)


def _near(name: str) -> str:
    """Return what may have been meant by a command that there is not."""
    if canonical(name[1:]) in SETTINGS:
        return f": near it /set {canonical(name[1:])} VALUE"
    found = difflib.get_close_matches(name.lower(), COMMANDS, cutoff=_NEAR)
    return f": near it {', '.join(found)}" if found else ""


def _help(_session: Session, _argument: str) -> str:
    rows = [
        (f"{name} {command.usage}", command.summary) for name, command in COMMANDS.items()
    ]
    return "\n".join(aligned([*rows, *_KEYS], "<<"))


def _exit(_session: Session, _argument: str) -> None:
    raise EOFError  # as for Ctrl-D


def _clear(session: Session, _argument: str) -> str:
    session.clear()
    return (
        "the conversation starts "
        f"anew{'; the system prompt stays' if session.system else ''}"
    )


def _system(session: Session, argument: str) -> str:
    if session.completion:
        raise UsageError("there is no system prompt where texts are continued")
    if argument:
        session.system = None if argument == '""' else argument
    return f"system prompt: {session.system or 'none'}"


def _undo(session: Session, _argument: str) -> str:
    return f"taken back: {escape_line(session.undo(), _QUOTED)}"


def _number(wanted: str, argument: str, most: int) -> int:
    try:
        return checked(int, f"1 to {most}", lambda number: 1 <= number <= most)(argument)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{wanted}, which {error}") from None


def _examples(session: Session, argument: str) -> str | None:
    if not argument:
        return "\n".join(example_lines())
    example = EXAMPLES[_number("/examples wants a number", argument, len(EXAMPLES)) - 1]
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
            session.console.note('the system prompt stays; /system "" removes it')
    return None


def _set(session: Session, argument: str) -> str:
    # As ollama has it.
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
            f"/show wants one of {', '.join(_TOPICS)}: got {argument or 'nothing'}"
        )
    return _TOPICS[topic](session)


def _tokens(session: Session, argument: str) -> str:
    if not argument:
        raise UsageError("/tokens wants a text: got nothing")
    ids = session.tokenizer.encode(argument, bos=False, eos=False)
    characters = counted(len(argument), "character")
    size = counted(len(argument.encode()), "byte")
    return f"{token_table(session.tokenizer, ids)}, {characters}, {size}"


def _probs(session: Session, argument: str) -> str:
    if argument == "off":
        session.candidates = 0
        return "candidates: off"
    session.candidates = _number(
        "/probs wants off or a number", argument, MOST_CANDIDATES
    )
    return (
        f"candidates: the {session.candidates} most probable of each new token, after "
        "each step of the sampling; * marks the one drawn"
    )


def _model(session: Session, argument: str) -> str | None:
    from .model_choice import change_model

    return change_model(session, argument)


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
    if _switched("/trace", argument, trace.is_on()):
        session.trace.turn_on()
    else:
        trace.stop()
    files = ", ".join(map(str, session.trace.paths.values()))
    return f"trace: {files if trace.is_on() else 'off'}"


def _stats(session: Session, argument: str) -> str:
    session.statistics = _switched("/stats", argument, session.statistics)
    return f"statistics after each answer: {_ON_OFF[not session.statistics]}"


def _switched(command: str, argument: str, is_on: bool) -> bool:
    """Return what a switch is to be; without an argument it stays as it is."""
    if argument not in ("", *_ON_OFF):
        raise UsageError(f"{command} wants on or off: got {argument}")
    return argument == "on" if argument else is_on


def _show_params(session: Session) -> str:
    lines = [*session.settings.lines(), f"system prompt: {session.system or 'none'}"]
    if not session.completion:
        found = session.chat_format
        lines.append(f"chat format: {found.name} (by {found.by})")
    if session.candidates:
        lines.append(f"candidates shown of each token: {session.candidates} (/probs)")
    if session.attached:
        lines.append(
            f"read, to go before the next message: {len(session.attached)} characters"
        )
    return "\n".join(lines)


def _show_cache(session: Session) -> str:
    context = session.engine.context
    cached = session.engine.cached_ids
    first = context.caches[0]
    layers = len(context.caches)
    position = context.nbytes // first.capacity
    return (
        f"positions: {len(cached)} of {context.sequence_length} hold keys and values\n"
        f"layers: {layers}, each with keys and values of {first.heads} heads of "
        f"{first.head_dim} numbers in {first.dtype}\n"
        f"bytes: {readable_bytes(len(cached) * position)} in use of "
        f"{readable_bytes(context.nbytes)}; {position} a position, "
        f"{counted(layers, 'layer')} * {position // layers}"
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
# The names of the topics in ollama.
_OTHER_TOPICS = {"info": "model", "parameters": "params", "template": "prompt"}


def _why(session: Session, _argument: str) -> str:
    """Tell why the last answer stopped, and how the context stands."""
    last = session.last
    if last is None:
        return "nothing was answered yet"
    if (stats := last.stats) is None:
        return (
            "interrupted: Ctrl-C came before anything was run; /continue asks the "
            "question again"
        )
    positions = session.engine.sequence_length
    newest = last.ids[-1:]
    prompt = stats.prompt_tokens
    end = stats.prompt_tokens + stats.new_tokens
    cause = _CAUSES[last.stop_reason].format(
        drawn="".join(f"{piece(session.tokenizer, one)} (token {one})" for one in newest),
        new=counted(stats.new_tokens, "token"),
        stops=" or ".join(map(repr, last.settings.stop)),
        positions=positions,
    )
    return (
        f"{last.stop_reason}: {cause}\n"
        f"prompt: sent whole, {prompt} tokens, {stats.cached_tokens} of them from the "
        "cache\n"
        f"context: {end} of {positions} positions at the end of the answer"
    )


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/exit": Command("", "leave; also /bye, /quit, exit or quit", _exit),
    "/clear": Command(
        "", "forget the conversation; system prompt and settings stay", _clear
    ),
    "/regen": Command("", "answer the last question again", lambda s, _: s.regenerate()),
    "/continue": Command(
        "", "go on with an answer that was stopped", lambda s, _: s.resume()
    ),
    "/undo": Command("", "take back the last question and its answer", _undo),
    "/system": Command(
        "TEXT", 'set the system prompt; "" removes it; no TEXT shows it', _system
    ),
    "/set": Command(
        "NAME VALUE", "change a setting; no NAME VALUE lists all", _set, SETTINGS
    ),
    "/show": Command(
        "WHAT", "WHAT is model, params, prompt, cache or tokens", _show, _TOPICS
    ),
    "/model": Command("NAME", "go on with another model", _model, _model_names),
    "/models": Command("", "the models on this machine, by their names", _models),
    "/save": Command("FILE", "write the chat to a file, as JSON", save_chat, None),
    "/load": Command(
        "FILE", "go on with a saved chat, in place of this one", load_chat, None
    ),
    "/read": Command(
        "FILE", "put a text file before the next message", attach_text, None
    ),
    "/examples": Command("[N]", "prompts to try; N asks one, in a new chat", _examples),
    "/tokens": Command(
        "TEXT", "the tokens of a text: ids, bytes, pieces", _tokens, (), True
    ),
    "/probs": Command(
        "K|off", "show K candidates of each new token, step by step", _probs
    ),
    "/explore": Command(
        "[FILE]", "the last answer as a page (explore.html)", _explore, None
    ),
    "/why": Command("", "why the last answer stopped", _why),
    "/trace": Command(
        "[on|off]", "write the shape of every tensor to a log", _trace, _ON_OFF
    ),
    "/stats": Command(
        "[on|off]", "a line of statistics after each answer", _stats, _ON_OFF
    ),
}
