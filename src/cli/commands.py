"""The slash commands of the chat."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import UsageError
from .session import Session
from .settings import SETTING_NAMES
from .show import TOPICS, topic_text

_NEAR = 0.5  # how alike a name must be to be suggested
_EMPTY = '""'


class LeaveChat(Exception):  # noqa: N818 - leaving is no error
    """The chat ends here."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        usage: its arguments, as `/help` shows them.
        summary: what it does, in a line.
        run: does it, with the text after its name.
        words: what its first argument can be, for completion.
    """

    usage: str
    summary: str
    run: Callable[[Session, str], None]
    words: Sequence[str] = ()


def is_command(line: str) -> bool:
    """Return whether what was typed is a command: a single line that starts with a slash."""
    return line.startswith("/") and "\n" not in line


def run_command(session: Session, line: str) -> None:
    """Run a command.

    Args:
        session: the chat.
        line: the command as typed.

    Raises:
        LeaveChat: the command was `/exit`.
        LlamaBoltsError: the command is unknown or cannot be done; nothing has changed.
    """
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, cutoff=_NEAR)
        raise UsageError(f"no command {name}: expected {', '.join(near or COMMANDS)}")
    command.run(session, argument.strip())


def _help(session: Session, _argument: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    lines = [
        f"{f'{name} {command.usage}':<{width}}  {command.summary}"
        for name, command in COMMANDS.items()
    ]
    lines += (
        "",
        '"""            starts and ends a message of several lines; a paste is one message',
        "Ctrl-C         stops an answer; its question leaves no trace, /regen asks it again",
        "Ctrl-D         leaves",
    )
    session.console.reply("\n".join(lines))


def _exit(_session: Session, _argument: str) -> None:
    raise LeaveChat


def _clear(session: Session, _argument: str) -> None:
    session.clear()
    session.console.reply("the conversation starts anew")


def _system(session: Session, argument: str) -> None:
    if argument:
        session.system = None if argument == _EMPTY else argument
    session.console.reply(f"system prompt: {session.system or 'none'}")


def _regenerate(session: Session, _argument: str) -> None:
    session.regenerate()


def _undo(session: Session, _argument: str) -> None:
    session.console.reply(f"taken back: {session.undo().question}")


def _set(session: Session, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not value:
        raise UsageError(f"/set wants a name and a value: one of {', '.join(SETTING_NAMES)}")
    session.settings = session.settings.changed(name, value.strip())
    session.console.reply(session.settings.line(name))


def _trace(session: Session, argument: str) -> None:
    if argument == "on":
        session.trace.turn_on()
        session.console.reply(f"trace: {', '.join(map(str, session.trace.paths))}")
    elif argument == "off":
        session.trace.turn_off()
        session.console.reply("trace: off")
    else:
        raise UsageError(f"/trace wants on or off: got {argument or 'nothing'}")


def _show(session: Session, argument: str) -> None:
    session.console.reply(topic_text(session, argument))


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/exit": Command("", "leave", _exit),
    "/clear": Command("", "forget the conversation; system prompt and settings stay", _clear),
    "/regen": Command("", "answer the last question again", _regenerate),
    "/undo": Command("", "take back the last question and its answer", _undo),
    "/system": Command("TEXT", 'set the system prompt; "" removes it; no TEXT shows it', _system),
    "/set": Command("NAME VALUE", "change a setting; /show params lists them", _set, SETTING_NAMES),
    "/show": Command("|".join(TOPICS), "what the chat runs with", _show, tuple(TOPICS)),
    "/trace": Command("on|off", "write the shape of every tensor to a log", _trace, ("on", "off")),
}


def completion_words() -> dict[str, Sequence[str]]:
    """Return the arguments of each command, by the command."""
    return {name: command.words for name, command in COMMANDS.items()}
