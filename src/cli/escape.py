"""The one filter between data and the terminal: control characters are shown, never sent.

A model, a tensor name or a path may hold any character. Sent raw, some of them move the cursor,
recolour or retitle the terminal, answer back into the keyboard's stream, reorder what is read, or
hide text that is copied along unseen.
The filter looks at one character at a time, so a sequence that is split over several tokens is
caught as well as one that comes whole: without its first character the rest is plain text.
"""

import json
import re

_REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_LINE_CONTROLS = "\n\t"

# C0 and C1 controls and DEL, line and paragraph separators, and the bidirectional controls:
# marks (061C, 200E, 200F), embeddings and overrides (202A-202E), isolates (2066-2069).
# Source: Unicode 15.0, DerivedBidiClass.txt and chapter 23.2.
_MOVING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"

# What no terminal draws, so that text could hide in it: the other default-ignorable characters,
# tags (E0001-E007F) and supplementary variation selectors (E0100-E01EF) among them, and the marks
# of annotations (FFF9-FFFB). Shown as they are: the zero-width joiner and non-joiner (200C, 200D)
# and the variation selectors 180B-180F and FE00-FE0F, without which emoji and the scripts of India,
# Iran and Mongolia fall apart. The flags of England, Scotland and Wales, spelled in tags, do so.
# Source: Unicode 15.0, DerivedCoreProperties.txt, Default_Ignorable_Code_Point.
_INVISIBLE = (
    r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164"
    r"\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_CONTROLS = f"[{_MOVING}{_INVISIBLE}]"
_UNSAFE = re.compile(_CONTROLS)
_UNSAFE_IN_ONE_LINE = re.compile(_CONTROLS + r"|[\n\t]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace what cannot be encoded: each lone surrogate becomes U+FFFD.

    Arguments and typed lines hold one surrogate for each byte that is not UTF-8 (PEP 383).
    """
    return _SURROGATES.sub(_REPLACEMENT_CHARACTER, text)


def escape_controls(text: str) -> str:
    r"""Return text that is safe to show: controls as `\x1b` or `\u202e`, surrogates as U+FFFD.

    Newline and tab stay. escape(a + b) = escape(a) + escape(b) for every split.

    Args:
        text: Any string.
    """
    return _UNSAFE.sub(_escaped, replace_surrogates(text))


def escape_line(text: str, limit: int | None = None) -> str:
    r"""Return text that is safe to show and stays on one line: newline as `\n`, tab as `\t` too.

    Args:
        text: Any string.
        limit: The longest result in characters; a longer one is cut and ends with an ellipsis.
    """
    line = _UNSAFE_IN_ONE_LINE.sub(_escaped, replace_surrogates(text))
    if limit is not None and len(line) > limit:
        return line[: limit - 1] + "…"
    return line


def json_controls(text: str) -> str:
    r"""Return JSON in which controls stand as `\u009b`: they mean the same and are safe to show.

    Args:
        text: JSON that was written on several lines; all its controls but those are in strings.
    """
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _LINE_CONTROLS:
        return {"\n": r"\n", "\t": r"\t"}[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
