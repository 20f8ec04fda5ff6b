"""`--serve`: the model of the command line behind HTTP."""

import ipaddress
import os
import re
import signal
from functools import partial

from ..inference import CHAT_FORMATS, BatchEngine, ChatFormatError
from ..untrusted import label_of, read_whole
from .arguments import DEFAULT_SLOTS, Options
from .console import Console, UsageError
from .loading import RankedOptions, chat_format_of, open_model_to_run

_LONGEST_KEY = 4096


def serve_model(options: Options, console: Console) -> None:
    """Answer HTTP requests until SIGTERM, or SIGINT, which is raised as KeyboardInterrupt."""
    try:
        from .. import server
    except ModuleNotFoundError as error:
        command = "run `pip install -e '.[serve]'` in the repository"
        raise UsageError(f"--serve: {error.name} is not installed: {command}") from None
    assert options.serve is not None
    host, port = options.serve
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host.lower() == "localhost"
    key = _api_key(options)
    if key is None and not options.no_api_key and not is_local:
        flags = "--api-key KEY, --api-key-file FILE or --no-api-key"
        raise UsageError(f"--serve: {host} can be reached from elsewhere: expected {flags}")
    with server.listen(host, port) as listener:
        model, positions = open_model_to_run(options, console)
        try:
            chat_format = CHAT_FORMATS[chat_format_of(options, model).name]
        except ChatFormatError as error:
            if options.chat_format is not None:
                raise
            chat_format = None
            console.warn(f"no chats, only completions: {error}")
        slots, cache = options.slots or DEFAULT_SLOTS, options.prompt_cache
        engine = BatchEngine(model, sequence_length=positions, max_requests=slots)
        if cache is not None and os.path.lexists(cache):
            engine.load_prompt_cache(cache)
        name = "bundled" if model.files.is_bundled else model.files.name
        loading = {
            "path": None if options.model is None else str(options.model.absolute()),
            "quantize": options.quantize,
            "rope_scaling_factor": options.rope_scaling_factor,
        }
        inside = None if isinstance(options, RankedOptions) else loading  # one may not hold it
        service = server.Service(engine, name, chat_format, key, is_local, inside, console.warn)
        place, port = listener.getsockname()[:2]
        shown = f"[{place}]" if ":" in place else place
        line = f"{name} at http://{shown}:{port}/ for a browser, /v1 for clients"
        number = server.serve(service, listener, partial(console.note, line))
        if cache is not None:
            engine.save_prompt_cache(cache)
        if number == signal.SIGINT:
            raise KeyboardInterrupt


def _api_key(options: Options) -> str | None:
    """Return what clients have to send, or None."""
    key, path = options.api_key, options.api_key_file
    if path is not None:
        key = read_whole(path, _LONGEST_KEY, UsageError).decode("utf-8", "replace").strip()
    if key is not None and not re.fullmatch("[!-~]+", key):
        where = "--api-key" if path is None else label_of(path)
        raise UsageError(f"{where}: expected a key of printable ASCII without blanks")
    return key
