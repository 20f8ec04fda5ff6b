"""What the server answers when it cannot answer."""

import re
from typing import Any

import msgspec
from starlette.responses import Response

from ..inference import ContextFullError, GrammarError, InferenceError, NumericError
from ..inference.errors import ClosedError, QueueFullError, TimeLimitError
from ..memory import is_lack_of_memory
from ..ml.errors import LlamaBoltsError
from ..tokenizer import TokenizerError
from ..untrusted import escape_line

encode = msgspec.json.Encoder().encode

# OpenAI's types of errors; of other statuses they are `invalid_request_error` and `server_error`.
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}
_LONGEST = 500  # characters of a message
# The engine's errors begin with what was called, such as `[sampling] temperature must be ...`.
_CALLED = re.compile(r"^\[(\w+)\] ")
_SETTING = re.compile(r"^\[(?:sampling|generate)\] (?!prompt_ids)(\w+)")


class ServerError(LlamaBoltsError):
    """A server that cannot be started."""


class RequestError(LlamaBoltsError):
    """A refused request: `status` of HTTP, `param` the wrong field, `code` for programs."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(escape_line(message, _LONGEST))
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error as clients of OpenAI's API read it."""
        others = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, others)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        """Return the answer to the request."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.status in (429, 503):
            headers["Retry-After"] = "1"
        if self.status in (408, 413):  # the rest of the body is not waited for
            headers["Connection"] = "close"
        return Response(encode(self.body), self.status, headers, "application/json")


# Of errors that the client hears of: the status and a name for programs.
_KINDS = (
    (QueueFullError, 429, "queue_full"),
    (ClosedError, 503, "shutting_down"),
    (TimeLimitError, 503, "time_limit"),
    (ContextFullError, 400, "context_length_exceeded"),
    (GrammarError, 400, "invalid_grammar"),
    (NumericError, 500, "failed"),
    ((InferenceError, TokenizerError), 400, "invalid_value"),
)


def refusal(error: Exception, param: str | None = None) -> RequestError:
    """Return what a client is told of an error of the engine; no path is in it.

    Args:
        error: The error.
        param: The field that most errors of the call are about.
    """
    if isinstance(error, RequestError):
        return error
    if is_lack_of_memory(error):
        return RequestError(503, "the system refused memory", None, "out_of_memory")
    found = ((status, code) for kind, status, code in _KINDS if isinstance(error, kind))
    status, code = next(found, (500, "failed"))
    if status == 500:
        return RequestError(500, "the model failed; the server's log says why", None, code)
    setting = _SETTING.match(str(error))
    field = (setting[1] if setting else param) if status == 400 else None
    return RequestError(status, _CALLED.sub("", str(error)), field, code)
