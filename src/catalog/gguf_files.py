"""Select one of several GGUF files by the quantization in their names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..untrusted import some_of
from .errors import mismatch

PREFERRED = ("Q4_K_M", "Q8_0")
"""The quantizations for a name without one; otherwise a single model is used."""

_PART = re.compile(r"-([0-9]{5})-of-([0-9]{5})\Z", re.ASCII)
_QUANTIZATION = re.compile(
    r"(?:\A|[-._/])((?:UD-)?(?:I?Q[0-9]\w*|TQ[0-9]_0|MXFP4\w*|BF16|FP?16|FP?32))\Z",
    re.ASCII | re.IGNORECASE,
)
# Other GGUF files stored with models: image projectors and importance matrices.
_OTHER_KINDS = ("mmproj", "imatrix")


@dataclass(frozen=True)
class GgufModel:
    """A model among the files of a repository or directory.

    Attributes:
        quantization: The quantization in the file name, in capitals, or None.
        files: The names of the files. The parts of a split model are in order.
        count: The number of files that the model should have.
    """

    quantization: str | None
    files: tuple[str, ...]
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether all parts of the model exist."""
        return len(self.files) == self.count


def quantization_of(name: str) -> str | None:
    """Return the quantization at the end of a GGUF file name, in capitals, or None."""
    stem = _PART.sub("", name.rpartition("/")[2][: -len(".gguf")])
    match = _QUANTIZATION.search(stem)
    return match[1].upper() if match else None


def gguf_models(names: Iterable[str]) -> list[GgufModel]:
    """Return the models among the given files, sorted by name."""
    parts: dict[tuple[str, int], list[str]] = {}
    for name in sorted(names):
        base = name.rpartition("/")[2].lower()
        if base.endswith(".gguf") and not any(kind in base for kind in _OTHER_KINDS):
            stem = name[: -len(".gguf")]
            part = _PART.search(stem)
            count = int(part[2]) if part else 1
            parts.setdefault((_PART.sub("", stem), count), []).append(name)
    return [
        GgufModel(quantization_of(files[0]), tuple(files), count)
        for (_, count), files in parts.items()
    ]


def choose_gguf(label: str, names: Iterable[str], wanted: str | None) -> GgufModel | None:
    """Return the model with the wanted or preferred quantization, or None without models.

    Raises:
        CatalogError: No file has the wanted quantization, or no quantization is wanted
            and none of several models is preferred.
    """
    models = gguf_models(names)
    if not models:
        return None
    for quantization in PREFERRED if wanted is None else (wanted.upper(),):
        for model in models:
            if model.quantization == quantization:
                return model
    if wanted is None and len(models) == 1:
        return models[0]
    available = [model.quantization or model.files[0] for model in models]
    rule = (
        f"GGUF files of {wanted.upper()}"
        if wanted
        else "a quantization after the name and `:`"
    )
    raise mismatch(label, "quantization", rule, some_of(available, str, most=20))
