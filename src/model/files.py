"""What a model says of itself beside its weights: read once, whoever asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import read_params
from ..checkpoint.hugging_face_config import read_hugging_face_config
from ..checkpoint.model_directory import ModelDirectory, find_model_directory
from ..checkpoint.packed_weights import QuantizationConfig
from ..checkpoint.params import value_of
from ..untrusted import label_of
from .args import ModelArgs, args_from_config, args_from_gguf, args_from_params
from .errors import ModelConfigError

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "nano" / "model"
CHAT_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True)
class ModelFiles:
    """What the small files of a model directory say, or the keys of a GGUF file; no weight is read.

    Attributes:
        directory: Where the weights are.
        top: The directory or the file that was asked for.
        args: The sizes; what only the tensors show is not in them yet.
        given: `params.json` or `config.json` as it is in the file, or the keys of a GGUF file;
            those that say what is computed are checked.
        end_ids: The tokens that end an answer, `generation_config.json` before `config.json`.
        tied: Whether the embeddings may serve as output.
        quantization: How quantized weights of a directory are stored, or None where all are plain.
        chat_template: That of a GGUF file, or None; those of directories have files of their own.
    """

    directory: ModelDirectory
    top: Path
    args: ModelArgs
    given: Mapping[str, object]
    end_ids: tuple[int, ...] = ()
    tied: bool = True
    quantization: QuantizationConfig | None = None
    chat_template: str | None = None

    @property
    def is_bundled(self) -> bool:
        """Return whether this is the model that comes with the package."""
        return self.top.resolve() == BUNDLED_MODEL

    @property
    def name(self) -> str:
        """Return what to call the model: its directory or file, without where that is."""
        if self.is_bundled:
            return "bundled model"
        # A link to a file has a name that says more than that of its target.
        return (self.top if self.top.is_file() else self.top.resolve()).name


def read_model_files(path: str | Path | None) -> ModelFiles:
    """Read the small files of a model directory, or the header of a GGUF file.

    Args:
        path: As for `load_model`.

    Raises:
        ModelError: There is no model, or parts of its configuration contradict each other.
        CheckpointError: A file cannot be read, or has a key or a value that is not supported.
    """
    top = BUNDLED_MODEL if path is None else Path(path)
    found = find_model_directory(top)
    try:
        if found.layout == "GGUF":
            from ..checkpoint.gguf_config import read_gguf_config

            first, keys = found.gguf_parts[0], found.gguf_parts[0].keys
            tensors = {name: t for part in found.gguf_parts for name, t in part.tensors.items()}
            args = args_from_gguf(read_gguf_config(first), tensors)
            template: str | None = value_of(keys, CHAT_TEMPLATE_KEY, None)
            return ModelFiles(found, found.path, args, keys, chat_template=template)
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
