"""What comes from outside: files, opened with care; JSON, read strictly; text, fit to be shown.

Any package may import this one; it imports none of them.
"""

from .regular_files import UnfitFileError, followed_inside, open_regular, read_whole, reason_of
from .shown import described, label_of, shown
from .strict_json import is_integer, parse_strict_json

__all__ = [
    "UnfitFileError",
    "described",
    "followed_inside",
    "is_integer",
    "label_of",
    "open_regular",
    "parse_strict_json",
    "read_whole",
    "reason_of",
    "shown",
]
