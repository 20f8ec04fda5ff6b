"""Load a model of any layout: map its weights and check that its parts agree."""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import memory, ml
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.names import OUTPUT, is_matrix
from ..choices import ACTIVATIONS, CACHE_TYPES
from ..memory import readable_bytes
from ..ml.errors import declared_lack_of_memory
from ..ml.hints import add_missing_names
from ..tokenizer import Tokenizer
from ..untrusted import label_of, some_of
from .args import (
    ComputedRopeScaling,
    ModelArgs,
    RopeFactors,
    activation_dtype,
    with_rope_factor,
)
from .context import InferenceContext, Tokens
from .errors import ModelConfigError, NotEnoughMemoryError, mismatch
from .forecast import MemoryForecast
from .llama import LlamaTransformer
from .quantization import (
    DequantizedWeights,
    QuantizationProgress,
    check_activations,
    dequantized_dtypes,
    quantization_of,
    quantize_weights,
    quantized_model_bytes,
    with_activations,
)
from .sources import Source, find_source

if TYPE_CHECKING:
    from .ranks import Ranks

_MOST_KEYS = 20  # maximum number of ignored keys that a note lists for each file


# Hints for names that models of other libraries have.
_HINTS = {
    "config": "model.args has the sizes and constants",
    "eval": "leave it out: models have no training mode",
    "forward": "model(ids) or model.transformer.forward(context, ids)",
    "generate": (
        "InferenceEngine(model, sequence_length=512).generate(ids) of src.inference"
    ),
    "layers": "model.transformer.layers",
    "model": "model.transformer",
    "named_parameters": "model.tensors has the weights by name",
    "norm": "model.transformer.norm",
    "output": "model.transformer.output",
    "parameters": "model.tensors has the weights by name",
    "state_dict": "model.tensors has the weights by name",
    "tok_embeddings": "model.transformer.tok_embeddings",
}


@dataclass(frozen=True, repr=False)
class Model:
    """A model that is ready to run.

    Attributes:
        args: The model's sizes and constants.
        tokenizer: The tokenizer, or None if the directory has no tokenizer file or the
            GGUF file has no vocabulary. It has an id for each row of the embedding table;
            ids without a token decode to an empty string. If it has more tokens than the
            table has rows, running one of the additional ids is an error.
        transformer: The network. Its weights are in the mapped files.
        checkpoint: The weight files and their tensors.
        source: The sizes, tokenizer and chat template, read from the small files.
        parameter_count: The number of elements in all weights.
        notes: Decisions made while loading, as messages for the user.
        activations: "int16" or "int8": the integers to which products with the quantized
            matrices round activations, or None if there are no such products.
    """

    args: ModelArgs
    tokenizer: Tokenizer | None
    transformer: LlamaTransformer
    checkpoint: Checkpoint
    source: Source
    parameter_count: int
    notes: tuple[str, ...]
    activations: str | None = None

    def __repr__(self) -> str:
        return f"Model({self.description})"

    def __str__(self) -> str:
        return f"{self!r}\n{self.transformer}"

    def __call__(
        self,
        tokens: Tokens,
        context: InferenceContext | None = None,
        start_pos: int = 0,
        all_positions: bool = False,
    ) -> ml.Tensor:
        """Return the logits, as `LlamaTransformer.__call__` does."""
        return self.transformer(tokens, context, start_pos, all_positions)

    @property
    def source_directory(self) -> Path:
        """Return the directory that contains the weights, or the GGUF file."""
        return self.source.path

    @property
    def tensors(self) -> Mapping[str, ml.Weight]:
        """Return the tensors of the checkpoint by key; matrices may be quantized."""
        return self.checkpoint.tensors

    @property
    def stop_ids(self) -> frozenset[int]:
        """Return the ids of the tokens that end an answer.

        They are the ids listed in `generation_config.json` or `config.json` and the
        tokenizer's own end tokens, except ids for which the model has no rows.
        """
        ids = {*self.source.end_ids, *(self.tokenizer.stop_ids if self.tokenizer else ())}
        return frozenset(token for token in ids if token < self.args.vocab_size)

    @property
    def description(self) -> str:
        """Return a one-line summary: origin, format, size and loading decisions."""
        args = self.args
        checkpoint = self.checkpoint
        count = f"{self.parameter_count / 1e6:.1f} M parameters"
        if args.n_experts:
            shapes = args.tensor_shapes
            unused = sum(math.prod(shapes[name]) for name in args.unused_by_a_token)
            used = (self.parameter_count - unused) / 1e6
            count += f", of which a token uses {used:.1f} M"
            count += f" ({args.n_active_experts} of {args.n_experts} experts)"
        parts = (
            f"{label_of(self.source_directory)} ({checkpoint.source_format})",
            f"{count}, {args.n_layers} layers, D "
            f"{args.dim}, {args.n_heads}/{args.n_kv_heads} heads",
            f"{readable_bytes(checkpoint.mapped_bytes)} mapped",
            *self.notes,
        )
        return "; ".join(parts)


add_missing_names(Model, _HINTS)


@declared_lack_of_memory("load_model", NotEnoughMemoryError)
def load_model(
    path: str | Path | Source | None = None,
    *,
    rope_scaling_factor: float | None = None,
    dequantize: bool = False,
    quantize: str | None = None,
    activations: str = ACTIVATIONS[0],
    cache_type: str = CACHE_TYPES[0],
    progress: QuantizationProgress | None = None,
    ranks: "Ranks | None" = None,
) -> Model:
    """Load a model; its weights are mapped instead of read unless they are quantized.

    Args:
        path: A directory in Meta's or Hugging Face's layout, a directory that contains
            `original/` in Meta's layout or a single GGUF file, a GGUF file (for a split
            model, its first part), a model name known to `catalog.find_model` (str), a
            `Source` returned by `find_source`, or None for the bundled model.
        rope_scaling_factor: Overrides the RoPE scaling factor. Meta's layout does not
            contain the factor. It is 8 by default, or 32 for the sizes of Llama 3.2 1B
            and 3B.
        dequantize: Whether to convert weights that are quantized in their files to plain
            weights in memory: bfloat16, or float32 if the model's activations are
            float32.
        quantize: "nf4", "int8", "q8_0" or "q4_0": the format to which the matrices of the
            layers and the output matrix are converted in memory, after `dequantize`. One
            weight is read at a time.
        activations: "int16" or "int8": the integers to which bfloat16 activations are
            rounded before they are multiplied by quantized weights. int8 makes prompts
            faster and the results less accurate. It has no effect on a model without
            quantized weights or with float32 activations.
        cache_type: "plain" for a KV cache in the dtype of the activations, or "q8_0" for
            8-bit codes with a scale per 32 elements of a head. It needs about half of the
            memory, and its results are slightly less accurate.
        progress: Called while weights are quantized, with the number of finished matrices
            and the total.
        ranks: The processes that run the model together. This process then loads only its
            own rows.

    Raises:
        ModelError: The directory contains no supported layout, its parts contradict each
            other, or an argument has an unknown value.
        CatalogError: No model has this name, or the model cannot be downloaded.
        CheckpointError: A weight file or a hyperparameter file is damaged or unsupported.
        TokenizerError: The tokenizer file is damaged.
        NotEnoughMemoryError: Memory cannot be allocated.
    """
    dtype = None if quantize is None else quantization_of(quantize)
    check_activations(activations)
    source = path if isinstance(path, Source) else find_source(path)
    is_converted = dequantize or dtype is not None or ranks is not None
    checkpoint = source.open_checkpoint(is_converted)
    try:
        args = checkpoint_args(source, checkpoint, rope_scaling_factor)
        args = replace(args, cache_type=cache_type)
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
        is_rounded = args.dtype is ml.bfloat16 and any(
            isinstance(weight, ml.QuantizedTensor)
            for weight in checkpoint.tensors.values()
        )
        if is_rounded and activations != ACTIVATIONS[0]:
            checkpoint.tensors = with_activations(checkpoint.tensors, activations)
        tokenizer = source.find_tokenizer()
        is_overridden = rope_scaling_factor is not None
        notes = _notes(args, source, checkpoint, is_overridden, tied, in_files)
        if activations != ACTIVATIONS[0]:
            what = f"activations {activations}"
            notes += (what if is_rounded else f"{what} without quantized products",)
        if cache_type != CACHE_TYPES[0]:
            notes += (f"keys and values in {cache_type}",)
        if tokenizer is not None:
            tokens = tokenizer.vocab_size
            rows = args.vocab_size
            if tokens > rows:
                notes += (
                    f"the tokenizer has {tokens} tokens, the embeddings have {rows} rows",
                )
            # Training may pad the embeddings to a round number of rows.
            tokenizer = tokenizer.padded_to(max(tokens, rows))
        if own is None:
            transformer = source.transformer_class(args, checkpoint.tensors)
        else:
            transformer = ranked_transformer(
                source.transformer_class, args, own, checkpoint.tensors
            )
            checkpoint.forget_pages()  # release the pages of the original weights
        return Model(
            args=args,
            tokenizer=tokenizer,
            transformer=transformer,
            checkpoint=checkpoint,
            source=source,
            parameter_count=parameter_count,
            notes=notes,
            activations=activations if is_rounded else None,
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
    cache_type: str = CACHE_TYPES[0],
) -> MemoryForecast:
    """Return a forecast of a model's memory use, without mapping its weights.

    Args:
        path: See `load_model`.
        positions: The number of positions in the cache, or None for the model's longest
            context, but at most `most`.
        most: The maximum number of positions if `positions` is None.
        quantize, dequantize, cache_type: See `load_model`.

    Raises:
        ModelError: The directory contains no model, or an argument has an unknown value.
        CheckpointError: The model's hyperparameters are not supported.
    """
    source = path if isinstance(path, Source) else find_source(path)
    nbytes = 0
    for file in source.weight_files:
        with contextlib.suppress(OSError):  # the error is reported on loading
            nbytes += file.stat().st_size
    is_merged = source.is_merged
    args = _estimate_sizes(replace(source.args, cache_type=cache_type), nbytes)
    copied = nbytes if is_merged else source.rearranged_bytes(args)
    copied_as = "weights to be merged" if is_merged else "rearranged weights of experts"
    if not is_merged and quantize is None:
        nbytes = max(nbytes - copied, 0)
    if dequantize and quantize is None:
        copied = source.dequantized_bytes(args)
        copied_as = f"weights in {args.dtype}"
        nbytes = 0  # almost no weight is used in place
    if quantize is not None:
        args = args.quantized()
        copied = quantized_model_bytes(args, quantization_of(quantize))
        copied_as = f"weights in {quantize}"
        # The embedding table and one matrix at a time are also copied.
        if is_merged or dequantize:
            dtype = args.dtype if dequantize else ml.bfloat16
            copied += 2 * args.vocab_size * args.dim * dtype.itemsize
    length = min(args.max_context_length, most) if positions is None else positions
    mapped = 0 if is_merged else nbytes
    free = memory.available_memory()
    return MemoryForecast(args, length, mapped, copied, copied_as, free)


def _estimate_sizes(args: ModelArgs, nbytes: int) -> ModelArgs:
    """Estimate the sizes missing from `params.json` from the size of the weight files.

    Only the files of Llama 2 lack V. Its output is not tied to its embeddings, so the
    bytes that do not belong to layers belong to two tables.
    """
    args = replace(args, ffn_dim=args.ffn_dim or 4 * args.dim)
    shapes = replace(args, vocab_size=0).tensor_shapes
    in_layers = sum(math.prod(shape) for name, shape in shapes.items() if is_matrix(name))
    rest = max(nbytes // ml.bfloat16.itemsize - in_layers, 0)
    return replace(args, vocab_size=args.vocab_size or max(rest // (2 * args.dim), 1))


def checkpoint_args(
    source: Source, checkpoint: Checkpoint, rope_scaling_factor: float | None
) -> ModelArgs:
    """Fill in sizes from the tensor shapes, and override the RoPE scaling factor."""
    sizes = checkpoint.sizes
    dtype = activation_dtype(checkpoint.dtypes)
    dtype = source.args.dtype if source.args.feed_forward_dtype else dtype
    args = replace(source.args, ffn_dim=sizes["F"], vocab_size=sizes["V"], dtype=dtype)
    if checkpoint.rope_factors:
        args = source.with_rope_tensors(args, checkpoint.rope_factors)
    return with_rope_factor(args, rope_scaling_factor)


def stored_quantization(source: Source, checkpoint: Checkpoint) -> str | None:
    """Return the formats of the quantized weights, or None if all weights are plain."""
    if source.quantization is not None:
        return source.quantization
    blocks = {
        dtype.name
        for dtype in checkpoint.dtypes.values()
        if isinstance(dtype, ml.BlockDType)
    }
    return ", ".join(sorted(blocks)) or None


def check_stored(stored: str | None, dequantize: bool, needs_plain: bool) -> None:
    """Check that the requested conversion is possible for the stored weights.

    `stored` is the result of `stored_quantization`.
    """
    if dequantize and stored is None:
        raise mismatch("dequantize", "quantized weights", "plain weights")
    if needs_plain and stored is not None and not dequantize:
        actual = (
            f"a model that is quantized already ({stored}); dequantize makes plain "
            "weights"
        )
        raise mismatch("quantize", "plain weights", actual)


def _notes(
    args: ModelArgs,
    source: Source,
    checkpoint: Checkpoint,
    overridden: bool,
    tied: bool,
    stored: str | None,
) -> tuple[str, ...]:
    """Return notes about missing or unusual values in the files and about decisions."""
    notes = []
    scaling = args.rope_scaling
    if isinstance(scaling, RopeFactors):
        span = f"{min(scaling.factors):g} to {max(scaling.factors):g}"
        notes.append(f"RoPE frequencies divided by factors {span} by rope_freqs.weight")
    elif isinstance(scaling, ComputedRopeScaling):
        notes.append(scaling.note)
    elif scaling is not None:
        origin = "override" if overridden else source.factor_origin
        notes.append(f"RoPE scaling factor {scaling.factor:g} by {origin}")
    if tied:
        copy = ", and a quantized copy" if OUTPUT in checkpoint.tensors else ""
        notes.append(f"output tied to tok_embeddings{copy}")
    notes += source.notes(not tied)
    if args.sliding_window is not None:
        notes.append(f"context limited to the sliding window of {args.sliding_window}")
    is_stored = any(
        isinstance(dtype, ml.BlockDType) for dtype in checkpoint.dtypes.values()
    )
    windows = [window for window in args.windows if window is not None]
    if windows:
        layers = f"{len(windows)} of {args.n_layers} layers"
        notes.append(f"window of {max(windows)} positions in {layers}")
    if stored is not None and not is_stored:
        notes.append(f"dequantized from {stored} to {args.dtype}")
    quantized = [
        weight
        for weight in checkpoint.tensors.values()
        if isinstance(weight, ml.QuantizedTensor)
    ]
    if quantized:
        counts = Counter(
            f"{weight.dtype}{' double' if weight.nested else ''}" for weight in quantized
        )
        kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
        nbytes = readable_bytes(sum(weight.nbytes for weight in quantized))
        where = f"in the files ({stored})" if is_stored else "in memory"
        notes.append(f"quantized matrices: {kinds}, {nbytes} {where}")
    if checkpoint.copied:
        notes.append(
            f"{len(checkpoint.copied)} tensors copied, which are misaligned in their file"
        )
    if checkpoint.rearranged:
        tensors = [checkpoint.tensors[name] for name in checkpoint.rearranged]
        nbytes = readable_bytes(sum(tensor.nbytes for tensor in tensors))
        notes.append(
            f"{len(tensors)} tensors of experts copied ({nbytes}), because their file "
            "has them in another arrangement"
        )
    if checkpoint.unused:
        notes.append(f"not used: {some_of(checkpoint.unused, str)}")
    beyond = [str(token) for token in source.end_ids if token >= args.vocab_size]
    if beyond:
        rows = f"the {args.vocab_size} rows of the embeddings"
        notes.append(f"end tokens beyond {rows}: {some_of(beyond, str)}")
    for name, keys in source.ignored.items():
        if keys:
            notes.append(f"ignored keys of {name}: {some_of(keys, most=_MOST_KEYS)}")
    return tuple(notes)
