"""Loading: find the layout of a directory, map the weights, check that the parts fit together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import ml
from ..checkpoint import Checkpoint, open_meta_checkpoint
from ..checkpoint.names import is_harmless
from ..tokenizer import Tokenizer, TokenizerNotFoundError, load_tokenizer
from .args import ModelArgs, model_args
from .errors import ModelConfigError, ModelError
from .llama import LlamaTransformer
from .memory import readable_bytes

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "nano" / "model"
_META_LAYOUT = "params.json, consolidated.00.pth (and further shards) and tokenizer.model"
_MOST_NAMES_SHOWN = 10
_MOST_UNUSED_SHOWN = 5


@dataclass(frozen=True)
class Model:
    """A model that is ready to run.

    Attributes:
        args: Its sizes.
        tokenizer: None when the directory has no tokenizer file.
        transformer: The network; its weights lie in the mapped files.
        checkpoint: The files, their parameters and tensors.
        source_directory: Where the files are.
        parameter_count: Numbers in all weights.
        notes: What was decided while loading, to be shown to the user.
    """

    args: ModelArgs
    tokenizer: Tokenizer | None
    transformer: LlamaTransformer
    checkpoint: Checkpoint
    source_directory: Path
    parameter_count: int
    notes: tuple[str, ...]

    @property
    def mapped_bytes(self) -> int:
        """Returns the bytes of the mapped weight files."""
        return self.checkpoint.mapped_bytes

    @property
    def tensors(self) -> Mapping[str, ml.Tensor]:
        """Returns the tensors of the checkpoint by key."""
        return self.checkpoint.tensors

    @property
    def description(self) -> str:
        """Returns one line for people: where from, how large, what was decided."""
        args = self.args
        parts = [
            str(self.source_directory),
            f"{self.parameter_count / 1e6:.1f} M parameters, {args.n_layers} layers, "
            f"D {args.dim}, {args.n_heads}/{args.n_kv_heads} heads",
            f"{readable_bytes(self.mapped_bytes)} mapped",
            *self.notes,
        ]
        return "; ".join(parts)

    def check_unchanged(self) -> None:
        """Checks that the mapped files are still what was loaded.

        Raises:
            CheckpointError: A file was truncated or rewritten in place.
        """
        self.checkpoint.check_unchanged()


def load_model(
    path: str | Path | None = None, *, rope_scaling_factor: float | None = None
) -> Model:
    """Loads a model; its weights are mapped, not read.

    Args:
        path: A directory in Meta's layout, or one that holds such a directory as `original/`.
            None stands for the bundled model.
        rope_scaling_factor: Replaces the factor of a scaled RoPE: 8, or 32 for the sizes of
            Llama 3.2 1B and 3B.

    Raises:
        ModelError: The directory holds no layout that can be loaded, or parts do not fit together.
        CheckpointError: A weight file or `params.json` is damaged.
        TokenizerError: The tokenizer file is damaged.
    """
    directory = find_meta_directory(BUNDLED_MODEL if path is None else Path(path))
    checkpoint = open_meta_checkpoint(directory)
    try:
        return _assemble(directory, checkpoint, rope_scaling_factor)
    except ModelConfigError as error:
        checkpoint.close()
        raise ModelConfigError(f"{_label(directory)}: {error}") from None
    except BaseException:
        checkpoint.close()
        raise


def _assemble(directory: Path, checkpoint: Checkpoint, rope_scaling_factor: float | None) -> Model:
    """Checks the parts of a model against each other and puts them together."""
    tensors = checkpoint.tensors
    args = model_args(checkpoint.params, tensors, rope_scaling_factor)
    tokenizer = _find_tokenizer(directory, args.vocab_size)
    return Model(
        args=args,
        tokenizer=tokenizer,
        transformer=LlamaTransformer(args, tensors),
        checkpoint=checkpoint,
        source_directory=directory,
        parameter_count=sum(t.size for name, t in tensors.items() if not is_harmless(name)),
        notes=_notes(args, checkpoint, rope_scaling_factor),
    )


def _notes(
    args: ModelArgs, checkpoint: Checkpoint, rope_scaling_factor: float | None
) -> tuple[str, ...]:
    """Says what the files left open and how it was decided."""
    notes = []
    if args.rope_scaling is not None:
        why = "the sizes" if rope_scaling_factor is None else "override"
        notes.append(f"RoPE scaling factor {args.rope_scaling.factor:g} by {why}")
    if "output.weight" not in checkpoint.tensors:
        notes.append("output tied to tok_embeddings")
    unused = [name for name in checkpoint.tensors if is_harmless(name)]
    if unused:
        notes.append(f"not used: {', '.join(unused[:_MOST_UNUSED_SHOWN])}")
    return tuple(notes)


def _find_tokenizer(directory: Path, vocab_size: int) -> Tokenizer | None:
    """Loads the tokenizer beside the weights, or returns None where there is none."""
    try:
        tokenizer = load_tokenizer(directory)
    except TokenizerNotFoundError:
        return None
    if tokenizer.vocab_size != vocab_size:
        raise ModelConfigError(
            f"tokenizer.model: expected the model's {vocab_size} tokens, got {tokenizer.vocab_size}"
        )
    return tokenizer


def find_meta_directory(path: Path) -> Path:
    """Returns the directory that holds Meta's files: the given one or its `original/`.

    Raises:
        ModelError: Neither does; the text lists what was found and what is needed.
    """
    for directory in (path, path / "original"):
        if _is_meta(directory):
            return directory
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise ModelError(f"{_label(path)}: expected a model directory, got {found}")
    names = _names(path)
    hugging_face = (path / "config.json").exists() or any(n.endswith(".safetensors") for n in names)
    shown = ", ".join(ascii(name)[1:-1][:80] for name in names[:_MOST_NAMES_SHOWN])
    if len(names) > _MOST_NAMES_SHOWN:
        shown += f", ... ({len(names)} names)"
    kind = "the Hugging Face layout, which cannot be loaded: " if hugging_face else ""
    raise ModelError(
        f"{_label(path)}: expected Meta's layout ({_META_LAYOUT}, here or in original/), "
        f"got {kind}{shown or 'an empty directory'}"
    )


def _is_meta(directory: Path) -> bool:
    """Tells Meta's layout by its parameters or by a shard; what else is missing shows later."""
    if not directory.is_dir():
        return False
    return (directory / "params.json").exists() or any(directory.glob("consolidated.*.pth"))


def _names(directory: Path) -> list[str]:
    """Lists the names in a directory in order."""
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise ModelError(
            f"{_label(directory)}: expected a readable directory, got {error.strerror}"
        ) from None


def _label(path: Path) -> str:
    """Shows a path without control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))
