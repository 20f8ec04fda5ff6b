"""Word wrap at spaces for text that arrives in parts and is shown immediately."""

import re
import unicodedata

_NARROWEST = 20  # in narrower windows, text is not wrapped
_TAB = 8  # number of columns between tab stops
_JOINER = "\u200d"
_EMOJI_STYLE = "\ufe0f"
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_REGIONAL = re.compile("[\U0001f1e6-\U0001f1ff]")  # a pair of these letters is a flag
# Wide characters that cannot begin a line. Source: JIS X 4051, characters not starting a
# line.
_NOT_FIRST = (
    "、。，．：；？！）」』】〉》〕］｝・ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々…‥"
)
_FENCE = re.compile(r" {0,3}(```|~~~)")
# Lines that are not wrapped: indented code, except for list items, and table rows.
_VERBATIM = re.compile(r"( {4}|\t)\s*(?![-*+] |\d{1,3}[.)] )\S|\s*\|")
_LONGEST_BEGINNING = 80  # number of characters by which code is recognized


def character_width(character: str) -> int:
    """Return the maximum number of columns that a terminal uses for a character.

    A terminal that does not support joined emoji draws their parts side by side. The
    parts are therefore counted separately, so a line may be too short, but never too
    long.
    """
    if character == _EMOJI_STYLE:
        return 1  # it may make the preceding character wide
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    is_wide = unicodedata.east_asian_width(character) in "WF"
    return 2 if is_wide or _REGIONAL.match(character) else 1


def _is_certain(character: str) -> bool:
    """Return whether all terminals draw a character with the same width."""
    category = unicodedata.category(character)
    return category[0] in "LNP" or category in ("Mn", "Sm", "Sc", "Sk")


def _may_part(before: str, character: str) -> bool:
    """Return whether a line may break between two characters that are not spaces."""
    if character in _NOT_FIRST or character in _SKIN_TONES or before == _JOINER:
        return False
    if character_width(character) == 2 and not _REGIONAL.match(character):
        return True
    return character_width(before) == 2 and character.isalnum() and character.isascii()


def wrapped_line(line: str, columns: int) -> str:
    """Wrap a complete line at spaces."""
    if columns < _NARROWEST:
        return line
    rows: list[str] = []
    column = columns
    for word in line.split(" "):
        width = sum(map(character_width, word))
        if column + 1 + width < columns:
            rows[-1] += f" {word}"
            column += 1 + width
        else:
            rows.append(word)
            column = width
    return "\n".join(rows)


class WordWrap:
    """Wraps an answer at spaces for a terminal, part by part.

    A word is shown as soon as it arrives. If it grows beyond the edge of the window, it
    is erased together with the spaces before it and shown again on the next line, so that
    no line ends with spaces. Words longer than a line, code blocks and table rows are
    wrapped by the terminal.
    """

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        """Reset the state for a new text."""
        self._fence: str | None = None  # the mark that ends the current code block
        self._columns = 0
        self._begin_line()

    def _begin_line(self) -> None:
        """Start a new line of the text."""
        self._beginning = ""
        self._begin_row("")

    def _begin_row(self, word: str) -> None:
        """Start a new row on the screen with a word."""
        self._word = word  # the text since the last possible line break
        self._column = sum(map(character_width, word))
        self._gap = ""  # spaces that are shown only when another word follows
        self._shown_gap = 0  # number of columns of the spaces before the word
        self._can_move = False  # whether the word can move to the next row

    def wrapped(self, text: str, columns: int) -> str:
        """Return the output for the next part of the text."""
        if columns != self._columns:
            # The terminal may have reflowed the row, so its words are not moved.
            self._columns = columns
            self._column %= max(columns, 1)
            self._can_move = False
        return "".join(map(self._output_of, text))

    def _output_of(self, character: str) -> str:
        if character == "\n":
            gap = self._gap
            fence = _FENCE.match(self._beginning)
            if self._fence is None and fence is not None:
                self._fence = fence[1]
            elif fence is not None and fence[1] == self._fence:
                self._fence = None
            self._begin_line()
            return f"{gap}\n"
        if len(self._beginning) < _LONGEST_BEGINNING:
            self._beginning += character
        if character in " \t":
            self._gap += character
            return ""
        if self._gap:
            return self._begin_word(character)
        if self._word and _may_part(self._word[-1], character):
            return self._begin_word(character)
        return self._continue_word(character)

    def _begin_word(self, character: str) -> str:
        gap = self._gap
        gap_width = self._width_of_gap()
        width = character_width(character)
        if self._column and not self._fits(gap_width + width):
            self._begin_row(character)
            return f"\n{character}"
        self._can_move = self._column > 0
        self._advance(gap_width)
        self._advance(width)
        self._word = character
        self._gap = ""
        self._shown_gap = gap_width
        return gap + character

    def _continue_word(self, character: str) -> str:
        width = character_width(character)
        word = self._word + character
        if not self._fits(width) and self._can_move and all(map(_is_certain, self._word)):
            back = self._shown_gap + sum(map(character_width, self._word))
            self._begin_row(word)
            return f"\x1b[{back}D\x1b[K\n{word}"
        self._advance(width)
        self._word = word
        return character

    def _fits(self, width: int) -> bool:
        """Return True if `width` columns fit or if the terminal wraps long rows."""
        if self._columns < _NARROWEST or self._fence or _VERBATIM.match(self._beginning):
            return True
        # The last column is not used, because terminals differ in where they place the
        # cursor after it.
        return self._column + width < self._columns

    def _advance(self, width: int) -> None:
        """Advance the column as a terminal does, which wraps when the row is full."""
        self._column += width
        if self._columns and self._column > self._columns:
            self._column = width

    def _width_of_gap(self) -> int:
        column = self._column
        for blank in self._gap:
            column += _TAB - column % _TAB if blank == "\t" else 1
        return column - self._column
