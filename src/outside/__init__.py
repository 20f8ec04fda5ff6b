"""What comes from outside: files, opened with care; JSON, read strictly; text, fit to be shown.

Any room may import this one; it imports none of them.
"""

from .regular_files import UnfitFileError, followed_inside, open_regular, read_whole, reason_of
from .shown import shown
from .strict_json import parse_strict_json

__all__ = [
    "UnfitFileError",
    "followed_inside",
    "open_regular",
    "parse_strict_json",
    "read_whole",
    "reason_of",
    "shown",
]
