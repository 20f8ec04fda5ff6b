"""`--set-activation`, `--vector`, `--save-activation` and `/intervene`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..inference import InferenceEngine, PromptError
from ..inference.vectors import load_vector, read_array, save_arrays
from ..model import Intervention, InterventionError, Interventions
from ..model.interventions import parse_intervention
from ..untrusted import check_writable
from .arguments import Options
from .console import Console, UsageError, usage_errors
from .session import Session

_USAGE = "usage: /intervene ADDRESS=VALUE, /intervene ADDRESS*=X or /intervene off"


def open_interventions(
    options: Options, engine: InferenceEngine, console: Console
) -> Interventions:
    """Return the interventions of `--set-activation`, `--vector` and `--save-activation`.

    Raises:
        UsageError: An address, a value, a position or a file is not valid.
    """
    model = engine.model
    interventions = [
        _parsed("--set-activation", engine, text) for text in options.set_activation
    ]
    for path, scale in options.vector:
        with _flag_errors("--vector"):
            interventions.append(load_vector(model, path, scale))
    for intervention in interventions:
        console.note(f"changes {intervention.text}")
    for address, path in options.save_activation:
        check_writable(path, UsageError)
        with _flag_errors("--save-activation"):
            interventions.append(Intervention.record(model, address))
    return tuple(interventions)


def change_interventions(session: Session, argument: str) -> str:
    """Add an intervention to the chat, remove all, or list them.

    The conversation is kept, and the next answer reads it again with the changes.

    Raises:
        UsageError: The argument is not valid.
    """
    kept = tuple(each for each in session.interventions if each.kind == "record")
    if argument == "off":
        session.interventions = kept
    elif argument:
        added = _parsed(_USAGE, session.engine, argument)
        session.interventions = (*session.interventions, added)
    return list_interventions(session)


def list_interventions(session: Session) -> str:
    """Return one line for each intervention, with the rows that it has changed."""
    lines = []
    for each in session.interventions:
        verb = "records" if each.kind == "record" else "changes"
        text = each.text.removeprefix("record ")
        lines.append(f"{verb} {text} ({each.rows} rows so far)")
    return "\n".join(lines) or "interventions: none"


@contextmanager
def saved_activations(session: Session, options: Options) -> Iterator[None]:
    """Write the recorded tensors of `--save-activation` after the `with` block."""
    yield
    records = [each for each in session.interventions if each.kind == "record"]
    arrays = dict[Path, dict[str, np.ndarray[Any, Any]]]()
    for record, (address, path) in zip(records, options.save_activation, strict=True):
        with _flag_errors("--save-activation"):
            arrays.setdefault(path, {})[address] = record.recorded
    for path, of_file in arrays.items():
        path.unlink(missing_ok=True)
        with usage_errors(f"{path}: --save-activation: expected a writable file"):
            save_arrays(path, of_file, {"model": session.engine.model.source.name})
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in of_file.items())
        session.console.note(f"{path}: {shapes}")


def unreached(interventions: Sequence[Intervention]) -> list[str]:
    """Return a line for each intervention that has not changed a row yet."""
    return [
        f"{each.text}: no position of the run is in it"
        for each in interventions
        if not each.rows
    ]


def _parsed(flag: str, engine: InferenceEngine, text: str) -> Intervention:
    """Return the intervention that a text describes, with positions of the context."""
    with _flag_errors(flag):
        intervention = parse_intervention(engine.model, text, _read_array)
        intervention.check_positions(engine.sequence_length)
    return intervention


def _read_array(text: str) -> np.ndarray[Any, Any]:
    """Return the tensor that `FILE:KEY` names."""
    path, _, key = text.rpartition(":")
    return read_array(Path(path), key)


@contextmanager
def _flag_errors(flag: str) -> Iterator[None]:
    """Raise a UsageError that names a flag instead of an intervention's error."""
    try:
        yield
    except (InterventionError, PromptError) as error:
        text = str(error).removeprefix("[intervene] ")
        raise UsageError(f"{flag}: {text}") from None
