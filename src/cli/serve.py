"""`--serve`: serve the selected model over HTTP."""

import ipaddress
import os
import re
import signal
from functools import partial

from ..inference import BatchEngine, ChatFormatError
from ..installation import install_hint
from ..untrusted import check_writable, label_of, read_whole
from .answer import counted
from .arguments import DEFAULT_SLOTS, Options
from .console import Console, UsageError
from .loading import (
    RankedOptions,
    load_arguments,
    open_adapters,
    open_model_to_run,
)
from .new_session import chat_format_of, sampling_defaults_of, template_named

_LONGEST_KEY_FILE = 64 << 10


def serve_model(options: Options, console: Console) -> None:
    """Answer HTTP requests until SIGTERM or SIGINT, which raises KeyboardInterrupt."""
    try:
        from .. import server
    except ModuleNotFoundError as error:
        hint = install_hint("serve")
        raise UsageError(
            f"--serve: expected {error.name} to be installed, got none: {hint}"
        ) from None
    assert options.serve is not None
    host, port = options.serve
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host.lower() == "localhost"
    keys = _api_keys(options)
    if not keys and not options.no_api_key and not is_local:
        flags = "--api-key KEY, --api-key-file FILE or --no-api-key"
        raise UsageError(f"--serve: expected a loopback address or {flags}, got {host}")
    if options.prompt_cache is not None:
        if len(keys) != 1 and not options.share_prefixes:
            raise UsageError(
                "--prompt-cache: expected one API key or --share-prefixes, because it "
                f"shares prefixes, got {counted(len(keys), 'key')}"
            )
        check_writable(options.prompt_cache, UsageError)
    with server.listen(host, port) as listener:
        model, positions = open_model_to_run(options, console)
        try:
            chat_format = chat_format_of(options, model)
        except ChatFormatError as error:
            if template_named(options) is not None:
                raise
            chat_format = None
            console.warn(f"completions only, without chats: {error}")
        adapters = open_adapters(options, model, console)
        names = [adapter.name for adapter, _ in adapters]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"--lora: expected different names, got {repeated[0]} twice")
        slots = options.slots or DEFAULT_SLOTS
        cache = options.prompt_cache
        engine = BatchEngine(model, sequence_length=positions, max_requests=slots)
        if cache is not None and os.path.lexists(cache):
            engine.load_prompt_cache(cache)
        name = "bundled" if model.source.is_bundled else model.source.name
        loading = {
            "path": None if options.model is None else str(model.source.top.absolute()),
            **load_arguments(options),
        }
        defaults = sampling_defaults_of(options, model)
        if defaults.settings:
            console.note(f"requests without sampling settings use {defaults}")
        # An explorer page is computed by a process that loads the whole model, which may
        # need the memory of several ranks.
        inside = None if isinstance(options, RankedOptions) else loading
        served = server.ServedModel(
            name=name,
            chat_format=chat_format,
            loading=inside,
            sampling=defaults.settings,
            adapters=adapters,
        )
        access = server.Access(
            api_keys=keys, is_local=is_local, shares_prefixes=options.share_prefixes
        )
        service = server.Service(engine, served, access, console.warn)
        address, port = listener.getsockname()[:2]
        url_host = f"[{address}]" if ":" in address else address
        line = f"{name} at http://{url_host}:{port}/ for a browser, /v1 for clients"
        number = server.serve(service, listener, partial(console.note, line))
        if cache is not None:
            engine.save_prompt_cache(cache)
        if number == signal.SIGINT:
            raise KeyboardInterrupt


def _api_keys(options: Options) -> list[str]:
    """Return the accepted API keys, from a flag or from the lines of a file."""
    path = options.api_key_file
    if path is None:
        where = "--api-key"
        keys = [] if options.api_key is None else [options.api_key]
    else:
        where = label_of(path)
        text = read_whole(path, _LONGEST_KEY_FILE, UsageError).decode("utf-8", "replace")
        keys = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if not all(re.fullmatch("[!-~]+", key) for key in keys):
        raise UsageError(f"{where}: expected a key of printable ASCII without spaces")
    return keys
