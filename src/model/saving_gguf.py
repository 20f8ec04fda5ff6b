"""Save a model as a GGUF file, which llama.cpp and other programs can read.

Matrices are not converted, or are quantized to q8_0 or q4_0 by the same rule as in
`load_model`. Vectors are converted to float32. The rows of the query and key matrices are
reordered if the architecture requires it. The file is renamed into place only after it is
complete, so a failed save leaves nothing behind.
"""

from collections.abc import Mapping
from pathlib import Path

from .. import ml
from ..checkpoint.gguf import nbytes_of
from ..checkpoint.gguf_config import (
    CHAT_TEMPLATE_KEYS,
    GGUF_KEYS,
    ROPE_FACTORS,
    GgufSchema,
)
from ..checkpoint.gguf_writer import TYPE_NUMBERS, GgufWriter, NewValue
from ..checkpoint.names import EMBEDDINGS, OUTPUT, is_matrix, stored_rows
from ..checkpoint.safetensors_writer import reordered
from .args import (
    LinearRopeScaling,
    ModelArgs,
    RopeFactors,
    RopeScaling,
    YarnRopeScaling,
)
from .errors import ModelConfigError, SaveError, mismatch
from .families import FAMILIES, Family
from .merging import NamedAdapters
from .quantization import (
    JoinedWeights,
    QuantizationProgress,
    dtype_in_model,
    quantization_of,
    quantize_weights,
    sources_of,
)
from .rope import rope_factors
from .saving import (
    check_new,
    check_room,
    new_path,
    plain_model,
    with_norm_offset,
)

_FILE_TYPES = {"float32": 0, "float16": 1, "q4_0": 2, "q8_0": 7, "bfloat16": 32}


def save_gguf(
    path: str | Path | None,
    target: str | Path,
    quantize: str | None = None,
    *,
    dequantize: bool = False,
    rope_scaling_factor: float | None = None,
    adapters: NamedAdapters = (),
    chat_template: str | None = None,
    progress: QuantizationProgress | None = None,
) -> int:
    """Save a model as a new GGUF file; return the size of its weights in bytes.

    Weights that are already quantized in their files require `dequantize`, which is
    applied before `quantize`. LoRA adapters, given as paths with factors, are merged into
    the weights before that (see `MergedWeights`). At most one weight is in memory at a
    time. Raises SaveError if the file already exists or cannot be written; a failed save
    leaves nothing behind. Raises ModelConfigError if the format cannot represent the
    model.
    """
    target = Path(target)
    dtype = None if quantize is None else quantization_of(quantize)
    check_new(target, "file")
    opened = plain_model(path, rope_scaling_factor, dequantize, adapters)
    with opened as (source, checkpoint, args):
        family = FAMILIES[source.model_type]
        family.check_gguf(args)
        _check_schema(family.gguf, args)
        stored = stored_rows(args.tensor_rows, "gguf")
        names = {row.name: name for name, row in stored.items()}
        tensors = JoinedWeights(checkpoint.tensors, args, "gguf")
        sources = sources_of(tensors, dtype)
        copies_output = family.gguf.has_own_output and OUTPUT not in sources
        shapes = {  # the dtype and shape of each written weight; vectors are float32
            names[key]: (_written_dtype(key, dtype, checkpoint.dtypes, shape), shape)
            for key, shape in args.stored_shapes("gguf").items()
            if key in sources
        }
        if copies_output:
            shapes[names[OUTPUT]] = shapes[names[EMBEDDINGS]]
        factors = rope_factors(args)
        if factors is None and isinstance(args.rope_scaling, RopeFactors):
            factors = ml.tensor(list(args.rope_scaling.factors), dtype=ml.float32)
        tables = family.gguf_tensors(args)
        if factors is not None:
            tables = {ROPE_FACTORS: factors, **tables}
        shapes |= {name: (ml.float32, table.shape) for name, table in tables.items()}
        keys = _keys(family, args, dtype)
        keys |= source.gguf_tokenizer_keys(args.vocab_size)
        templates = dict(source.chat_templates)
        if chat_template is not None:
            templates["default"] = chat_template
        for name, key in CHAT_TEMPLATE_KEYS.items():
            if name in templates:
                keys[key] = templates[name]
        check_room(
            target, nbytes := sum(nbytes_of(*tensor) for tensor in shapes.values())
        )

        in_halves = (
            args.rope_pairs == "halves" and family.gguf.rope_pairs == "interleaved"
        )
        rotated = args.rotated_weights if in_halves else ()

        def prepare(key: str, weight: ml.Tensor) -> ml.Tensor:
            if key.rpartition(".")[0] in rotated:
                weight = reordered(weight, args.head_dim, "interleaved")
            if not is_matrix(key):
                return with_norm_offset(key, weight.to(ml.float32), args.norm_offset)
            return weight

        with (
            new_path(target, "file") as unfinished,
            GgufWriter(unfinished, keys, shapes) as writer,
        ):
            for key, weight in quantize_weights(tensors, dtype, progress, prepare):
                if key in names:
                    writer.write(names[key], weight)
            if copies_output:
                writer.write(names[OUTPUT], checkpoint.tensors[EMBEDDINGS])
            for name, table in tables.items():
                writer.write(name, table)
        return nbytes


def _check_schema(schema: GgufSchema, args: ModelArgs) -> None:
    """Check that llama.cpp's architecture supports the model's tensors and sizes."""
    name = schema.architecture
    biases = [matrix for matrix in args.biases if matrix not in schema.biases]
    if biases:
        rule = f"only biases that {name} has in GGUF files"
        raise mismatch("save", rule, f"biases of {', '.join(biases)}")
    if schema.heads_fill_dim and args.n_heads * args.head_dim != args.dim:
        rule = f"n_heads x head_dim = dim {args.dim}, as {name} requires in GGUF files"
        raise mismatch("save", rule, f"{args.n_heads} x {args.head_dim}")
    scaling = args.rope_scaling
    if isinstance(scaling, YarnRopeScaling) and scaling.truncate != schema.yarn_truncates:
        rule = f"YaRN with truncate {str(schema.yarn_truncates).lower()}"
        actual = f"truncate {str(scaling.truncate).lower()}"
        raise mismatch("save", f"{rule}, as {name} requires in GGUF files", actual)
    if isinstance(args.rope_scaling, YarnRopeScaling) and not schema.has_yarn_keys:
        betas = (args.rope_scaling.beta_fast, args.rope_scaling.beta_slow)
        if betas != (32.0, 1.0):
            rule = f"beta_fast 32 and beta_slow 1, as {name} requires in GGUF files"
            raise mismatch("save", rule, "{:g} and {:g}".format(*betas))
    if (
        isinstance(args.rope_scaling, RopeScaling | RopeFactors)
        and not schema.has_rope_factors
    ):
        rule = f"RoPE without or with linear scaling, as {name} requires in GGUF files"
        raise mismatch("save", rule, "Llama 3.1's scaling")


def _written_dtype(
    key: str,
    dtype: ml.BlockDType | None,
    dtypes: Mapping[str, ml.DType | ml.BlockDType],
    shape: tuple[int, ...],
) -> ml.DType | ml.BlockDType:
    """Return a written weight's dtype; raise an error if GGUF does not support it."""
    if not is_matrix(key):
        return ml.float32
    target = dtype_in_model(key, dtype)
    written = target or dtypes[key]  # a weight with another source is always quantized
    if written not in TYPE_NUMBERS:
        rule = f"tensor {key} must have a dtype of GGUF files, such as q8_0 or q4_0"
        raise SaveError(f"[save] {rule}: got {written}")
    if target is not None and shape[-1] % target.block_size:
        raise ModelConfigError(
            f"save: rows of {target} must be a multiple of {target.block_size} long: got "
            f"{shape[-1]}"
        )
    return written


def _keys(
    family: Family, args: ModelArgs, dtype: ml.BlockDType | None
) -> dict[str, NewValue]:
    """Return the metadata keys for the sizes and constants."""
    name = family.gguf.architecture
    values: dict[str, NewValue] = {
        **{key: getattr(args, field) for field, key in GGUF_KEYS.items()},
        **dict.fromkeys(
            ("attention.value_length", "rope.dimension_count"), args.head_dim
        ),
    }
    if isinstance(args.rope_scaling, LinearRopeScaling):
        values |= {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": args.rope_scaling.factor,
        }
    elif isinstance(args.rope_scaling, YarnRopeScaling):
        values |= _yarn_keys(args.rope_scaling, family.gguf)
    values |= family.gguf_keys(args)
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.file_type": _FILE_TYPES[
            (dtype or args.feed_forward_dtype or args.dtype).name
        ],
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in values.items()},
    }


def _yarn_keys(scaling: YarnRopeScaling, schema: GgufSchema) -> dict[str, NewValue]:
    """Return the metadata keys of YaRN.

    llama.cpp multiplies the attention factor of the paper by `attn_factor`.
    """
    keys: dict[str, NewValue] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling.factor,
        "rope.scaling.original_context_length": scaling.original_context_length,
    }
    if schema.has_yarn_keys:
        keys["rope.scaling.yarn_beta_fast"] = scaling.beta_fast
        keys["rope.scaling.yarn_beta_slow"] = scaling.beta_slow
    is_quotient = scaling.attention_factor is None and scaling.mscale == 1.0
    if schema.has_yarn_keys and is_quotient and scaling.mscale_all_dim:
        keys["rope.scaling.yarn_log_multiplier"] = scaling.mscale_all_dim
    elif scaling.attention_factor is not None or scaling.mscale:
        quotient = scaling.magnitude / scaling.plain_magnitude
        keys["rope.scaling.attn_factor"] = quotient
    return keys
