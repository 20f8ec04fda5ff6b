"""Convert grammars from llama.cpp's notation (GBNF) to llguidance's Lark notation.

llguidance first splits text into terminals, greedily, and then parses the terminals. For
example, no letter can follow the terminal `[a-z]+`. GBNF grammars do not have terminals,
so this converter writes only single-character terminals, and the converted grammar
accepts the same strings as the original.

Source: grammars/README.md of llama.cpp, and its parser, src/llama-grammar.cpp.
"""

import re

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_NEWLINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_REPETITION = re.compile(r"[*+?]|\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})"
    r"|\\([nrt\"\\\[\]-])|([^\\])",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_MOST_REPETITIONS = 2000  # as in llama.cpp
_DEEPEST = 100  # maximum nesting depth of groups


def is_gbnf(text: str) -> bool:
    """Return whether a grammar is in GBNF, in which `::=` follows the name of a rule."""
    return _RULE.search(text) is not None


def lark_of_gbnf(text: str) -> str:
    """Convert a GBNF grammar to Lark notation, or raise ValueError if it is invalid."""
    return _Converter(text).grammar()


class _Converter:
    """A recursive-descent parser that converts each rule as it is parsed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0
        self._names = {"root": "start"}
        self._used: dict[str, int] = {}  # the position at which each rule is first used

    def grammar(self) -> str:
        rules: dict[str, str] = {}
        self._skip(_BLANKS_AND_NEWLINES)
        while self._place < len(self._text):
            name = self._take(_NAME, "the name of a rule")[0]
            if name in rules:
                raise self._error(f"each rule once, got {name} twice")
            self._skip(_BLANKS)
            self._expect("::=")
            self._skip(_BLANKS_AND_NEWLINES)
            rules[name] = self._alternatives(_BLANKS)
            if self._place < len(self._text) and self._text[self._place] not in "\r\n":
                raise self._error("the end of the rule")
            self._skip(_BLANKS_AND_NEWLINES)
        for name, place in {"root": 0, **self._used}.items():
            if name not in rules:
                self._place = place
                raise self._error(f"a rule with the name {name}")
        return "".join(
            f"{self._lark_name(name)}: {rule}\n" for name, rule in rules.items()
        )

    def _alternatives(self, blanks: re.Pattern[str]) -> str:
        alternatives = [self._sequence(blanks)]
        while self._text.startswith("|", self._place):
            self._place += 1
            self._skip(_BLANKS_AND_NEWLINES)
            alternatives.append(self._sequence(blanks))
        return " | ".join(alternatives)

    def _sequence(self, blanks: re.Pattern[str]) -> str:
        items: list[str] = []
        while (item := self._item()) is not None:
            self._skip(blanks)
            times = _REPETITION.match(self._text, self._place)
            while times is not None:
                item = f"({item}){self._lark_repetition(times)}" if item else ""
                self._place = times.end()
                self._skip(blanks)
                times = _REPETITION.match(self._text, self._place)
            items.append(item)
        return " ".join(filter(None, items)) or '""'

    def _item(self) -> str | None:
        """Parse a literal, a set, a group or a name; return None if there is none."""
        first = self._text[self._place : self._place + 1]
        if first == '"':
            return self._literal()
        if first == "[":
            return self._set()
        if first == "(":
            return self._group()
        if first == ".":
            self._place += 1
            return "/(?s:.)/"
        name = _NAME.match(self._text, self._place)
        if name is None:
            return None
        self._used.setdefault(name[0], self._place)
        self._place = name.end()
        return self._lark_name(name[0])

    def _literal(self) -> str:
        self._place += 1
        characters = []
        while not self._text.startswith('"', self._place):
            characters.append(f"/{_lark_character(self._character())}/")
        self._place += 1
        return " ".join(characters)

    def _set(self) -> str:
        self._place += 1
        is_negated = self._text.startswith("^", self._place)
        self._place += is_negated
        ranges = []
        while not self._text.startswith("]", self._place):
            first = last = self._character()
            if (
                self._text.startswith("-", self._place)
                and self._text[self._place + 1 :][:1] != "]"
            ):
                self._place += 1
                last = self._character()
            if last < first:
                raise self._error(f"a range from low to high, got {first!r} to {last!r}")
            ranges.append(f"{_lark_character(first)}-{_lark_character(last)}")
        if not ranges:
            raise self._error("a character in the set")
        self._place += 1
        return f"/[{'^' if is_negated else ''}{''.join(ranges)}]/"

    def _group(self) -> str:
        self._place += 1
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"at most {_DEEPEST} groups within each other")
        self._skip(_BLANKS_AND_NEWLINES)
        alternatives = self._alternatives(_BLANKS_AND_NEWLINES)
        self._expect(")")
        self._depth -= 1
        return f"({alternatives})"

    def _character(self) -> str:
        """Parse one character of a literal or a set, which may be an escape sequence."""
        match = self._take(_CHARACTER, "a character or one of its escapes")
        *codes, escape, plain = match.groups()
        if plain is not None:
            return str(plain)
        if escape is not None:
            return _ESCAPES.get(escape, escape)
        code = int("".join(filter(None, codes)), 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._error(f"the code of a character, got {code:#x}")
        return chr(code)

    def _lark_name(self, name: str) -> str:
        """Return the Lark name of a rule, in lower case and without a leading digit."""
        return self._names.setdefault(name, f"rule_{len(self._names)}")

    def _lark_repetition(self, times: re.Match[str]) -> str:
        if times[1] is None:
            return times[0]
        least = int(times[1])
        most = least if times[2] is None else int(times[3] or _MOST_REPETITIONS)
        if not least <= most <= _MOST_REPETITIONS:
            rule = f"repetition counts from low to high, at most {_MOST_REPETITIONS}"
            raise self._error(f"{rule}, got {times[0]}")
        return f"{{{least},}}" if times[2] and not times[3] else f"{{{least},{most}}}"

    def _skip(self, blanks: re.Pattern[str]) -> None:
        match = blanks.match(self._text, self._place)
        assert match is not None  # the pattern also matches an empty string
        self._place = match.end()

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = pattern.match(self._text, self._place)
        if match is None:
            raise self._error(expected)
        self._place = match.end()
        return match

    def _expect(self, mark: str) -> None:
        if not self._text.startswith(mark, self._place):
            raise self._error(mark)
        self._place += len(mark)

    def _error(self, expected: str) -> ValueError:
        line = self._text.count("\n", 0, self._place) + 1
        column = self._place - self._text.rfind("\n", 0, self._place)
        return ValueError(f"line {line} column {column}: expected {expected}")


def _lark_character(character: str) -> str:
    """Return a character, escaped for a Lark regular expression."""
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{ord(character):x}}}"
