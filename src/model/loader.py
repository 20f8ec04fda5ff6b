"""Loading: map the weights of a directory, whatever its layout, and fit the parts together."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import ml
from ..checkpoint import Checkpoint, open_hugging_face_checkpoint, open_meta_checkpoint
from ..checkpoint.names import is_harmless
from ..ml.memory import readable_bytes
from ..tokenizer import Tokenizer, TokenizerNotFoundError, load_tokenizer
from .args import ModelArgs, model_args
from .errors import ModelConfigError, declared_lack_of_memory
from .hugging_face_args import hugging_face_args
from .layout import ModelDirectory, find_model_directory, label_of
from .llama import LlamaTransformer
from .quantization import (
    OUTPUT,
    QuantizationProgress,
    match_neighbours,
    quantization_of,
    quantize_weights,
)

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "nano" / "model"
_MOST_UNUSED_SHOWN = 5


@dataclass(frozen=True)
class Model:
    """A model that is ready to run.

    Attributes:
        args: Its sizes.
        tokenizer: None when the directory has no tokenizer file. It has as many ids as the model
            has rows; those beyond its tokens decode to nothing.
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
        """Return the bytes of the mapped weight files."""
        return self.checkpoint.mapped_bytes

    @property
    def tensors(self) -> Mapping[str, ml.Weight]:
        """Return the tensors of the checkpoint by key; matrices may be block-quantised."""
        return self.checkpoint.tensors

    @property
    def stop_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer.

        Those that `generation_config.json` or `config.json` names, and those of the tokenizer.
        """
        config = self.checkpoint.config
        named = () if config is None else config.end_ids
        return frozenset(named) | (self.tokenizer.stop_ids if self.tokenizer else frozenset())

    @property
    def description(self) -> str:
        """Return one line for people: where from, which format, how large, what was decided."""
        args = self.args
        parts = [
            f"{self.source_directory} ({self.checkpoint.source_format})",
            f"{self.parameter_count / 1e6:.1f} M parameters, {args.n_layers} layers, "
            f"D {args.dim}, {args.n_heads}/{args.n_kv_heads} heads",
            f"{readable_bytes(self.mapped_bytes)} mapped",
            *self.notes,
        ]
        return "; ".join(parts)

    def check_unchanged(self) -> None:
        """Check that the mapped files are still what was loaded.

        Raises:
            CheckpointError: A file was truncated or rewritten in place.
        """
        self.checkpoint.check_unchanged()


@declared_lack_of_memory("load_model")
def load_model(
    path: str | Path | None = None,
    *,
    rope_scaling_factor: float | None = None,
    quantize: str | None = None,
    progress: QuantizationProgress | None = None,
) -> Model:
    """Load a model; its weights are mapped, not read, unless they are to be quantised.

    Args:
        path: A directory in Meta's or Hugging Face's layout, or one that holds a directory in
            Meta's layout as `original/`. None stands for the bundled model.
        rope_scaling_factor: Replaces the factor of a scaled RoPE. Meta's layout does not say it:
            it is 8, or 32 for the sizes of Llama 3.2 1B and 3B.
        quantize: "nf4" or "int8": what the matrices of the layers and the output become, in
            memory. One weight is read after the other.
        progress: Called while weights are quantised, with how many of how many are done.

    Raises:
        ModelError: The directory holds no layout that can be loaded, or parts do not fit together.
        CheckpointError: A weight file or a file of hyperparameters is damaged or unsupported.
        TokenizerError: The tokenizer file is damaged.
        NotEnoughMemoryError: The system gives no memory.
    """
    dtype = None if quantize is None else quantization_of(quantize)
    top = BUNDLED_MODEL if path is None else Path(path)
    found = find_model_directory(top)
    checkpoint = open_checkpoint(found, one_by_one=dtype is not None)
    try:
        tied = OUTPUT not in checkpoint.tensors or (
            checkpoint.config is not None and OUTPUT not in checkpoint.names_in_files
        )
        if dtype is not None:
            check_not_quantized(checkpoint)
            checkpoint.replace_tensors(quantize_weights(checkpoint.tensors, dtype, progress))
        return _assemble(found.path, top, checkpoint, rope_scaling_factor, tied)
    except ModelConfigError as error:
        checkpoint.close()
        raise ModelConfigError(f"{label_of(found.path)}: {error}") from None
    except BaseException:
        checkpoint.close()
        raise


def open_checkpoint(found: ModelDirectory, one_by_one: bool = False) -> Checkpoint:
    """Open the files of a model directory, whatever its layout.

    Args:
        found: The directory.
        one_by_one: Merge the parts of a tensor when it is looked up, and keep none.

    Raises:
        CheckpointError: A file is damaged or unsupported.
    """
    if found.layout == "Meta":
        return open_meta_checkpoint(found.path, one_by_one)
    return open_hugging_face_checkpoint(found.path)


def check_not_quantized(checkpoint: Checkpoint) -> None:
    """Refuse to quantise what is quantised in its files.

    Raises:
        ModelConfigError: It is.
    """
    if checkpoint.config is not None and checkpoint.config.quantization is not None:
        raise ModelConfigError(
            "quantize: expected plain weights, got a model that is quantised already "
            f"({checkpoint.config.quantization.description})"
        )


def _assemble(
    directory: Path,
    top: Path,
    checkpoint: Checkpoint,
    rope_scaling_factor: float | None,
    tied: bool,
) -> Model:
    """Check the parts of a model against each other and put them together."""
    tensors = checkpoint.tensors
    args = checkpoint_args(checkpoint, rope_scaling_factor)
    if checkpoint.config is not None and checkpoint.config.quantization is not None:
        tensors = match_neighbours(tensors, args.dtype)
        checkpoint.replace_tensors(tensors)
    tokenizer = find_tokenizer(directory, top)
    if tokenizer is not None:
        _check_vocabulary(tokenizer.vocab_size, args.vocab_size, checkpoint.config is not None)
        tokenizer = tokenizer.padded_to(args.vocab_size)
    return Model(
        args=args,
        tokenizer=tokenizer,
        transformer=LlamaTransformer(args, tensors),
        checkpoint=checkpoint,
        source_directory=directory,
        parameter_count=_parameter_count(tensors, tied),
        notes=_notes(args, checkpoint, rope_scaling_factor, tied),
    )


def checkpoint_args(checkpoint: Checkpoint, rope_scaling_factor: float | None) -> ModelArgs:
    """Return the sizes of the model that a checkpoint holds, as `load_model` does."""
    if checkpoint.config is None:
        return model_args(checkpoint.params, checkpoint.tensors, rope_scaling_factor)
    return hugging_face_args(checkpoint.config, checkpoint.tensors, rope_scaling_factor)


def _parameter_count(tensors: Mapping[str, ml.Weight], tied: bool) -> int:
    """Count the numbers in all weights; a tied output is counted with the embeddings."""
    counted = (name for name in tensors if not is_harmless(name) and not (tied and name == OUTPUT))
    return sum(tensors[name].size for name in counted)


def _notes(
    args: ModelArgs, checkpoint: Checkpoint, rope_scaling_factor: float | None, tied: bool
) -> tuple[str, ...]:
    """Say what the files left open or settled in an unusual way, and how it was decided."""
    config, notes = checkpoint.config, []
    if args.rope_scaling is not None:
        why = "the sizes" if config is None else "config.json"
        why = why if rope_scaling_factor is None else "override"
        notes.append(f"RoPE scaling factor {args.rope_scaling.factor:g} by {why}")
    if tied:
        copy = ", and a quantised copy" if OUTPUT in checkpoint.tensors else ""
        notes.append(f"output tied to tok_embeddings{copy}")
    elif config is not None and config.tied:
        notes.append("lm_head.weight is there and used, although tie_word_embeddings is true")
    if config is not None and config.sliding_window is not None:
        notes.append(f"context limited to the sliding window of {config.sliding_window}")
    if quantized := _quantized_note(checkpoint):
        notes.append(quantized)
    if checkpoint.copied:
        notes.append(f"{len(checkpoint.copied)} tensors copied, which lie askew in their file")
    if checkpoint.unused:
        notes.append(f"not used: {_some_of(checkpoint.unused)}")
    return tuple(notes)


def _quantized_note(checkpoint: Checkpoint) -> str:
    """Say how many matrices are quantised into what, how large they are, and where; or nothing."""
    weights = [w for w in checkpoint.tensors.values() if isinstance(w, ml.QuantizedTensor)]
    if not weights:
        return ""
    counts = Counter(f"{w.dtype}{' double' if w.nested else ''}" for w in weights)
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    nbytes = readable_bytes(sum(w.nbytes for w in weights))
    config = checkpoint.config
    where = "in memory"
    if config is not None and config.quantization is not None:
        where = f"in the files ({config.quantization.description})"
    return f"quantised matrices: {kinds}, {nbytes} {where}"


def _some_of(names: tuple[str, ...]) -> str:
    """Name the first few and count the rest."""
    head = ", ".join(names[:_MOST_UNUSED_SHOWN])
    more = len(names) - _MOST_UNUSED_SHOWN
    return f"{head} and {more} more" if more > 0 else head


def find_tokenizer(directory: Path, top: Path) -> Tokenizer | None:
    """Load the tokenizer beside the weights, or one level up where `original/` has none."""
    for place in dict.fromkeys((directory, top)):
        try:
            return load_tokenizer(place)
        except TokenizerNotFoundError:
            continue
    return None


def _check_vocabulary(tokens: int, rows: int, may_be_padded: bool) -> None:
    """Compare a tokenizer with the rows of the embeddings.

    Meta's have the same number. Hugging Face's may have more rows than tokens, because training
    pads them to a round number.
    """
    if tokens == rows or (may_be_padded and tokens < rows):
        return
    rule = f"at most the model's {rows}" if may_be_padded else f"the model's {rows}"
    raise ModelConfigError(f"tokenizer: expected {rule} tokens, got {tokens}")
