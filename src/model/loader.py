"""Loading: map the weights of a model, whatever its layout, and fit the parts together."""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import ml
from ..checkpoint.checkpoint import (
    Checkpoint,
    open_gguf_checkpoint,
    open_hugging_face_checkpoint,
    open_meta_checkpoint,
)
from ..memory import readable_bytes
from ..ml.errors import declared_lack_of_memory
from ..tokenizer import Tokenizer, TokenizerNotFoundError, load_tokenizer
from ..untrusted import label_of, some_of
from .args import ModelArgs, RopeFactors, activation_dtype, with_rope_factor
from .errors import ModelConfigError, NotEnoughMemoryError, mismatch
from .files import ModelFiles, read_model_files
from .llama import LlamaTransformer
from .quantization import OUTPUT, QuantizationProgress, quantization_of, quantize_weights

if TYPE_CHECKING:
    from .ranks import Ranks

_SAYS_FACTOR = {"Meta": "the sizes", "Hugging Face": "config.json", "GGUF": "rope.scaling.factor"}


@dataclass(frozen=True)
class Model:
    """A model that is ready to run.

    Attributes:
        args: Its sizes.
        tokenizer: None when the directory has no tokenizer file, or the GGUF file no vocabulary.
            It has as many ids as the model has rows; those beyond its tokens decode to nothing.
        transformer: The network; its weights are in the mapped files.
        checkpoint: The weight files and their tensors.
        files: What the small files say, or the keys of the GGUF file.
        parameter_count: Numbers in all weights.
        notes: What was decided while loading, to be shown to the user.
    """

    args: ModelArgs
    tokenizer: Tokenizer | None
    transformer: LlamaTransformer
    checkpoint: Checkpoint
    files: ModelFiles
    parameter_count: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Model({self.description})"

    @property
    def source_directory(self) -> Path:
        """Return the directory of the weights, or the GGUF file."""
        return self.files.directory.path

    @property
    def tensors(self) -> Mapping[str, ml.Weight]:
        """Return the tensors of the checkpoint by key; matrices may be block-quantized."""
        return self.checkpoint.tensors

    @property
    def stop_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer.

        Those that `generation_config.json` or `config.json` names, and those of the tokenizer.
        """
        of_tokenizer = self.tokenizer.stop_ids if self.tokenizer else frozenset()
        return frozenset(self.files.end_ids) | of_tokenizer

    @property
    def description(self) -> str:
        """Return one line for people: where from, which format, how large, what was decided."""
        args, checkpoint = self.args, self.checkpoint
        parts = (
            f"{self.source_directory} ({checkpoint.source_format})",
            f"{self.parameter_count / 1e6:.1f} M parameters, {args.n_layers} layers, D {args.dim}, "
            f"{args.n_heads}/{args.n_kv_heads} heads",
            f"{readable_bytes(checkpoint.mapped_bytes)} mapped",
            *self.notes,
        )
        return "; ".join(parts)


@declared_lack_of_memory("load_model", NotEnoughMemoryError)
def load_model(
    path: str | Path | ModelFiles | None = None,
    *,
    rope_scaling_factor: float | None = None,
    quantize: str | None = None,
    progress: QuantizationProgress | None = None,
    ranks: "Ranks | None" = None,
) -> Model:
    """Load a model; its weights are mapped, not read, unless they are to be quantized.

    Args:
        path: A directory in Meta's or Hugging Face's layout, or one that holds a directory in
            Meta's layout as `original/`; or a GGUF file, the first part of a split one; or what
            `read_model_files` read of it; or None for the bundled model.
        rope_scaling_factor: Replaces the factor of a scaled RoPE. Meta's layout does not say it:
            it is 8, or 32 for the sizes of Llama 3.2 1B and 3B.
        quantize: "nf4" or "int8": what the matrices of the layers and the output become, in
            memory. One weight is read after the other.
        progress: Called while weights are quantized, with how many of how many are done.
        ranks: The processes that run the model together: this one loads the rows that it owns.

    Raises:
        ModelError: The directory holds no layout that can be loaded, or parts do not fit together.
        CheckpointError: A weight file or a file of hyperparameters is damaged or unsupported.
        TokenizerError: The tokenizer file is damaged.
        NotEnoughMemoryError: The system refuses memory.
    """
    dtype = None if quantize is None else quantization_of(quantize)
    files = path if isinstance(path, ModelFiles) else read_model_files(path)
    checkpoint = open_checkpoint(files, one_by_one=dtype is not None or ranks is not None)
    try:
        args = checkpoint_args(files, checkpoint, rope_scaling_factor)
        tied, shapes, own = OUTPUT not in checkpoint.tensors, args.tensor_shapes, None
        stored = shapes.keys() & checkpoint.tensors.keys()
        parameter_count = sum(math.prod(shapes[name]) for name in stored)
        if ranks is not None:
            from .ranks import OwnWeights, RankedTransformer, own_args

            own = OwnWeights(args, checkpoint.tensors, dtype, ranks)
            args = own_args(args, own.bounds, ranks.rank)
            checkpoint.tensors = own if dtype is not None else dict(own)
        if dtype is not None:
            check_not_quantized(files, checkpoint)
            args = args.quantized()
            checkpoint.replace_tensors(dict(quantize_weights(checkpoint.tensors, dtype, progress)))
        tokenizer = find_tokenizer(files)
        if tokenizer is not None:
            tokens, rows = tokenizer.vocab_size, args.vocab_size
            # Other layouts may have more rows than tokens: training pads them to a round number.
            most = "" if files.directory.layout == "Meta" else "at most "
            if tokens > rows or (tokens < rows and not most):
                raise mismatch("tokenizer", f"{most}the model's {rows} tokens", tokens)
            tokenizer = tokenizer.padded_to(rows)
        transformer = LlamaTransformer(args, checkpoint.tensors)
        if own is not None:
            transformer = RankedTransformer(args, own, checkpoint.tensors)
            checkpoint.forget_pages()  # of what was merged or quantized
        return Model(
            args=args,
            tokenizer=tokenizer,
            transformer=transformer,
            checkpoint=checkpoint,
            files=files,
            parameter_count=parameter_count,
            notes=_notes(args, files, checkpoint, rope_scaling_factor is not None, tied),
        )
    except ModelConfigError as error:
        checkpoint.close()
        raise ModelConfigError(f"{label_of(files.directory.path)}: {error}") from None
    except BaseException:
        checkpoint.close()
        raise


def open_checkpoint(files: ModelFiles, one_by_one: bool = False) -> Checkpoint:
    """Open the weights of a model directory; `one_by_one` merges a tensor when it is looked up."""
    args, stored = files.args, files.quantization
    what = files.directory, args.n_layers, args.tensor_sizes
    if files.directory.layout == "Meta":
        return open_meta_checkpoint(*what, one_by_one)
    if files.directory.layout == "GGUF":
        return open_gguf_checkpoint(*what, head_dim=args.head_dim, parts=args.parts)
    kind = None if stored is None else stored.kind
    return open_hugging_face_checkpoint(*what, parts=args.parts, tied=files.tied, quantization=kind)


def checkpoint_args(
    files: ModelFiles, checkpoint: Checkpoint, rope_scaling_factor: float | None
) -> ModelArgs:
    """Complete the sizes of a model with those of its tensors, and override the factor."""
    sizes, dtype = checkpoint.sizes, activation_dtype(checkpoint.dtypes)
    dtype = files.args.dtype if files.args.feed_forward_dtype else dtype
    args = replace(files.args, ffn_dim=sizes["F"], vocab_size=sizes["V"], dtype=dtype)
    if checkpoint.rope_factors:
        if args.rope_scaling is not None:
            raise mismatch("rope", "one scaling", "factors and rope.scaling keys")
        args = replace(args, rope_scaling=RopeFactors(checkpoint.rope_factors))
    return with_rope_factor(args, rope_scaling_factor)


def stored_quantization(files: ModelFiles, checkpoint: Checkpoint) -> str | None:
    """Say how weights are quantized in their files, or return None where all are plain."""
    if files.quantization is not None:
        return files.quantization.description
    blocks = {each.name for each in checkpoint.dtypes.values() if isinstance(each, ml.BlockDType)}
    return ", ".join(sorted(blocks)) or None


def check_not_quantized(files: ModelFiles, checkpoint: Checkpoint) -> None:
    """Refuse to quantize what is quantized in its files."""
    if stored := stored_quantization(files, checkpoint):
        found = f"a model that is quantized already ({stored})"
        raise mismatch("quantize", "plain weights", found)


def _notes(
    args: ModelArgs, files: ModelFiles, checkpoint: Checkpoint, overridden: bool, tied: bool
) -> tuple[str, ...]:
    """Say what the files left open or settled in an unusual way, and how it was decided."""
    notes = []
    scaling = args.rope_scaling
    if isinstance(scaling, RopeFactors):
        span = f"{min(scaling.factors):g} to {max(scaling.factors):g}"
        notes.append(f"RoPE frequencies divided by factors {span} by rope_freqs.weight")
    elif scaling is not None:
        why = "override" if overridden else _SAYS_FACTOR[files.directory.layout]
        notes.append(f"RoPE scaling factor {scaling.factor:g} by {why}")
    if tied:
        copy = ", and a quantized copy" if OUTPUT in checkpoint.tensors else ""
        notes.append(f"output tied to tok_embeddings{copy}")
    elif files.tied and files.directory.layout == "Hugging Face":
        notes.append("lm_head.weight is there and used, although tie_word_embeddings is true")
    if args.sliding_window is not None:
        notes.append(f"context limited to the sliding window of {args.sliding_window}")
    quantized = [w for w in checkpoint.tensors.values() if isinstance(w, ml.QuantizedTensor)]
    if quantized:
        counts = Counter(f"{w.dtype}{' double' if w.nested else ''}" for w in quantized)
        kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
        nbytes = readable_bytes(sum(w.nbytes for w in quantized))
        stored = stored_quantization(files, checkpoint)
        where = "in memory" if stored is None else f"in the files ({stored})"
        notes.append(f"quantized matrices: {kinds}, {nbytes} {where}")
    if checkpoint.copied:
        notes.append(f"{len(checkpoint.copied)} tensors copied, which are misaligned in their file")
    if checkpoint.unused:
        notes.append(f"not used: {some_of(checkpoint.unused, str)}")
    return tuple(notes)


def find_tokenizer(files: ModelFiles) -> Tokenizer | None:
    """Load the tokenizer of a GGUF file; or that beside the weights, or else beside `original/`."""
    if files.directory.layout == "GGUF":
        from ..tokenizer.gguf_keys import gguf_tokenizer  # with the readers of Hugging Face's files

        return gguf_tokenizer(files.top, files.directory.gguf_parts[0].decoded("tokenizer."))
    for place in dict.fromkeys((files.directory.path, files.top)):
        with contextlib.suppress(TokenizerNotFoundError):
            return load_tokenizer(place)
    return None
