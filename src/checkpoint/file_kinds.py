"""What a file is that is not the checkpoint it was taken for, told by its first bytes."""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "found_kind"]

HEAD_BYTES = 512

_KINDS = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"\x93NUMPY", "a NumPy .npy file"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", "a PyTorch file from before the zip format"),
    (257, b"ustar", "a tar file, PyTorch's oldest format"),
    (8, b'{"', "a safetensors file"),
    (0, b"<", "a text file that starts with '<', perhaps an error page"),
)


def found_kind(head: bytes) -> str:
    """Name the kind of a file.

    Args:
        head: its first `HEAD_BYTES` bytes, or all of a shorter one.

    Returns:
        Words for an error, such as `a GGUF file`; the first eight bytes where the kind is unknown.
    """
    if not head:
        return "an empty file"
    for offset, magic, description in _KINDS:
        if head[offset : offset + len(magic)] == magic:
            return description
    if head[0] == 0x80 and head[1:2] <= b"\x05":
        return "a bare pickle"
    return f"bytes {head[:8].hex(' ')}"
