"""`/lora`: add adapters to the model of a chat, and change their scales."""

import argparse
from pathlib import Path

from .arguments import adapter_of
from .console import UsageError
from .loading import open_adapter
from .session import Session

_USAGE = "usage: /lora PATH[:SCALE], /lora NAME:SCALE or /lora off"


def change_adapters(session: Session, argument: str) -> str:
    """Load an adapter, change the scale of a loaded one, or list them.

    A name of a loaded adapter takes precedence over a path. The conversation is kept,
    and the next answer reads it again with the new adapters.

    Raises:
        UsageError: The argument is not valid.
        CheckpointError: The adapter cannot be read, or belongs to another model.
    """
    if argument == "off":
        session.adapters = ()
    elif argument:
        try:
            path, scale = adapter_of(argument)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{_USAGE}: {error}") from None
        _set_scale(session, path, scale)
    return list_adapters(session)


def _set_scale(session: Session, path: Path, scale: float) -> None:
    """Set the scale of a loaded adapter, or load the adapter first."""
    adapters = list(session.adapters)
    for place, (adapter, _) in enumerate(adapters):
        if str(path) in (adapter.name, str(adapter.path)):
            adapters[place] = adapter, scale
            break
    else:
        adapter = open_adapter(session.options, session.engine.model, path)
        adapters.append((adapter, scale))
    session.adapters = tuple(adapters)


def list_adapters(session: Session) -> str:
    """Return one line for each adapter with its scale."""
    lines = []
    for adapter, scale in session.adapters:
        lines.append(f"adapter {adapter.description}, scale {scale:g}")
    return "\n".join(lines) or "adapters: none"
