"""Loading: map the weights of a model, whatever its layout,
and fit the parts together.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import memory, ml
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.names import is_matrix
from ..memory import readable_bytes
from ..ml.errors import declared_lack_of_memory
from ..tokenizer import Tokenizer
from ..untrusted import label_of, some_of
from .args import (
    OUTPUT,
    FamilyRopeScaling,
    ModelArgs,
    RopeFactors,
    activation_dtype,
    with_rope_factor,
)
from .errors import ModelConfigError, NotEnoughMemoryError, mismatch
from .forecast import MemoryForecast
from .llama import LlamaTransformer
from .quantization import (
    DequantizedWeights,
    QuantizationProgress,
    dequantized_dtypes,
    quantization_of,
    quantize_weights,
    quantized_model_bytes,
)
from .sources import Source, find_source

if TYPE_CHECKING:
    from .ranks import Ranks

_MOST_KEYS = 20  # of each file that are named


@dataclass(frozen=True)
class Model:
    """A model that is ready to run.

    Attributes:
        args: Its sizes.
        tokenizer: None when the directory has no tokenizer file, or the GGUF file no
            vocabulary. It has an id for each row of the embeddings; ids beyond its tokens
            decode to nothing. It may have more tokens than rows; to run one of these ids
            is an error.
        transformer: The network; its weights are in the mapped files.
        checkpoint: The weight files and their tensors.
        source: What the files say, of sizes, tokenizer and chat template.
        parameter_count: Numbers in all weights.
        notes: What was decided while loading, to be shown to the user.
    """

    args: ModelArgs
    tokenizer: Tokenizer | None
    transformer: LlamaTransformer
    checkpoint: Checkpoint
    source: Source
    parameter_count: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Model({self.description})"

    @property
    def source_directory(self) -> Path:
        """Return the directory of the weights, or the GGUF file."""
        return self.source.path

    @property
    def tensors(self) -> Mapping[str, ml.Weight]:
        """Return the tensors of the checkpoint by key;
        matrices may be block-quantized.
        """
        return self.checkpoint.tensors

    @property
    def stop_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer.

        They are the ids of `generation_config.json` or `config.json`, and those of the
        tokenizer, that the model has rows for.
        """
        ids = {*self.source.end_ids, *(self.tokenizer.stop_ids if self.tokenizer else ())}
        return frozenset(number for number in ids if number < self.args.vocab_size)

    @property
    def description(self) -> str:
        """Return one line for people: where from, which format, how large, what was
        decided.
        """
        args = self.args
        checkpoint = self.checkpoint
        parts = (
            f"{label_of(self.source_directory)} ({checkpoint.source_format})",
            f"{self.parameter_count / 1e6:.1f} M parameters, {args.n_layers} layers, D "
            f"{args.dim}, {args.n_heads}/{args.n_kv_heads} heads",
            f"{readable_bytes(checkpoint.mapped_bytes)} mapped",
            *self.notes,
        )
        return "; ".join(parts)


@declared_lack_of_memory("load_model", NotEnoughMemoryError)
def load_model(
    path: str | Path | Source | None = None,
    *,
    rope_scaling_factor: float | None = None,
    dequantize: bool = False,
    quantize: str | None = None,
    progress: QuantizationProgress | None = None,
    ranks: "Ranks | None" = None,
) -> Model:
    """Load a model; its weights are mapped, not read, unless they are to be quantized.

    Args:
        path: A directory in Meta's or Hugging Face's layout, or one that holds a
            directory in Meta's layout as `original/` or that holds one GGUF file; or a
            GGUF file, the first part of a split one; or, as a str, a name that
            `find_model` of `catalog` knows; or what `find_source` read of it; or None for
            the bundled model.
        rope_scaling_factor: Replaces the factor of a scaled RoPE. Meta's layout does not
            say it: it is 8, or 32 for the sizes of Llama 3.2 1B and 3B.
        dequantize: Whether weights that are quantized in their files become plain ones,
            in memory: bfloat16, or float32 where the activations of the model are
            float32.
        quantize: "nf4", "int8", "q8_0" or "q4_0": what the matrices of the layers and the
            output become, in memory, after `dequantize`. One weight is read after the
            other.
        progress: Called while weights are quantized, with how many of how many are done.
        ranks: The processes that run the model together: this one loads the rows that it
            owns.

    Raises:
        ModelError: The directory holds no layout that can be loaded, or parts do not fit
            together.
        CatalogError: There is no model with this name, or it cannot be downloaded.
        CheckpointError: A weight file or a file of hyperparameters is damaged or
            unsupported.
        TokenizerError: The tokenizer file is damaged.
        NotEnoughMemoryError: The system refuses memory.
    """
    dtype = None if quantize is None else quantization_of(quantize)
    source = path if isinstance(path, Source) else find_source(path)
    checkpoint = source.open_checkpoint(dtype is not None or ranks is not None)
    try:
        args = checkpoint_args(source, checkpoint, rope_scaling_factor)
        in_files = stored_quantization(source, checkpoint)
        check_stored(in_files, dequantize, needs_plain=quantize is not None)
        tied = OUTPUT not in checkpoint.tensors
        shapes = args.tensor_shapes
        own = None
        stored = shapes.keys() & checkpoint.tensors.keys()
        parameter_count = sum(math.prod(shapes[name]) for name in stored)
        if ranks is not None:
            from .ranks import OwnWeights, own_args, ranked_transformer

            own = OwnWeights(args, checkpoint.tensors, dtype, ranks)
            args = own_args(args, own.bounds, ranks.rank)
            checkpoint.tensors = own if dequantize or dtype is not None else dict(own)
        if dequantize:
            checkpoint.dtypes = dequantized_dtypes(checkpoint.dtypes, args.dtype)
            plain = DequantizedWeights(checkpoint.tensors, args.dtype)
            checkpoint.tensors = plain if dtype is not None else dict(plain)
            checkpoint.forget_pages()
        if dtype is not None:
            args = args.quantized()
            checkpoint.replace_tensors(
                dict(quantize_weights(checkpoint.tensors, dtype, progress))
            )
        tokenizer = source.find_tokenizer()
        is_overridden = rope_scaling_factor is not None
        notes = _notes(args, source, checkpoint, is_overridden, tied, in_files)
        if tokenizer is not None:
            tokens = tokenizer.vocab_size
            rows = args.vocab_size
            if tokens > rows:
                notes += (
                    f"the tokenizer has {tokens} tokens, the embeddings have {rows} rows",
                )
            # Training pads the embeddings to a round number of rows.
            tokenizer = tokenizer.padded_to(max(tokens, rows))
        if own is None:
            transformer = source.transformer_class(args, checkpoint.tensors)
        else:
            transformer = ranked_transformer(
                source.transformer_class, args, own, checkpoint.tensors
            )
            checkpoint.forget_pages()  # of what was merged or quantized
        return Model(
            args=args,
            tokenizer=tokenizer,
            transformer=transformer,
            checkpoint=checkpoint,
            source=source,
            parameter_count=parameter_count,
            notes=notes,
        )
    except ModelConfigError as error:
        checkpoint.close()
        raise ModelConfigError(f"{label_of(source.path)}: {error}") from None
    except BaseException:
        checkpoint.close()
        raise


def forecast_memory(
    path: str | Path | Source | None,
    positions: int | None,
    most: int,
    quantize: str | None = None,
    dequantize: bool = False,
) -> MemoryForecast:
    """Return what a model will need; map nothing.

    Args:
        path: As for `load_model`.
        positions: Those of the cache; None for the model's longest context, but not above
            `most`.
        most: See `positions`.
        quantize, dequantize: As for `load_model`.

    Raises:
        ModelError: The directory holds no model.
        CheckpointError: Its hyperparameters cannot be used.
    """
    source = path if isinstance(path, Source) else find_source(path)
    nbytes = 0
    for file in source.weight_files:
        with contextlib.suppress(OSError):  # loading says what is wrong with it
            nbytes += file.stat().st_size
    is_merged = source.is_merged
    args = _estimated(source.args, nbytes)
    copied = nbytes if is_merged else 0
    copied_as = "weights to be merged"
    if dequantize and quantize is None:
        copied = source.dequantized_bytes(args)
        copied_as = f"weights in {args.dtype}"
        nbytes = 0  # hardly any weight is used where it is mapped
    if quantize is not None:
        args = args.quantized()
        copied = quantized_model_bytes(args, quantization_of(quantize))
        copied_as = f"weights in {quantize}"
        if (
            is_merged or dequantize
        ):  # the embedding table and one matrix at a time are copied too
            dtype = args.dtype if dequantize else ml.bfloat16
            copied += 2 * args.vocab_size * args.dim * dtype.itemsize
    length = min(args.max_context_length, most) if positions is None else positions
    mapped = 0 if is_merged else nbytes
    free = memory.available_memory()
    return MemoryForecast(args, length, mapped, copied, copied_as, free)


def _estimated(args: ModelArgs, nbytes: int) -> ModelArgs:
    """Estimate the sizes that `params.json` leaves to the tensors, by the bytes of their
    files.

    Only Llama 2 does not say V. It is not tied: what the layers leave of the files is two
    tables.
    """
    args = replace(args, ffn_dim=args.ffn_dim or 4 * args.dim)
    shapes = replace(args, vocab_size=0).tensor_shapes
    in_layers = sum(math.prod(shape) for name, shape in shapes.items() if is_matrix(name))
    rest = max(nbytes // ml.bfloat16.itemsize - in_layers, 0)
    return replace(args, vocab_size=args.vocab_size or max(rest // (2 * args.dim), 1))


def checkpoint_args(
    source: Source, checkpoint: Checkpoint, rope_scaling_factor: float | None
) -> ModelArgs:
    """Complete the sizes of a model with those of its tensors,
    and override the factor.
    """
    sizes = checkpoint.sizes
    dtype = activation_dtype(checkpoint.dtypes)
    dtype = source.args.dtype if source.args.feed_forward_dtype else dtype
    args = replace(source.args, ffn_dim=sizes["F"], vocab_size=sizes["V"], dtype=dtype)
    if checkpoint.rope_factors:
        args = source.with_rope_tensors(args, checkpoint.rope_factors)
    return with_rope_factor(args, rope_scaling_factor)


def stored_quantization(source: Source, checkpoint: Checkpoint) -> str | None:
    """Say how weights are quantized in their files,
    or return None where all are plain.
    """
    if source.quantization is not None:
        return source.quantization
    blocks = {
        each.name
        for each in checkpoint.dtypes.values()
        if isinstance(each, ml.BlockDType)
    }
    return ", ".join(sorted(blocks)) or None


def check_stored(stored: str | None, dequantize: bool, needs_plain: bool) -> None:
    """Check that what is to be done suits the weights, `stored` as `stored_quantization`
    says.
    """
    if dequantize and stored is None:
        raise mismatch("dequantize", "quantized weights", "plain weights")
    if needs_plain and stored is not None and not dequantize:
        found = (
            f"a model that is quantized already ({stored}); dequantize makes plain "
            "weights"
        )
        raise mismatch("quantize", "plain weights", found)


def _notes(
    args: ModelArgs,
    source: Source,
    checkpoint: Checkpoint,
    overridden: bool,
    tied: bool,
    stored: str | None,
) -> tuple[str, ...]:
    """Say what the files left open or settled in an unusual way,
    and how it was decided.
    """
    notes = []
    scaling = args.rope_scaling
    if isinstance(scaling, RopeFactors):
        span = f"{min(scaling.factors):g} to {max(scaling.factors):g}"
        notes.append(f"RoPE frequencies divided by factors {span} by rope_freqs.weight")
    elif isinstance(scaling, FamilyRopeScaling):
        notes.append(scaling.note)
    elif scaling is not None:
        why = "override" if overridden else source.factor_origin
        notes.append(f"RoPE scaling factor {scaling.factor:g} by {why}")
    if tied:
        copy = ", and a quantized copy" if OUTPUT in checkpoint.tensors else ""
        notes.append(f"output tied to tok_embeddings{copy}")
    notes += source.notes(not tied)
    if args.sliding_window is not None:
        notes.append(f"context limited to the sliding window of {args.sliding_window}")
    is_stored = any(
        isinstance(dtype, ml.BlockDType) for dtype in checkpoint.dtypes.values()
    )
    if stored is not None and not is_stored:
        notes.append(f"dequantized from {stored} to {args.dtype}")
    quantized = [
        w for w in checkpoint.tensors.values() if isinstance(w, ml.QuantizedTensor)
    ]
    if quantized:
        counts = Counter(f"{w.dtype}{' double' if w.nested else ''}" for w in quantized)
        kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
        nbytes = readable_bytes(sum(w.nbytes for w in quantized))
        where = f"in the files ({stored})" if is_stored else "in memory"
        notes.append(f"quantized matrices: {kinds}, {nbytes} {where}")
    if checkpoint.copied:
        notes.append(
            f"{len(checkpoint.copied)} tensors copied, which are misaligned in their file"
        )
    if checkpoint.unused:
        notes.append(f"not used: {some_of(checkpoint.unused, str)}")
    beyond = [str(number) for number in source.end_ids if number >= args.vocab_size]
    if beyond:
        rows = f"the {args.vocab_size} rows of the embeddings"
        notes.append(f"end tokens beyond {rows}: {some_of(beyond, str)}")
    for name, keys in source.ignored.items():
        if keys:
            notes.append(f"ignored keys of {name}: {some_of(keys, most=_MOST_KEYS)}")
    return tuple(notes)
