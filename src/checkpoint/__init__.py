"""Checkpoints: bytes on disk to named tensors. Knows the files, and no model."""

from .checkpoint import (
    Checkpoint,
    open_gguf_checkpoint,
    open_hugging_face_checkpoint,
    open_meta_checkpoint,
)
from .errors import CheckpointError, FileMemoryError
from .hugging_face_config import HuggingFaceConfig, read_hugging_face_config
from .params import read_params
from .safetensors import read_safetensors
from .torch_pth import read_pth

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "FileMemoryError",
    "HuggingFaceConfig",
    "open_gguf_checkpoint",
    "open_hugging_face_checkpoint",
    "open_meta_checkpoint",
    "read_hugging_face_config",
    "read_params",
    "read_pth",
    "read_safetensors",
]
