"""Read the chat templates stored next to a tokenizer."""

import os
from pathlib import Path

from ..untrusted import described, read_whole
from .config_files import MAX_FILE_BYTES, read_json
from .errors import TokenizerError, mismatch

TEMPLATE_FILES = {
    "default": "chat_template.jinja",
    "tool_use": "additional_chat_templates/tool_use.jinja",
}
_CONFIG_FILES = ("tokenizer_config.json", "chat_template.json")
_KEY = "chat_template"
_RULE = "a text or a list of texts, each with its name"


def read_chat_templates(directory: Path) -> dict[str, str]:
    """Read the chat templates in a model directory.

    Separate template files take precedence over `tokenizer_config.json`, which contains
    either one template or a list of named templates. `chat_template.json` is read last.

    Returns:
        A mapping from the template name to the template source. The name is `default` for
        all conversations and `tool_use` for conversations with tools.

    Raises:
        TokenizerError: A file is damaged or too large.
    """
    templates: dict[str, str] = {}
    for name, file in TEMPLATE_FILES.items():
        path = directory / file
        if os.path.exists(path):
            templates[name] = _read_text(path)
    for file in _CONFIG_FILES:
        path = directory / file
        if "default" not in templates and os.path.exists(path):
            templates = _templates_of(path, read_json(path).get(_KEY)) | templates
    return templates


def _read_text(path: Path) -> str:
    try:
        return read_whole(path, MAX_FILE_BYTES, TokenizerError).decode("utf-8")
    except UnicodeDecodeError as error:
        raise mismatch(
            path, "text", "UTF-8", f"an invalid byte at offset {error.start}"
        ) from None


def _templates_of(path: Path, value: object) -> dict[str, str]:
    """Return the templates in the `chat_template` value of a file."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        raise mismatch(path, _KEY, _RULE, described(value))
    templates: dict[str, str] = {}
    for entry in value:
        match entry:
            case {"name": str(name), "template": str(template)}:
                templates[name] = template
            case _:
                raise mismatch(path, _KEY, _RULE, "another list")
    return templates
