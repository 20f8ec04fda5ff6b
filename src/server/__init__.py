"""The HTTP server: an API compatible with OpenAI's, backed by one `BatchEngine`."""

from .app import create_app
from .errors import ServerError
from .service import Access, ServedModel, Service
from .serving import listen, serve

__all__ = [
    "Access",
    "ServedModel",
    "ServerError",
    "Service",
    "create_app",
    "listen",
    "serve",
]
