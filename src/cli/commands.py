"""The slash commands of the chat."""

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..inference import Message
from .arguments import MOST_CANDIDATES
from .conversation_files import attach_text, load_chat, save_chat
from .errors import UsageError
from .examples import EXAMPLES, example_lines
from .session import Session
from .settings import SETTING_NAMES, canonical
from .show import TOPICS, topic_text
from .token_text import token_table
from .values import positive_integer
from .why import why_text
from .words import counted

_NEAR = 0.6  # how alike a name must be to be suggested
_EMPTY = '""'
_ON_OFF = ("on", "off")
# How other chats call them: ollama, llm.
_OTHER_NAMES = {"/?": "/help", **dict.fromkeys(("/bye", "/quit", "exit", "quit"), "/exit")}


class LeaveChat(Exception):  # noqa: N818 - leaving is not an error
    """The chat ends here."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        usage: its arguments, as `/help` shows them; a command without takes none.
        summary: what it does, in a line.
        run: does it, with the text after its name.
        words: what its first argument can be, for completion; None for the name of a file.
        keeps_blanks: all that follows the one blank after the name is its argument.
    """

    usage: str
    summary: str
    run: Callable[[Session, str], None]
    words: Sequence[str] | None = ()
    keeps_blanks: bool = False


def is_command(line: str) -> bool:
    """Return whether what was typed is a command: a line with a slash first, or to leave."""
    is_slash = line.startswith("/") and "\n" not in line
    return is_slash or line.strip() in _OTHER_NAMES


def run_command(session: Session, line: str) -> None:
    """Run a command.

    Args:
        session: the chat.
        line: the command as typed.

    Raises:
        LeaveChat: the command was `/exit`.
        LlamaBoltsError: the command is unknown or cannot be done; nothing has changed.
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
    command.run(session, argument)


def _near(name: str) -> str:
    """Return `: near it ...` with what may have been meant by a command that there is not."""
    if canonical(name[1:]) in SETTING_NAMES:
        return f": near it /set {canonical(name[1:])} VALUE"
    found = difflib.get_close_matches(name.lower(), COMMANDS, cutoff=_NEAR)
    return f": near it {', '.join(found)}" if found else ""


def _help(session: Session, _argument: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    lines = [
        f"{f'{name} {command.usage}':<{width}}  {command.summary}"
        for name, command in COMMANDS.items()
    ]
    keys = {
        '"""': "around a message of several lines; a paste needs none",
        "Ctrl-C": "stops an answer; /continue goes on with it",
        "Ctrl-Z": "suspends the chat; fg in the shell goes on",
        "Ctrl-D": "leaves",
        "Tab": "completes a command, its argument or the name of a file",
        "Up": "brings back what was typed; kept in memory, never in a file",
    }
    lines += ("", *(f"{key:<{width}}  {what}" for key, what in keys.items()))
    session.console.reply("\n".join(lines))


def _exit(_session: Session, _argument: str) -> None:
    raise LeaveChat


def _clear(session: Session, _argument: str) -> None:
    session.clear()
    session.console.reply("the conversation starts anew")


def _system(session: Session, argument: str) -> None:
    if session.completion:
        raise UsageError("there is no system prompt where texts are continued")
    if argument:
        session.system = None if argument == _EMPTY else argument
    session.console.reply(f"system prompt: {session.system or 'none'}")


def _regenerate(session: Session, _argument: str) -> None:
    session.regenerate()


def _continue(session: Session, _argument: str) -> None:
    session.resume()


def _undo(session: Session, _argument: str) -> None:
    session.console.reply(f"taken back: {session.undo()}")


def _examples(session: Session, argument: str) -> None:
    if not argument:
        session.console.reply("\n".join(example_lines()))
        return
    if not argument.isdecimal() or not 1 <= int(argument[:4]) <= len(EXAMPLES):
        raise UsageError(f"/examples: expected a number from 1 to {len(EXAMPLES)}, got {argument}")
    example = EXAMPLES[int(argument) - 1]
    session.console.reply(example.description)
    if example.completion and not session.completion:
        session.answer_apart(example.prompt)
    elif session.completion and not example.completion:
        messages = [Message("system", example.system or ""), Message("user", example.prompt)]
        session.answer_apart(messages)
    else:
        session.clear()
        session.system = example.system
        session.ask(example.prompt)


def _set(session: Session, argument: str) -> None:
    name, _, value = argument.removeprefix("parameter ").partition(" ")  # as ollama has it
    if value:
        session.settings = session.settings.changed(name, value.strip())
    lines = [session.settings.line(name)] if name else session.settings.lines()
    session.console.reply("\n".join(lines))


def _show(session: Session, argument: str) -> None:
    session.console.reply(topic_text(session, argument))


def _tokens(session: Session, argument: str) -> None:
    if not argument:
        raise UsageError("/tokens wants a text: got nothing")
    ids = session.tokenizer.encode(argument, bos=False, eos=False)
    session.console.reply(
        f"{token_table(session.tokenizer, ids)}\n{counted(len(ids), 'token')}, "
        f"{counted(len(argument), 'character')}, {counted(len(argument.encode()), 'byte')}"
    )


def _probs(session: Session, argument: str) -> None:
    if argument == "off":
        session.candidates = 0
        session.console.reply("candidates: off")
        return
    try:
        count = positive_integer(argument)
    except argparse.ArgumentTypeError:
        got = argument or "nothing"
        raise UsageError(f"/probs wants off or a number of candidates: got {got}") from None
    if count > MOST_CANDIDATES:
        raise UsageError(f"/probs: expected at most {MOST_CANDIDATES} candidates, got {count}")
    session.candidates = count
    session.console.reply(
        f"candidates: the {count} most probable of each new token, after each step of the "
        "sampling; * marks the one drawn"
    )


def _why(session: Session, _argument: str) -> None:
    session.console.reply(why_text(session))


def _trace(session: Session, argument: str) -> None:
    if _is_on("/trace", argument):
        session.trace.turn_on()
        session.console.reply(f"trace: {', '.join(map(str, session.trace.paths))}")
    else:
        session.trace.turn_off()
        session.console.reply("trace: off")


def _stats(session: Session, argument: str) -> None:
    session.statistics = _is_on("/stats", argument)
    session.console.reply(f"statistics after each answer: {argument}")


def _is_on(command: str, argument: str) -> bool:
    if argument not in _ON_OFF:
        raise UsageError(f"{command} wants on or off: got {argument or 'nothing'}")
    return argument == "on"


def _or(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}"


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/exit": Command("", "leave; also /bye, /quit, exit or quit", _exit),
    "/clear": Command("", "forget the conversation; system prompt and settings stay", _clear),
    "/regen": Command("", "answer the last question again", _regenerate),
    "/continue": Command("", "go on with an answer that was stopped", _continue),
    "/undo": Command("", "take back the last question and its answer", _undo),
    "/system": Command("TEXT", 'set the system prompt; "" removes it; no TEXT shows it', _system),
    "/set": Command("NAME VALUE", "change a setting; no NAME VALUE lists all", _set, SETTING_NAMES),
    "/show": Command("WHAT", f"WHAT is {_or(TOPICS)}", _show, tuple(TOPICS)),
    "/save": Command("FILE", "write the chat to FILE.json, or FILE.md to read", save_chat, None),
    "/load": Command("FILE", "go on with a saved chat, in place of this one", load_chat, None),
    "/read": Command("FILE", "put a text file before the next message", attach_text, None),
    "/examples": Command("[N]", "prompts to try; N asks one, in a new chat", _examples),
    "/tokens": Command("TEXT", "the tokens of a text: ids, bytes, pieces", _tokens, (), True),
    "/probs": Command("K|off", "show K candidates of each new token, step by step", _probs),
    "/why": Command("", "why the last answer stopped, and what was cut", _why),
    "/trace": Command("on|off", "write the shape of every tensor to a log", _trace, _ON_OFF),
    "/stats": Command("on|off", "a line of statistics after each answer", _stats, _ON_OFF),
}


def completion_words() -> dict[str, Sequence[str] | None]:
    """Return the arguments of each command, by the command; None for names of files."""
    return {name: command.words for name, command in COMMANDS.items()}
