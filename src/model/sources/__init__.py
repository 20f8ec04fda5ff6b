"""A model on disk: its sizes, weights, tokenizer, chat template and end tokens.

Each file layout is a subclass of `Source` in a module of this package. All other modules
use the `Source` interface and do not depend on the layout.
"""

import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.model_directory import find_model_directory
from ...tokenizer import MAX_FILE_BYTES, Tokenizer, TokenizerNotFoundError, load_tokenizer
from ...tokenizer.template_files import TEMPLATE_FILES, read_chat_templates
from ...untrusted import followed_inside, label_of, read_whole
from ..args import ModelArgs
from ..errors import ModelConfigError, ModelError
from ..llama import LlamaTransformer

_SIDE_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.json",
    *TEMPLATE_FILES.values(),
)
BUNDLED_MODEL = Path(__file__).resolve().parent.parent.parent / "nano" / "model"


@dataclass(frozen=True)
class Source(ABC):
    """The contents of a model directory or GGUF file except for the weights.

    Attributes:
        path: The directory that contains the weights, or the GGUF file.
        top: The requested directory or file.
        args: The sizes and constants, without sizes that are known only from the tensors.
        given: The contents of the hyperparameter file, or the metadata keys of a GGUF
            file. All keys that have an effect are checked.
        end_ids: The tokens that end an answer. The model may lack rows for some of them.
        ignored: The names of keys that have no effect, by file name.
        sampling: The sampling options that the files recommend, by `SamplingArgs` field.
        given_name: The name by which the model was requested, or None for a path.
        model_type: The model family, as named in `config.json`.
        given_label: The name of `given` in messages.
        factor_origin: The origin of the RoPE scaling factor, for messages.
        sampling_origin: The file or keys that `sampling` was read from, for messages.
        verified_as: How `--verify` passes the weights to transformers: as a directory to
            read, or as tensors from PyTorch files. None if transformers cannot read the
            layout.
        chat_format: The chat format of models in this layout that have neither a template
            nor special tokens for turns, or None.
    """

    path: Path
    top: Path
    args: ModelArgs
    given: Mapping[str, object]
    end_ids: tuple[int, ...] = ()
    ignored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    given_name: str | None = field(default=None, kw_only=True)
    model_type: str = field(default="llama", kw_only=True)

    given_label: ClassVar[str]
    factor_origin: ClassVar[str]
    sampling_origin: ClassVar[str] = ""
    verified_as: ClassVar[Literal["directory", "tensors"] | None]
    chat_format: ClassVar[str | None] = None

    @classmethod
    @abstractmethod
    def read(cls, path: Path, top: Path) -> Self:
        """Read the small files of a model; the arguments become attributes."""

    @property
    def is_bundled(self) -> bool:
        """Return whether this is the model that is bundled with the package."""
        return self.top.resolve() == BUNDLED_MODEL

    @property
    def name(self) -> str:
        """Return the requested name, or the escaped name of the directory or file."""
        if self.is_bundled:
            return "bundled model"
        if self.given_name is not None:
            return label_of(Path(self.given_name))
        # The name of a symbolic link to a file is more specific than the target's name.
        path = self.top if self.top.is_file() else self.top.resolve()
        return label_of(Path(path.name))

    @property
    def has_other_parts(self) -> bool:
        """Return whether the model has parts that are not for text, such as images."""
        return False

    @property
    def titles(self) -> tuple[str, ...]:
        """Return the names by which the model may be identified."""
        return self.name, self.path.name

    def with_rope_tensors(
        self, args: ModelArgs, _tensors: Mapping[str, tuple[float, ...]]
    ) -> ModelArgs:
        """Return args completed with the RoPE factors stored as tensors in GGUF files."""
        return args

    @property
    def transformer_class(self) -> type[LlamaTransformer]:
        """Return the network class."""
        return LlamaTransformer

    # ---- weights ----------------------------------------------------------------------

    @property
    @abstractmethod
    def weight_files(self) -> list[Path]:
        """Return the weight files; raise CheckpointError if one is missing."""

    @abstractmethod
    def open_checkpoint(self, one_by_one: bool = False, /) -> Checkpoint:
        """Open the weights; with `one_by_one`, merge or copy each one on look-up."""

    @property
    def is_merged(self) -> bool:
        """Return whether loading merges several files and thus copies the weights."""
        return False

    @property
    def quantization(self) -> str | None:
        """Return the format of quantized weights, or None if all weights are plain."""
        return None

    @abstractmethod
    def quantized_shapes(self, args: ModelArgs) -> Iterable[tuple[int, ...]]:
        """Return the shapes of the weights that may be quantized in their files."""

    def dequantized_bytes(self, args: ModelArgs) -> int:
        """Return the size in bytes of the plain weights created by `dequantize`."""
        return sum(map(math.prod, self.quantized_shapes(args))) * args.dtype.itemsize

    def rearranged_bytes(self, _args: ModelArgs) -> int:
        """Return the size in bytes of the weights that are copied to be rearranged."""
        return 0

    def notes(self, _has_output: bool) -> Iterable[str]:
        """Return notes about the files for the user."""
        return ()

    # ---- text -------------------------------------------------------------------------

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Return the chat templates by name: `default`, and optionally `tool_use`.

        Raises:
            TokenizerError: A template file is damaged.
        """
        for directory in self.places:
            if templates := read_chat_templates(directory):
                return templates
        return {}

    @property
    def places(self) -> tuple[Path, ...]:
        """Return the directories to search for small files: `path` and `top`."""
        return tuple(dict.fromkeys((self.path, self.top)))

    def find_tokenizer(self) -> Tokenizer | None:
        """Load the tokenizer, or return None if there is no tokenizer file."""
        for directory in self.places:
            with contextlib.suppress(TokenizerNotFoundError):
                return load_tokenizer(directory)
        return None

    def required_tokenizer(self) -> Tokenizer:
        """Load the tokenizer, or raise ModelError or TokenizerError."""
        # If no tokenizer is found, `load_tokenizer` raises the error.
        return self.find_tokenizer() or load_tokenizer(self.path)

    # ---- saving -----------------------------------------------------------------------

    @abstractmethod
    def config_json(
        self, args: ModelArgs, tokenizer: Tokenizer | None, dtype: str
    ) -> dict[str, object]:
        """Return a `config.json` in Hugging Face's layout for this model.

        Args:
            args: The sizes and constants, completed from the tensors.
            tokenizer: If not None, determines `bos_token_id` and `eos_token_id`.
            dtype: The name of the weights' dtype.
        """

    def side_files(self, _tokenizer: Tokenizer | None) -> Mapping[str, bytes]:
        """Return the contents of the tokenizer, template and generation files, by name.

        Raises:
            ModelError: A file is not a regular file, is too large, or is a link to a
                location outside the model.
        """
        files: dict[str, bytes] = {}
        for directory, name in product(self.places, _SIDE_FILES):
            path = directory / name
            if name not in files and os.path.lexists(path):
                target = followed_inside(path, ModelError, *self.places)
                files[name] = read_whole(target, MAX_FILE_BYTES, ModelError)
        return files

    def check_saved(  # noqa: B027 - copied files need no check
        self, directory: Path, args: ModelArgs, tokenizer: Tokenizer | None
    ) -> None:
        """Check that the files created in a directory agree with this model."""

    def gguf_tokenizer_keys(self, vocab_size: int) -> dict[str, Any]:
        """Return the GGUF metadata keys of the tokenizer, without the chat template."""
        from ...tokenizer.gguf_export import gguf_tokenizer_keys  # only needed for saving

        for directory in self.places:
            with contextlib.suppress(TokenizerNotFoundError):
                return gguf_tokenizer_keys(directory, vocab_size)
        return {"tokenizer.ggml.model": "no_vocab"}


# The module of each layout, which contains a `Source` subclass named SOURCE.
_MODULES = {"Meta": "meta", "Hugging Face": "hugging_face", "GGUF": "gguf"}


def find_source(path: str | Path | None) -> Source:
    """Read the small files of a model directory, or the header of a GGUF file.

    Args:
        path: See `load_model`.

    Raises:
        ModelError: The path contains no model, or its configuration contradicts itself.
        CatalogError: No model has this name, or the model cannot be downloaded.
        CheckpointError: A file cannot be read, or has an unsupported key or value.
    """
    if isinstance(path, str):
        from ...catalog import find_model, is_name  # only needed for names

        if is_name(path):
            return replace(find_source(find_model(path)), given_name=path)
    top = BUNDLED_MODEL if path is None else Path(path)
    model = find_model_directory(top)
    # The modules of other layouts are not imported, to save time.
    layout = import_module(f".{_MODULES[model.layout]}", __package__)
    source_class: type[Source] = layout.SOURCE
    try:
        return source_class.read(model.path, top)
    except ModelConfigError as error:
        raise ModelConfigError(f"{label_of(model.path)}: {error}") from None
