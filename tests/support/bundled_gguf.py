"""The bundled model as a GGUF file: a small model that answers."""

from pathlib import Path

from src.inference.chat_encoding import template_to_write
from src.model import load_model
from src.model.saving_gguf import save_gguf


def write_bundled_gguf(path: Path, kind: str | None = None) -> Path:
    """Writes the file, perhaps quantized, and returns its path."""
    template = template_to_write(load_model().source)
    save_gguf(None, path, kind, chat_template=template)
    return path
