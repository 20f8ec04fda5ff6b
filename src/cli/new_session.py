"""Open a session: load its model, chat template, settings and grammar.

The application and `/model` call `open_session`, which loads models with `loading.py` and
creates a `Session`. `loading.py` imports neither sessions nor chat templates.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..choices import ATTENTIONS
from ..inference import (
    CHAT_FORMATS,
    ChatTemplate,
    GrammarError,
    InferenceEngine,
    SamplingDefaults,
    end_ids,
    find_chat_template,
    named_template,
    sampling_defaults,
)
from ..inference.chat_encoding import check_template
from ..inference.chat_template import LONGEST_TEMPLATE
from ..model import Model
from ..untrusted import check_writable, label_of, read_whole
from .answer import Settings
from .arguments import Options
from .console import Console, UsageError
from .loading import (
    loading_line,
    model_parts,
    open_adapters,
    open_model_to_run,
    open_second_model,
    required_tokenizer,
)
from .session import Session

if TYPE_CHECKING:
    from ..inference.grammars import Grammar
    from ..model import Interventions


def open_session(options: Options, console: Console) -> Session:
    """Open a session; check settings and grammar before loading the model."""
    Settings.from_options(options)
    grammar = _read_grammar(options)
    model, positions = open_model_to_run(options, console)
    tokenizer = required_tokenizer(model)
    draft_model = None
    if options.draft_model is not None:
        draft_model = open_second_model(
            options, console, model, positions, options.draft_model
        )
        console.detail(f"draft model: {draft_model.description}")
    engine = InferenceEngine(
        model,
        positions,
        draft_model=draft_model,
        attention=options.attention or ATTENTIONS[0],
    )
    # The examples include a completion, so with `--examples` the chat format is looked up
    # only when needed.
    is_named = options.chat_format is not None or options.chat_template is not None
    is_chat = is_named or not (options.completion or options.examples)
    chat_format = chat_format_of(options, model) if is_chat else None
    defaults = sampling_defaults_of(options, model)
    settings = Settings.from_options(options, defaults.settings)
    console.note(loading_line(engine, defaults))
    console.detail("; ".join(model_parts(engine, chat_format)))
    adapters = open_adapters(options, model, console)
    interventions: Interventions = ()
    if options.set_activation or options.vector or options.save_activation:
        from .interventions import open_interventions

        interventions = open_interventions(options, engine, console)
    new_mask = None
    if grammar is not None:
        from ..inference.grammars import Grammars

        of_format = () if chat_format is None else end_ids(tokenizer, chat_format)
        grammars = Grammars(tokenizer, model.stop_ids.union(of_format))
        grammars.start()
        new_mask = partial(grammars.mask, grammar)
    return Session(
        options=options,
        engine=engine,
        tokenizer=tokenizer,
        console=console,
        settings=settings,
        found_format=chat_format,
        new_mask=new_mask,
        adapters=adapters,
        interventions=interventions,
    )


def _read_grammar(options: Options) -> "Grammar | None":
    """Return the grammar that constrains the answers, or None."""
    source = options.json_schema or options.grammar
    if source is None:
        return None
    from ..inference.grammars import MOST_BYTES, Grammar, read_grammar
    from .saved_chat import read_text

    text = source if isinstance(source, str) else read_text(source, MOST_BYTES)
    try:
        if options.json_schema is not None:
            return Grammar("json_schema", text)
        return read_grammar(text)
    except GrammarError as error:
        where = "--json-schema" if isinstance(source, str) else label_of(source)
        raise UsageError(f"{where}: {error}") from None


@contextmanager
def prompt_cached(session: Session, path: Path) -> Iterator[None]:
    """Restore the cache of the session's engine from a file, and save it on exit."""
    from ..inference import load_prompt_cache, save_prompt_cache

    check_writable(path, UsageError)
    if os.path.lexists(path):
        load_prompt_cache(session.engine, path, session.active_adapters)
    try:
        yield
    finally:
        save_prompt_cache(session.engine, path)


def sampling_defaults_of(options: Options, model: Model) -> SamplingDefaults:
    """Return the model's sampling defaults, without those overridden by flags."""
    if options.sampling_defaults == "engine":
        return SamplingDefaults()
    defaults = sampling_defaults(model.source)
    settings = {
        name: value
        for name, value in defaults.settings.items()
        if getattr(options, name) is None
    }
    return SamplingDefaults(settings, defaults.by)


def chat_format_of(options: Options, model: Model) -> ChatTemplate:
    """Return the named or detected template, tested with an empty question."""
    tokenizer = required_tokenizer(model)
    template = template_named(options) or find_chat_template(model.source, tokenizer)
    template = template.with_arguments(dict(options.template_arg))
    check_template(tokenizer, template, think=options.think != "off")
    return template


def template_named(options: Options) -> ChatTemplate | None:
    """Return the chat template selected by flags, or None for the model's own."""
    value = options.chat_template
    if value is None:
        name = options.chat_format
        return None if name is None else named_template(name, "--chat-format")
    if value in CHAT_FORMATS:
        return named_template(value, "--chat-template")
    path = Path(value)
    if not os.path.exists(path):
        names = ", ".join(CHAT_FORMATS)
        raise UsageError(
            f"--chat-template: expected a file or one of {names}, got {label_of(path)}"
        )
    data = read_whole(path, LONGEST_TEMPLATE, UsageError)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        label = label_of(path)
        raise UsageError(
            f"{label}: text: expected UTF-8, got an invalid byte at offset {error.start}"
        ) from None
    return ChatTemplate(text, name=label_of(Path(path.name)), by="--chat-template")
