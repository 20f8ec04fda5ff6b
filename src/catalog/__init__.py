"""Models by their names: their place on this machine, and their download.

A name is resolved to a path before anything is loaded. Only a name loads these modules; a
path does not.
"""

from .downloads import Downloads
from .errors import CatalogError
from .names import find_model, is_name

__all__ = ["CatalogError", "Downloads", "find_model", "is_name"]
