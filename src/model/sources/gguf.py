"""GGUF files with one or more parts: metadata, tensors, tokenizer and chat template."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ... import ml
from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.gguf import GgufFile, GgufTensor, read_gguf_parts
from ...checkpoint.gguf_config import CHAT_TEMPLATE_KEYS, GgufConfig, read_gguf_config
from ...checkpoint.mapped_file import MappedFile
from ...checkpoint.names import (
    EMBEDDINGS,
    LAYER_MATRICES,
    check_tensors,
    part_of,
    rows_of,
    stored_rows,
)
from ...checkpoint.params import value_of
from ...checkpoint.sampling_values import GGUF_SAMPLING_KEYS, sampling_values
from ...tokenizer import Tokenizer, load_tokenizer
from ...tokenizer.gguf_keys import ARRAYS, gguf_tokenizer, ignored_keys
from ...tokenizer.template_files import TEMPLATE_FILES
from ...untrusted import label_of
from ..args import (
    LinearRopeScaling,
    ModelArgs,
    YarnRopeScaling,
    activation_dtype,
)
from ..errors import ModelError, mismatch
from ..families import FAMILIES, Family, architectures_for
from ..llama import LlamaTransformer
from . import Source

_TITLE_KEYS = ("general.name", "general.basename")


@dataclass(frozen=True)
class GgufSource(Source):
    """A GGUF file, or the first part of a split GGUF file.

    Attributes:
        parts: The headers of all parts, beginning with the file itself.
    """

    parts: tuple[GgufFile, ...] = field(default=(), repr=False)

    given_label: ClassVar[str] = "keys of the file"
    factor_origin: ClassVar[str] = "rope.scaling.factor"
    sampling_origin: ClassVar[str] = "general.sampling"
    verified_as: ClassVar[Literal["directory", "tensors"] | None] = None

    @classmethod
    def read(cls, path: Path, _top: Path) -> Self:
        """Read the headers of all parts."""
        parts = tuple(read_gguf_parts(path))
        keys = parts[0].keys
        tensors = {name: entry for part in parts for name, entry in part.tensors.items()}
        families = architectures_for(keys)
        config = read_gguf_config(parts[0], families)
        ignored = {path.name: (*config.ignored, *ignored_keys(keys))}
        family = families[config.architecture]
        return cls(
            path,
            path,
            args_from_gguf(config, tensors, family),
            keys,
            ignored=ignored,
            sampling=sampling_values(keys, GGUF_SAMPLING_KEYS),
            parts=parts,
            model_type=family.model_type,
        )

    @property
    def titles(self) -> tuple[str, ...]:
        """Return the file's names and the names in its metadata keys."""
        keys = [str(self.given[key]) for key in _TITLE_KEYS if key in self.given]
        return (*super().titles, *keys)

    @property
    def transformer_class(self) -> type[LlamaTransformer]:
        """Return the network class of the model's family."""
        return FAMILIES[self.model_type].transformer

    def with_rope_tensors(
        self, args: ModelArgs, tensors: Mapping[str, tuple[float, ...]]
    ) -> ModelArgs:
        """Return args completed with the RoPE factors stored as tensors."""
        return FAMILIES[self.model_type].with_rope_tensors(args, tensors)

    @property
    def weight_files(self) -> list[Path]:
        """Return the paths of all parts."""
        return [part.path for part in self.parts]

    def open_checkpoint(self, _one_by_one: bool = False, /) -> Checkpoint:
        """Open the weights, which are used in place."""
        mapped = list[MappedFile]()
        places = dict[str, MappedFile]()
        entries = {
            name: entry for file in self.parts for name, entry in file.tensors.items()
        }
        family = FAMILIES[self.model_type]
        names = [name for name in family.gguf.rope_tensors if name in entries]
        factors = {name: entries.pop(name) for name in names}
        sizes = self.args.tensor_sizes
        label = self.parts[0].label
        all_rows = self.args.tensor_rows
        rows = stored_rows(all_rows, "gguf")
        check_tensors(entries, label, rows, dict(sizes), "its keys")
        used = {row.name: row.gguf for row in all_rows if row.gguf in entries}
        with contextlib.ExitStack() as stack:
            for file in self.parts:
                mapped.append(stack.enter_context(contextlib.closing(file.map())))
                places |= dict.fromkeys(file.tensors, mapped[-1])
            pairs = self.args.rotary_dim // 2
            rope_factors = {
                name: _rope_factors(places[name], name, entry, pairs)
                for name, entry in factors.items()
            }
            stack.pop_all()
        # The experts of a layer are views of one stack.
        wholes = {
            name: entries[name].make(places[name], row.name)
            for name, row in rows.items()
            if name in entries
        }
        tensors = {
            row.name: part_of(wholes[row.gguf], row, sizes, label, "gguf")
            for row in all_rows
            if row.name in used
        }
        count = "a file" if len(self.parts) == 1 else f"{len(self.parts)} files"
        return Checkpoint(
            tensors=tensors,
            sizes=sizes,
            dtypes={name: tensor.dtype for name, tensor in tensors.items()},
            files=self.weight_files,
            source_format=f"GGUF version {self.parts[0].version}, {count}",
            mapped=mapped,
            names_in_files=used,
            rope_factors=rope_factors,
        )

    def quantized_shapes(self, _args: ModelArgs) -> Iterable[tuple[int, ...]]:
        """Return the shapes of the quantized tensors listed in the headers."""
        return [
            tensor.shape
            for part in self.parts
            for tensor in part.tensors.values()
            if isinstance(tensor.dtype, ml.BlockDType)
        ]

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Return the chat templates from the metadata keys, by name."""
        templates: dict[str, str] = {}
        for name, key in CHAT_TEMPLATE_KEYS.items():
            template: str | None = value_of(self.given, key, None)
            if template is not None:
                templates[name] = template
        return templates

    def _tokenizer_keys(self) -> dict[str, Any]:
        return self.parts[0].decoded("tokenizer.", ARRAYS)

    def find_tokenizer(self) -> Tokenizer | None:
        """Create the tokenizer from the keys, or return None without a vocabulary."""
        return gguf_tokenizer(self.top, self._tokenizer_keys())

    def required_tokenizer(self) -> Tokenizer:
        """Create the tokenizer from the metadata keys, or raise ModelError."""
        tokenizer = self.find_tokenizer()
        if tokenizer is None:
            rule = "tokenizer: expected a vocabulary in the keys of the file, got none"
            raise ModelError(f"{label_of(self.path)}: {rule}")
        return tokenizer

    def config_json(
        self, args: ModelArgs, tokenizer: Tokenizer | None, dtype: str
    ) -> dict[str, object]:
        """Create a `config.json` from the metadata keys."""
        from ..saved_config import (
            hugging_face_config,
            with_named_scaling,
        )  # only for saving

        return hugging_face_config(
            with_named_scaling(args), tokenizer, dtype, self.model_type
        )

    def side_files(self, tokenizer: Tokenizer | None) -> Mapping[str, bytes]:
        """Create the tokenizer and chat template files from the metadata keys."""
        if tokenizer is None:
            return {}
        from ...tokenizer.hugging_face_export import hugging_face_files  # only for saving

        files = hugging_face_files(self.top, self._tokenizer_keys(), tokenizer)
        for name, template in self.chat_templates.items():
            files[TEMPLATE_FILES[name]] = template.encode()
        return files

    def check_saved(
        self, directory: Path, args: ModelArgs, tokenizer: Tokenizer | None
    ) -> None:
        """Check that the files created in a directory agree with the metadata keys."""
        from ..saved_config import with_named_scaling
        from .hugging_face import HuggingFaceSource

        saved_args = HuggingFaceSource.read(directory, directory).args
        fields = ("dtype", "feed_forward_dtype", "rope_pairs", "norm_offset")
        unchecked = {name: getattr(args, name) for name in fields}
        if replace(saved_args, **unchecked) != with_named_scaling(args):
            raise mismatch("save", "a model that config.json can describe", "another one")
        if tokenizer is not None:
            from ...tokenizer.gguf_export import first_difference

            saved_tokenizer = load_tokenizer(directory)
            rows = max(args.vocab_size, tokenizer.vocab_size)
            difference = first_difference(
                tokenizer.padded_to(rows), saved_tokenizer.padded_to(rows)
            )
            if difference is not None:
                rule = f"tokenizer files: {difference}"
                raise mismatch(rule, "the value of the GGUF file", "another one")

    def gguf_tokenizer_keys(self, _vocab_size: int) -> dict[str, Any]:
        """Return the tokenizer's metadata keys without the chat templates."""
        keys = self._tokenizer_keys()
        for key in CHAT_TEMPLATE_KEYS.values():
            keys.pop(key, None)
        return keys


SOURCE = GgufSource


def _rope_factors(
    file: MappedFile, name: str, entry: GgufTensor, count: int
) -> tuple[float, ...]:
    """Read the divisors of the RoPE frequencies from a tensor."""
    subject = f"tensor '{name}'"
    if entry.dtype is not ml.float32 or entry.shape != (count,):
        file.refuse(subject, f"float32 [{count}]", f"{entry.dtype} {list(entry.shape)}")
    factors = np.frombuffer(file.buffer, np.float32, count, entry.start).tolist()
    for factor in factors:
        if not 1e-6 <= factor <= 1e6:
            file.refuse(subject, "factors in 1e-06..1e+06", factor)
    return tuple(factors)


def args_from_gguf(
    config: GgufConfig, tensors: Mapping[str, GgufTensor], family: Family
) -> ModelArgs:
    """Convert the checked keys of a GGUF file, or raise ModelConfigError.

    The biases and the dtype are derived from the names and dtypes of the tensors in the
    header. No tensor data is read.
    """
    own_fields = family.fields_of_gguf(config)
    # The experts of a layer are in one stored tensor, so the first of them is enough.
    first_expert = min(own_fields.get("n_experts", 0), 1)
    rows = rows_of(
        config.sizes["n_layers"], family.layer_rows, LAYER_MATRICES, first_expert
    )
    stored = {row.name: tensors[row.gguf] for row in rows if row.gguf in tensors}
    biases = tuple(
        matrix
        for matrix in LAYER_MATRICES
        if any(key.endswith(f".{matrix}.bias") for key in stored)
    )
    dtypes = {key: tensor.dtype for key, tensor in stored.items()}
    dtype = activation_dtype(dtypes)
    feed_forward_dtype = None
    if dtype is ml.bfloat16 and all(
        isinstance(dtype_, ml.DType) for dtype_ in dtypes.values()
    ):
        # llama.cpp keeps activations in float32 and rounds the inputs of all matrix
        # products to bfloat16. Rounding only the inputs of the largest products keeps the
        # logits at least as close to those of a float32 model.
        dtype = ml.float32
        feed_forward_dtype = ml.bfloat16
    sizes = dict(config.sizes)
    if not sizes["vocab_size"] and EMBEDDINGS in stored:
        sizes["vocab_size"] = stored[EMBEDDINGS].shape[0]
    scaling = _rope_scaling(config, family)
    if isinstance(scaling, YarnRopeScaling):
        longest = max(sizes["max_context_length"], scaling.context_length)
        sizes["max_context_length"] = longest
    fields: dict[str, Any] = {
        **sizes,
        "rope_scaling": scaling,
        "dtype": dtype,
        "feed_forward_dtype": feed_forward_dtype,
        "rope_pairs": family.gguf.rope_pairs,
        "biases": biases,
        "layer_rows": family.layer_rows,
    }
    return family.args_class(**fields | own_fields)


def _rope_scaling(
    config: GgufConfig, family: Family
) -> LinearRopeScaling | YarnRopeScaling | None:
    """Return the scaling of RoPE according to the keys.

    Source: llama.cpp, src/llama-context.cpp (`yarn_attn_factor`).
    """
    factor = config.rope_factor
    given: Mapping[str, Any] = config.given
    if given.get("rope.scaling.type") != "yarn":
        return LinearRopeScaling(factor) if factor != 1.0 else None
    positions = config.sizes["max_context_length"]
    scaling = YarnRopeScaling(
        factor,
        value_of(given, "rope.scaling.original_context_length", positions),
        truncate=family.gguf.yarn_truncates,
    )
    if family.gguf.has_yarn_keys:
        multiplier = float(value_of(given, "rope.scaling.yarn_log_multiplier", 0.0))
        scaling = replace(
            scaling,
            beta_fast=float(value_of(given, "rope.scaling.yarn_beta_fast", 32.0)),
            beta_slow=float(value_of(given, "rope.scaling.yarn_beta_slow", 1.0)),
            mscale=1.0 if multiplier else None,
            mscale_all_dim=multiplier or None,
        )
    longer = float(value_of(given, "rope.scaling.attn_factor", 1.0))
    if longer == 1.0:
        return scaling
    return replace(scaling, attention_factor=scaling.magnitude * longer)
