"""Checkpoints: bytes on disk to named tensors. Knows the files, and no model."""

from .checkpoint import Checkpoint
from .errors import CheckpointError, FileMemoryError
from .hugging_face_config import CONFIG_FILE as HUGGING_FACE_CONFIG_FILE
from .hugging_face_config import HuggingFaceConfig
from .hugging_face_directory import WEIGHT_FILES as HUGGING_FACE_WEIGHT_FILES
from .hugging_face_directory import open_hugging_face_checkpoint
from .meta_directory import open_meta_checkpoint
from .safetensors import read_safetensors
from .shards import merge_shards
from .torch_pth import read_pth

__all__ = [
    "HUGGING_FACE_CONFIG_FILE",
    "HUGGING_FACE_WEIGHT_FILES",
    "Checkpoint",
    "CheckpointError",
    "FileMemoryError",
    "HuggingFaceConfig",
    "merge_shards",
    "open_hugging_face_checkpoint",
    "open_meta_checkpoint",
    "read_pth",
    "read_safetensors",
]
