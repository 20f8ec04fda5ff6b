"""Find models on this machine by name, or download them.

A name is resolved to a path before anything is loaded. These modules are imported only
for names, not for paths.
"""

from .downloads import Downloads
from .errors import CatalogError
from .names import find_model, is_name

__all__ = ["CatalogError", "Downloads", "find_model", "is_name"]
