"""The HTTP server: the endpoints that clients of OpenAI's API expect, over one
`BatchEngine`.
"""

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
