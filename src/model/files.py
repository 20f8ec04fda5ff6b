"""The small files of a model directory: each is read once, whoever asks for what it says."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import read_hugging_face_config, read_params
from ..checkpoint.model_directory import ModelDirectory, find_model_directory
from ..checkpoint.packed_weights import QuantizationConfig
from ..untrusted import label_of
from .args import ModelArgs, args_from_config, args_from_params, value_of
from .errors import ModelConfigError

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "nano" / "model"


@dataclass(frozen=True)
class ModelFiles:
    """What the small files of a model directory say; no weight has been looked at.

    Attributes:
        directory: Where the weights are.
        top: The directory that was asked for.
        args: The sizes; what only the tensors show is not in them yet.
        given: `params.json` or `config.json` as it is in the file, keys and values checked.
        end_ids: The tokens that end an answer, `generation_config.json` before `config.json`.
        tied: Whether the embeddings may serve as output.
        quantization: How quantized weights are stored, or None where all are plain.
    """

    directory: ModelDirectory
    top: Path
    args: ModelArgs
    given: Mapping[str, object]
    end_ids: tuple[int, ...] = ()
    tied: bool = True
    quantization: QuantizationConfig | None = None


def read_model_files(path: str | Path | None) -> ModelFiles:
    """Read the small files of a model directory.

    Args:
        path: As for `load_model`.

    Raises:
        ModelError: There is no model, or parts of its configuration contradict each other.
        CheckpointError: A file cannot be read, or has a key or a value that is not supported.
    """
    top = BUNDLED_MODEL if path is None else Path(path)
    found = find_model_directory(top)
    try:
        if found.layout == "Meta":
            params = read_params(found.path / "params.json")
            return ModelFiles(found, top, args_from_params(params), params)
        config = read_hugging_face_config(found.path)
        in_config: list[int] | int = value_of(config.given, "eos_token_id", [])
        ends = value_of(config.generation, "eos_token_id", in_config)
        return ModelFiles(
            found,
            top,
            args_from_config(config),
            config.given,
            end_ids=tuple(ends) if isinstance(ends, list) else (ends,),
            tied=config.values.get("tie_word_embeddings") is True,
            quantization=config.quantization,
        )
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(found.path)}: {error}") from None
