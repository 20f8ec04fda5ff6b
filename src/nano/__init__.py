"""The bundled model: its checkpoint, and everything that made it."""

from __future__ import annotations

from pathlib import Path

MODEL_DIRECTORY = Path(__file__).resolve().parent / "model"
"""The directory of the bundled model in Meta's layout."""

__all__ = ["MODEL_DIRECTORY"]
