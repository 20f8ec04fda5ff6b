"""What special ids are for, as the files beside a tokenizer say it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import mismatch, shown
from .files import kind_of, read_json
from .tokenizer import Roles

CONFIG_FILE = "tokenizer_config.json"
TOKENS_MAP_FILE = "special_tokens_map.json"
_GENERATION_FILE = "generation_config.json"

# Where no file says it, tokens of these names begin and end texts.
_BEGIN_NAMES = ("<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<s>")
_END_NAMES = ("<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<|endoftext|>")

# What ends an answer wherever it is a special token.
_STOP_NAMES = (*_END_NAMES, "<|eom_id|>", "<|eot_id|>", "<|im_end|>")


@dataclass(frozen=True)
class Template:
    """What a tokenizer file itself puts around a text.

    Attributes:
        begin: name of the token before a text, or None.
        end: name of the token after it, or None.
    """

    begin: str | None = None
    end: str | None = None


@dataclass(frozen=True)
class Settings:
    """What the files beside a tokenizer say about its tokens.

    Attributes:
        names: the token of each role that they name: bos_token, eos_token, unk_token.
        sources: the file that named it.
        adds_bos: whether texts begin with the begin token; None where they do not say.
        end_ids: ids that end an answer.
        end_ids_source: the file that lists them.
    """

    names: Mapping[str, str]
    sources: Mapping[str, Path]
    adds_bos: bool | None
    end_ids: frozenset[int]
    end_ids_source: Path

    def roles(
        self, special_tokens: Mapping[str, int], vocab_size: int, template: Template | None
    ) -> Roles:
        """Find what the special ids of a tokenizer are for.

        Args:
            special_tokens: the id of each special name.
            vocab_size: V.
            template: what the tokenizer file says; None where it says nothing.

        Raises:
            TokenizerError: for a named token that the tokenizer does not have, or such an id.
        """
        given = template or Template()
        begin = self._name("bos_token", given.begin, _BEGIN_NAMES, special_tokens)
        end = self._name("eos_token", given.end, _END_NAMES, special_tokens)
        stop_ids = {special_tokens[name] for name in _STOP_NAMES if name in special_tokens}
        for number in self.end_ids:
            if not 0 <= number < vocab_size:
                what = f"0 <= id < {vocab_size}"
                raise mismatch(self.end_ids_source, "eos_token_id", what, number)
        stop_ids |= self.end_ids
        if end is not None:
            stop_ids.add(special_tokens[end])
        adds_bos = self.adds_bos
        if adds_bos is None:
            adds_bos = begin in _BEGIN_NAMES if template is None else template.begin is not None
        return Roles(
            bos_id=None if begin is None else special_tokens[begin],
            eos_id=None if end is None else special_tokens[end],
            stop_ids=frozenset(stop_ids),
            adds_bos=adds_bos and begin is not None,
        )

    def _name(
        self,
        role: str,
        by_template: str | None,
        known: tuple[str, ...],
        special_tokens: Mapping[str, int],
    ) -> str | None:
        """Give the token of a role: as the files name it, the tokenizer file, or the known one."""
        name = self.names.get(role)
        if name is not None and name not in special_tokens:
            what = "a special token of the tokenizer"
            raise mismatch(self.sources[role], role, what, f"'{shown(name)}'")
        return name or by_template or next((n for n in known if n in special_tokens), None)


def read_settings(directory: Path) -> Settings:
    """Read what the files beside a tokenizer say about its tokens.

    Args:
        directory: may hold `tokenizer_config.json`, which goes before `special_tokens_map.json`,
            and `generation_config.json`, whose `eos_token_id` may list several ids.

    Raises:
        TokenizerError: for a file that is not what it has to be.
    """
    names: dict[str, str] = {}
    sources: dict[str, Path] = {}
    for path in (directory / CONFIG_FILE, directory / TOKENS_MAP_FILE):
        config = _read(path)
        for role in ("bos_token", "eos_token", "unk_token"):
            name = token_name(path, role, config.get(role))
            if name is not None and role not in names:
                names[role], sources[role] = name, path
    flag = _read(directory / CONFIG_FILE).get("add_bos_token")
    if flag is not None and not isinstance(flag, bool):
        raise mismatch(directory / CONFIG_FILE, "add_bos_token", "true or false", kind_of(flag))
    generation = directory / _GENERATION_FILE
    return Settings(names, sources, flag, _end_ids(generation), generation)


def _read(path: Path) -> dict[str, object]:
    return read_json(path) if os.path.exists(path) else {}


def token_name(path: Path, role: str, value: object) -> str | None:
    """Give the token of a role: written as a text, or as an object with its `content`.

    Args:
        path: the file, for errors.
        role: the key, for errors.
        value: what the file says; null and an empty text name no token.

    Raises:
        TokenizerError: where it is anything else.
    """
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise mismatch(path, role, "a text or an object with content", kind_of(value))
    return value


def _end_ids(path: Path) -> frozenset[int]:
    """Give the end ids that a generation configuration lists."""
    value = _read(path).get("eos_token_id")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, int):
            raise mismatch(path, "eos_token_id", "a number or a list of numbers", kind_of(number))
    return frozenset(listed)
