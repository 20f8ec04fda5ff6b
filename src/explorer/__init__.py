"""The explorer, which saves a traced run as one self-contained HTML file."""

from .collect import Collector
from .errors import ExplorerError
from .run import (
    Page,
    explore,
    patches_record,
    prompt_of,
    prompt_record,
    run_beside,
    run_traced,
)
from .texts import BASE
from .write import DEFAULT_LIMIT, Store, save_html, write_html

__all__ = [
    "BASE",
    "DEFAULT_LIMIT",
    "Collector",
    "ExplorerError",
    "Page",
    "Store",
    "explore",
    "patches_record",
    "prompt_of",
    "prompt_record",
    "run_beside",
    "run_traced",
    "save_html",
    "write_html",
]
