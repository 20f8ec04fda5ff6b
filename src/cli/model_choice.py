"""`/model`: switch to another model within a conversation."""

from dataclasses import replace
from typing import Any

from .. import trace
from .answer import SETTINGS, Settings, counted
from .arguments import BUNDLED_CHAT_LENGTH
from .console import UsageError
from .loading import RankedOptions, loading_line
from .new_session import open_session, sampling_defaults_of
from .session import Session


def change_model(session: Session, argument: str) -> str | None:
    """Continue with another model, or describe the current one without an argument.

    The new model keeps the dtypes of its files and uses its own chat format. The session
    is unchanged if an exception is raised.
    """
    if not argument:
        model = session.engine.model
        return loading_line(session.engine, sampling_defaults_of(session.options, model))
    options = session.options
    if isinstance(options, RankedOptions):
        raise UsageError("/model: expected one process, got several (mpirun)")
    if options.prompt_cache is not None:
        raise UsageError(
            "/model: expected a chat without --prompt-cache, which belongs to one model"
        )
    if trace.is_on():
        raise UsageError(
            "/model: expected the trace to be off, got on; /trace off turns it off"
        )
    positions = options.context_length
    if options.model is None and positions == BUNDLED_CHAT_LENGTH:
        positions = None  # it was the default of the bundled model
    changed = replace(
        options,
        model=argument,
        context_length=positions,
        chat_format=None,
        chat_template=None,
        template_arg=(),
        rope_scaling_factor=None,
        dequantize=False,
        quantize=None,
        draft_model=None,
        lora=(),
        set_activation=(),
        vector=(),
        save_activation=(),
    )
    other = open_session(
        replace(changed, debug_log=None, trace_json=None), session.console
    )
    other.settings = replace(other.settings, **_changed_settings(session))
    session.change_model(other, changed)
    kept = (
        f"; the conversation continues ({counted(len(session.turns), 'answer')})"
        if session.turns
        else ""
    )
    return f"model: {session.engine.model.source.name}{kept}"


def _changed_settings(session: Session) -> dict[str, Any]:
    """Return the settings that have changed since the model was loaded."""
    defaults = sampling_defaults_of(session.options, session.engine.model)
    first = Settings.from_options(session.options, defaults.settings)
    now = {name: getattr(session.settings, name) for name in SETTINGS}
    return {name: value for name, value in now.items() if value != getattr(first, name)}
