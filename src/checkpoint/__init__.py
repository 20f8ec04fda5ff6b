"""Read and write model files as named tensors and validated keys."""

from .checkpoint import Checkpoint
from .errors import CheckpointError, FileMemoryError
from .params import read_params
from .safetensors import read_safetensors
from .torch_pth import read_pth

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "FileMemoryError",
    "read_params",
    "read_pth",
    "read_safetensors",
]
