"""Checkpoints: bytes on disk to named tensors. Knows the files, and no model."""

from .errors import CheckpointError
from .meta_directory import Checkpoint, open_meta_checkpoint
from .safetensors import read_safetensors
from .shards import merge_shards
from .torch_pth import read_pth

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "merge_shards",
    "open_meta_checkpoint",
    "read_pth",
    "read_safetensors",
]
