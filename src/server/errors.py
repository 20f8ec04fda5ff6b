"""What the server answers when it cannot answer."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..checkpoint import CheckpointError
from ..inference import ContextFullError, GrammarError, InferenceError, NumericError
from ..inference.errors import (
    ClosedError,
    GrammarLimitError,
    QueueFullError,
    ThreadRefusedError,
    TimeLimitError,
)
from ..memory import is_lack_of_memory
from ..ml.errors import LlamaBoltsError
from ..model import TokenIdError
from ..tokenizer import TokenizerError
from ..untrusted import escape_line

encode = msgspec.json.Encoder().encode

# OpenAI's types of errors; of other statuses they are `invalid_request_error` and
# `server_error`.
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_LATER = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}  # the rest of the body is not waited for
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: _CLOSE,
    413: _CLOSE,
    429: _LATER,
    503: _LATER,
}
# Of errors that the client hears of: the status and a name for programs. The first status
# is what nginx says of a client that went away; nobody gets it.
_KINDS = (
    (ClientDisconnect, 499, None),
    (QueueFullError, 429, "queue_full"),
    (ClosedError, 503, "shutting_down"),
    (TimeLimitError, 503, "time_limit"),
    (ThreadRefusedError, 503, "no_thread"),
    (CheckpointError, 503, "model_changed"),
    (ContextFullError, 400, "context_length_exceeded"),
    (GrammarLimitError, 429, "too_many_grammars"),
    (GrammarError, 400, "invalid_grammar"),
    (NumericError, 500, "failed"),
    # A tokenizer may have more tokens than the embeddings have rows.
    ((InferenceError, TokenIdError, TokenizerError), 400, "invalid_value"),
)
# What a client is told of a fault whose own text is for the log alone, by its code. The
# text may name a path.
_FAULTS = {
    "failed": "the request failed: the server's log says why",
    "out_of_memory": "the request failed: the system refused memory",
    "model_changed": "a weight file was changed since it was loaded: restart the server",
}
_LONGEST = 500  # characters of a message
# The engine's errors begin with what was called, such as `[sampling] temperature must be
# ...`.
_CALLED = re.compile(r"^\[(\w+)\] ")
_SETTING = re.compile(r"^\[(?:sampling|generate|chat)\] (?!prompt_ids)(\w+) must ")


class ServerError(LlamaBoltsError):
    """Root of the errors of the server; raised itself for a server that cannot be
    started.
    """


class RequestError(ServerError):
    """A refused request: `status` of HTTP, `param` the wrong field,
    `code` for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(escape_line(message, _LONGEST))
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The error as clients of OpenAI's API read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": _TYPES.get(self.status, kind)}
        return {"error": error | {"param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the answer to the request."""
        headers = _HEADERS.get(self.status)
        return Response(encode(self.body), self.status, headers, "application/json")


def refusal(
    error: Exception, log: Callable[[str], object], param: str | None = None
) -> RequestError:
    """Return what a client is told of an error; what only the server can mend is logged
    instead.

    Most errors of the call are about the field `param`.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        return RequestError(error.status_code, error.detail)
    found = ((status, code) for kind, status, code in _KINDS if isinstance(error, kind))
    status, code = next(found, (500, "failed"))
    if is_lack_of_memory(error):
        status = 503
        code = "out_of_memory"
    if code in _FAULTS:
        log(f"fault: {error!r}")
        return RequestError(status, _FAULTS[code], None, code)
    if isinstance(error, ContextFullError):
        return RequestError(
            status, f"the prompt does not fit: {error.sizes}", param, code
        )
    setting = _SETTING.match(str(error))
    field = (setting[1] if setting else param) if status == 400 else None
    return RequestError(status, _CALLED.sub("", str(error)), field, code)
