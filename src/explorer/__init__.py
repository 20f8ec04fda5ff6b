"""The explorer: a traced run as one HTML file, with its numbers, to be opened without a network."""

from .collect import Collector
from .run import (
    Page,
    document_of,
    explore,
    facts_of,
    model_name,
    prompt_of,
    run_beside,
    run_traced,
)
from .store import DEFAULT_LIMIT, ExplorerError, Store
from .write import save_html

__all__ = [
    "DEFAULT_LIMIT",
    "Collector",
    "ExplorerError",
    "Page",
    "Store",
    "document_of",
    "explore",
    "facts_of",
    "model_name",
    "prompt_of",
    "run_beside",
    "run_traced",
    "save_html",
]
