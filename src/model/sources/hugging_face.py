"""Hugging Face's layout: `config.json`, safetensors and various tokenizer files."""

import contextlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ... import ml
from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.errors import mismatch
from ...checkpoint.hugging_face_config import (
    CONFIG_KEYS,
    GENERATION_FILE,
    HuggingFaceConfig,
    read_hugging_face_config,
)
from ...checkpoint.mapped_file import MappedFile
from ...checkpoint.model_directory import CONFIG_FILE, INDEX, SINGLE
from ...checkpoint.names import (
    EMBEDDINGS,
    OUTPUT,
    TensorRow,
    check_tensors,
    is_harmless,
    is_matrix,
    part_of,
    stored_rows,
)
from ...checkpoint.packed_weights import (
    MXFP4,
    Mxfp4Stack,
    PackedWeight,
    QuantizationConfig,
    take_packed,
)
from ...checkpoint.params import sizes_of, value_of
from ...checkpoint.safetensors import SafetensorsFile, TensorEntry, read_index
from ...tokenizer import Tokenizer
from ...untrusted import label_of, some_of
from ..args import (
    ComputedRopeScaling,
    LinearRopeScaling,
    ModelArgs,
    RopeScaling,
    YarnRopeScaling,
)
from ..families import FAMILIES, Family
from ..llama import LlamaTransformer
from . import Source

_YARN_KEYS = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")


@dataclass(frozen=True)
class HuggingFaceSource(Source):
    """A directory in Hugging Face's layout.

    Attributes:
        tied: Whether the embedding table may serve as the output matrix.
        packing: The format of the quantized weights, or None if all weights are plain.
        prefix: The beginning of the names of all tensors that are used.
    """

    tied: bool = False
    packing: QuantizationConfig | None = None
    prefix: str = ""

    given_label: ClassVar[str] = CONFIG_FILE
    factor_origin: ClassVar[str] = CONFIG_FILE
    sampling_origin: ClassVar[str] = GENERATION_FILE
    verified_as: ClassVar[Literal["directory", "tensors"] | None] = "directory"

    @classmethod
    def read(cls, path: Path, top: Path) -> Self:
        """Read the configuration files.

        End tokens in `generation_config.json` override end tokens in `config.json`.
        """
        config = read_hugging_face_config(path, FAMILIES)
        kind = str(config.given["model_type"])
        in_config: list[int] | int = value_of(config.given, "eos_token_id", [])
        ends = value_of(config.generation, "eos_token_id", in_config)
        return cls(
            path,
            top,
            args_from_config(config, FAMILIES[kind]),
            config.given,
            end_ids=tuple(ends) if isinstance(ends, list) else (ends,),
            ignored=config.ignored,
            sampling=config.sampling,
            model_type=kind,
            tied=config.values.get("tie_word_embeddings") is True,
            packing=config.quantization,
            prefix=config.prefix,
        )

    @property
    def transformer_class(self) -> type[LlamaTransformer]:
        """Return the network class of the model's family."""
        return FAMILIES[self.model_type].transformer

    @property
    def has_other_parts(self) -> bool:
        """Return whether the model has parts that are not for text, such as images."""
        return bool(self.prefix)

    @cached_property
    def weights(self) -> tuple[str, dict[Path, list[str] | None]]:
        """Return a label for messages, and each file's tensors from the index."""
        single = self.path / SINGLE
        index = self.path / INDEX
        if os.path.exists(single):
            return label_of(single), {single: None}
        if not os.path.exists(index):
            raise mismatch(
                label_of(self.path), "weights", f"{SINGLE} or {INDEX}", "neither"
            )
        return label_of(index), {**read_index(index)}

    @property
    def weight_files(self) -> list[Path]:
        """Return the weight files: a single file, or all files in the index."""
        return list(self.weights[1])

    @property
    def quantization(self) -> str | None:
        """Describe the quantization format, or return None if weights are plain."""
        return None if self.packing is None else self.packing.description

    def open_checkpoint(self, one_by_one: bool = False, /) -> Checkpoint:
        """Open the weights in place, and copy the weights that must be rearranged.

        A tied model may lack the output matrix.
        """
        label, files = self.weights
        all_entries = dict[str, TensorEntry]()
        mapped = list[MappedFile]()
        with contextlib.ExitStack() as stack:
            for path, expected in files.items():
                source = SafetensorsFile(path)
                mapped.append(stack.enter_context(contextlib.closing(source.file)))
                if expected is not None:
                    _check_shard(label, source, expected)
                all_entries |= source.entries
            prefix = self.prefix
            plain = {
                name.removeprefix(prefix): entry
                for name, entry in all_entries.items()
                if name.startswith(prefix)
            }
            of_other_parts = [name for name in all_entries if not name.startswith(prefix)]
            packed = {} if self.packing is None else take_packed(plain, self.packing.kind)
            entries: dict[str, TensorEntry | PackedWeight] = {**plain, **packed}
            sizes = self.args.tensor_sizes
            all_rows = self.args.tensor_rows
            rows = stored_rows(all_rows, "hugging_face")
            check_tensors(entries, label, rows, dict(sizes), CONFIG_FILE)
            if not self.tied and "lm_head.weight" not in entries:
                rule = "'lm_head.weight', because tie_word_embeddings is not true"
                raise mismatch(label, "tensors", rule, "none")
            used = {
                row.name: prefix + row.hugging_face
                for row in all_rows
                if row.hugging_face in entries
            }
            wholes = {
                name: entries[name].make(row.name)
                for name, row in rows.items()
                if name in entries
            }
            of_model = {row.name: row for row in all_rows if row.name in used}
            stored = _StoredWeights(of_model, wholes, sizes, label)
            tensors = stored if one_by_one else dict(stored)
            stack.pop_all()
        unused = [prefix + name for name in plain if name not in rows] + of_other_parts
        count = (
            "a safetensors file" if len(files) == 1 else f"{len(files)} safetensors files"
        )
        copied = (
            name
            for name, entry in all_entries.items()
            if entry.is_misaligned and name not in unused
        )
        rearranged = [
            name for name, row in of_model.items() if row.is_copied_from("hugging_face")
        ]
        checkpoint = Checkpoint(
            tensors=tensors,
            sizes=sizes,
            dtypes={n: wholes[row.hugging_face].dtype for n, row in of_model.items()},
            files=list(files),
            source_format=f"Hugging Face, {count}",
            mapped=mapped,
            names_in_files=used,
            unused=tuple(unused),
            copied=tuple(copied),
            rearranged=() if one_by_one else tuple(rearranged),
        )
        if checkpoint.rearranged:
            checkpoint.forget_pages()  # release the pages of the originals
        return checkpoint

    @property
    def _has_packed_stacks(self) -> bool:
        """Return whether only the matrices of experts are quantized."""
        return self.packing is not None and self.packing.kind == "mxfp4"

    def quantized_shapes(self, args: ModelArgs) -> Iterable[tuple[int, ...]]:
        """Return the shapes of all matrices except the embedding table."""
        excluded = {EMBEDDINGS, OUTPUT} if self.tied else {EMBEDDINGS}
        if self._has_packed_stacks:
            excluded = {row.name for row in args.tensor_rows if row.expert is None}
        shapes = args.tensor_shapes.items()
        return [
            shape for name, shape in shapes if is_matrix(name) and name not in excluded
        ]

    def rearranged_bytes(self, args: ModelArgs) -> int:
        """Return the size in bytes of the weights that are copied to be rearranged."""
        shapes = args.tensor_shapes
        total = 0
        for row in args.tensor_rows:
            if row.is_copied_from("hugging_face"):
                size = math.prod(shapes[row.name])
                is_packed = self._has_packed_stacks and is_matrix(row.name)
                total += MXFP4.bytes_of(size) if is_packed else size * args.dtype.itemsize
        return total

    def notes(self, has_output: bool) -> Iterable[str]:
        """Yield a note if an output matrix is present despite `tie_word_embeddings`."""
        if has_output and self.tied:
            yield "lm_head.weight is used, although tie_word_embeddings is true"

    def config_json(
        self, _args: ModelArgs, _tokenizer: Tokenizer | None, _dtype: str
    ) -> dict[str, object]:
        """Return a copy of the original `config.json`."""
        return dict(self.given)


SOURCE = HuggingFaceSource


class _StoredWeights(Mapping[str, ml.Weight]):
    """The weights of a model by Meta's names. Rearranged ones are copied on each look-up.

    Args:
        rows: The table rows of the weights.
        wholes: The stored tensors by their names in the files.
        sizes: The sizes by letter.
        label: The file, for error messages.
    """

    def __init__(
        self,
        rows: Mapping[str, TensorRow],
        wholes: Mapping[str, ml.Weight | Mxfp4Stack],
        sizes: Mapping[str, int],
        label: str,
    ) -> None:
        self._rows = rows
        self._wholes = wholes
        self._sizes = sizes
        self._label = label

    def __getitem__(self, name: str) -> ml.Weight:
        row = self._rows[name]
        whole = self._wholes[row.hugging_face]
        if isinstance(whole, Mxfp4Stack):
            assert row.expert is not None, "only the matrices of experts are stacks"
            return whole.matrix(row.expert, row.part, len(row.joined) or 1, name)
        weight: ml.Weight = part_of(whole, row, self._sizes, self._label, "hugging_face")
        return weight

    def __contains__(self, name: object) -> bool:
        return name in self._rows  # the default would copy the weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _check_shard(label: str, source: SafetensorsFile, names: Collection[str]) -> None:
    """Check that a file contains the tensors listed for it in the index, and no others.

    Additional tensors that have no effect on the model are allowed.
    """
    entries = source.entries
    subject = f"tensors of {source.file.path.name}"
    if missing := [name for name in names if name not in entries]:
        rule = f"the {len(names)} of the index"
        raise mismatch(label, subject, rule, f"none for {some_of(missing)}")
    if extra := sorted(name for name in entries.keys() - names if not is_harmless(name)):
        raise mismatch(
            label, subject, "only those of the index", f"also {some_of(extra)}"
        )


def args_from_config(config: HuggingFaceConfig, family: Family) -> ModelArgs:
    """Convert the checked keys of a `config.json`, or raise ModelConfigError.

    An absent key has the default of its family in transformers, or else the default of
    `LlamaConfig`. Sizes have no default, because guessed sizes would be useless.
    """
    values: Mapping[str, Any] = config.values
    biases = [*family.biases]
    if value_of(values, "attention_bias", False) and not biases:
        biases += ("wq", "wk", "wv", "wo")
    if value_of(values, "mlp_bias", False):
        biases += ("w1", "w2", "w3")
    named_dtype = value_of(config.given, "dtype", config.given.get("torch_dtype"))
    sizes = sizes_of(CONFIG_KEYS, values, norm_eps=1e-6, max_context_length=2048)
    scaling = _rope_scaling(config.rope, sizes["max_context_length"])
    if isinstance(scaling, YarnRopeScaling):
        longest = max(sizes["max_context_length"], scaling.context_length)
        sizes["max_context_length"] = longest
    fields: dict[str, Any] = {
        **sizes,
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": scaling,
        "dtype": ml.float32 if named_dtype in ("float32", "float16") else ml.bfloat16,
        "rope_pairs": "halves",
        "biases": tuple(biases),
        "layer_rows": family.layer_rows,
        "norm_offset": family.norm_offset,
    }
    return family.args_class(**fields | family.fields_of_config(config))


def _rope_scaling(
    rope: Mapping[str, Any], positions: int
) -> RopeScaling | LinearRopeScaling | ComputedRopeScaling | None:
    """Return the scaling of RoPE; the model has this many positions without it."""
    match rope["rope_type"]:
        case "llama3":
            original = int(rope["original_max_position_embeddings"])
            low = rope["low_freq_factor"]
            high = rope["high_freq_factor"]
            return RopeScaling(rope["factor"], low, high, original)
        case "linear":
            return LinearRopeScaling(rope["factor"])
        case "yarn" if "factor" in rope:
            original = int(rope.get("original_max_position_embeddings", positions))
            optional = {name: rope[name] for name in _YARN_KEYS if name in rope}
            truncate = bool(rope.get("truncate", True))
            return YarnRopeScaling(
                rope["factor"], original, truncate=truncate, **optional
            )
    return None  # a family reads its own scaling
