"""What comes from outside: JSON, read strictly, and text, made fit to be shown in an error.

Any room may import this one; it imports none of them.
"""

from .shown import shown
from .strict_json import parse_strict_json

__all__ = ["parse_strict_json", "shown"]
