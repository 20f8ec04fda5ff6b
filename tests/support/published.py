"""The configuration files of published models that `tests/published/README.md`
describes.
"""

import json
from pathlib import Path
from typing import Any

_PLACE = Path(__file__).resolve().parent.parent / "published"


def published(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of one kind of file by the repository that has it."""
    found: dict[str, dict[str, Any]] = json.loads(
        (_PLACE / name).read_text(encoding="utf-8")
    )
    return found


CONFIGS = published("config.json")
GENERATION_CONFIGS = published("generation_config.json")
TOKENIZER_CONFIGS = published("tokenizer_config.json")
MLX = ("pphothidaen/HoroConsultant", "DeadByDawn101/RavenX-Sec", "ttotdev/slm-prototype")
"""The configurations of weights that MLX quantized."""

LOADED = tuple(name for name in CONFIGS if name not in MLX)
