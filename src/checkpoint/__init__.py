"""Checkpoints: bytes on disk to named tensors. Knows the files, and no model."""

from .checkpoint import (
    Checkpoint,
    open_gguf_checkpoint,
    open_hugging_face_checkpoint,
    open_meta_checkpoint,
)
from .errors import CheckpointError, FileMemoryError
from .gguf import GgufFile, read_gguf
from .gguf_config import GgufConfig, read_gguf_config
from .hugging_face_config import HuggingFaceConfig, read_hugging_face_config
from .params import read_params
from .safetensors import read_safetensors
from .shards import merge_shards
from .torch_pth import read_pth

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "FileMemoryError",
    "GgufConfig",
    "GgufFile",
    "HuggingFaceConfig",
    "merge_shards",
    "open_gguf_checkpoint",
    "open_hugging_face_checkpoint",
    "open_meta_checkpoint",
    "read_gguf",
    "read_gguf_config",
    "read_hugging_face_config",
    "read_params",
    "read_pth",
    "read_safetensors",
]
