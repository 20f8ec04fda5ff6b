"""The server's error responses."""

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

# OpenAI's error types. Other statuses are `invalid_request_error` or `server_error`.
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_LATER = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}  # the rest of the body is not read
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: _CLOSE,
    413: _CLOSE,
    429: _LATER,
    503: _LATER,
}
# The status and error code for each exception. Status 499, nginx's code for a connection
# that the client has closed, appears only in the log.
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
    # The tokenizer may have more tokens than the embedding table has rows.
    ((InferenceError, TokenIdError, TokenizerError), 400, "invalid_value"),
)
# Messages for clients, by error code. The original message may contain a path and is
# therefore only logged.
_FAULTS = {
    "failed": "the request failed: see the log of the server",
    "out_of_memory": "the request failed: the system refused memory",
    "model_changed": "a weight file has changed since loading: restart the server",
}
_LONGEST = 500  # maximum length of a message, in characters
# Messages of engine errors begin with the name of the function, for example
# `[sampling] temperature must be ...`.
_CALLED = re.compile(r"^\[(\w+)\] ")
_SETTING = re.compile(r"^\[(?:sampling|generate|chat)\] (?!prompt_ids)(\w+) must ")


class ServerError(LlamaBoltsError):
    """Base class of all server errors, also raised if the server cannot start."""


class RequestError(ServerError):
    """Raised to reject a request with an HTTP status, invalid field and error code."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(escape_line(message, _LONGEST))
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The error in the format of OpenAI's API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": _TYPES.get(self.status, kind)}
        return {"error": error | {"param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the HTTP response."""
        headers = _HEADERS.get(self.status)
        return Response(encode(self.body), self.status, headers, "application/json")


def refusal(
    error: Exception, log: Callable[[str], object], param: str | None = None
) -> RequestError:
    """Return an error for the client. Server faults are logged instead of being shown.

    `param` is the field to report if the error itself does not name a field.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        return RequestError(error.status_code, error.detail)
    kinds = ((status, code) for kind, status, code in _KINDS if isinstance(error, kind))
    status, code = next(kinds, (500, "failed"))
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
