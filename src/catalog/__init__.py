"""Models by their names: where each is on this machine, and how it is downloaded if it is
not.

A name leads to a path before anything is loaded. Only a name loads these modules; a path
does not.
"""

from .downloads import Downloads
from .errors import CatalogError
from .names import find_model, is_name

__all__ = ["CatalogError", "Downloads", "find_model", "is_name"]
