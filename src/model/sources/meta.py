"""Meta's layout: `params.json`, `consolidated.NN.pth` and `tokenizer.model`."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self

from ... import ml
from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.mapped_file import MappedFile
from ...checkpoint.model_directory import shard_files
from ...checkpoint.names import EMBEDDINGS, OUTPUT, is_harmless, is_matrix
from ...checkpoint.params import (
    PARAMS_KEYS,
    ignored_params,
    read_params,
    sizes_of,
    value_of,
)
from ...checkpoint.shards import MergedShards, check_shards, merge_shards
from ...checkpoint.torch_pth import map_pth
from ...tokenizer import Tokenizer
from ..args import ModelArgs, RopeScaling
from . import Source

_PARAMS_FILE = "params.json"
_SCALED_ROPE_FACTOR = 8.0
# (dim, n_layers) of models whose RoPE scaling factor differs from Llama 3.1's. Their
# params.json contains only `use_scaled_rope`. The factor is in their Hugging Face
# config.json.
_KNOWN_SCALED_ROPE_FACTORS = {(2048, 16): 32.0, (3072, 28): 32.0}


@dataclass(frozen=True)
class MetaSource(Source):
    """A directory in Meta's layout. Several weight files are the shards of one model."""

    given_label: ClassVar[str] = _PARAMS_FILE
    factor_origin: ClassVar[str] = "the sizes"
    verified_as: ClassVar[Literal["directory", "tensors"] | None] = "tensors"
    chat_format: ClassVar[str | None] = "llama2"

    @classmethod
    def read(cls, path: Path, top: Path) -> Self:
        """Read `params.json`."""
        params = read_params(path / _PARAMS_FILE)
        ignored = {_PARAMS_FILE: ignored_params(params)}
        return cls(path, top, args_from_params(params), params, ignored=ignored)

    @cached_property
    def weight_files(self) -> list[Path]:
        """Return the weight files of the model, in shard order."""
        return shard_files(self.path)

    @property
    def is_merged(self) -> bool:
        """Return whether the model has several weight files."""
        return len(self.weight_files) > 1

    def open_checkpoint(self, one_by_one: bool = False, /) -> Checkpoint:
        """Open the weights.

        Several weight files are merged, which copies the weights. With `one_by_one`, the
        files stay mapped, and a tensor is merged each time it is looked up.
        """
        paths = self.weight_files
        mapped = list[MappedFile]()
        shards = []
        with contextlib.ExitStack() as stack:
            for path in paths:
                file, tensors = map_pth(path)
                mapped.append(stack.enter_context(contextlib.closing(file)))
                shards.append(tensors)
            labels = [file.label for file in mapped]
            layers = self.args.n_layers
            sizes = check_shards(shards, labels, layers, self.args.tensor_sizes)
            whole: Mapping[str, ml.Weight]
            if self.is_merged and not one_by_one:
                whole = merge_shards(shards, layers, sizes)
                mapped = []
            else:
                whole = (
                    MergedShards(shards, layers, sizes) if self.is_merged else shards[0]
                )
                stack.pop_all()
        files = (
            f"{len(paths)} PyTorch files merged" if self.is_merged else "a PyTorch file"
        )
        return Checkpoint(
            tensors=whole,
            sizes=sizes,
            dtypes={name: tensor.dtype for name, tensor in shards[0].items()},
            files=paths,
            source_format=f"Meta, {files}",
            mapped=mapped,
            unused=tuple(name for name in whole if is_harmless(name)),
        )

    def quantized_shapes(self, args: ModelArgs) -> Iterable[tuple[int, ...]]:
        """Return the shapes of all matrices in the layers."""
        shapes = args.tensor_shapes.items()
        return [
            shape
            for name, shape in shapes
            if is_matrix(name) and name not in (EMBEDDINGS, OUTPUT)
        ]

    def config_json(
        self, args: ModelArgs, tokenizer: Tokenizer | None, dtype: str
    ) -> dict[str, object]:
        """Create a `config.json` from the sizes and constants."""
        from ..saved_config import hugging_face_config  # only needed for saving

        return hugging_face_config(args, tokenizer, dtype, self.model_type)


SOURCE = MetaSource


def args_from_params(params: Mapping[str, object]) -> ModelArgs:
    """Convert the checked keys of a `params.json`, or raise ModelConfigError."""
    sizes = sizes_of(PARAMS_KEYS, params)
    scaled = value_of(params, "use_scaled_rope", False)
    factor = _KNOWN_SCALED_ROPE_FACTORS.get(
        (sizes["dim"], sizes["n_layers"]), _SCALED_ROPE_FACTOR
    )
    # The training context lengths of Llama 3.1 and 3.2, of Llama 3 (which is recognized
    # by its theta), and of Llama 2.
    longest = 131072 if scaled else 8192 if sizes["rope_theta"] >= 500000.0 else 4096
    sizes = {"max_context_length": longest} | sizes
    sizes["ffn_dim"] = feed_forward_dim(params) or 0
    sizes["vocab_size"] = max(sizes["vocab_size"], 0)  # -1 in Llama 2
    scaling = RopeScaling(factor) if scaled else None
    return ModelArgs(**sizes, rope_scaling=scaling, dtype=ml.bfloat16)


def feed_forward_dim(params: Mapping[str, object]) -> int | None:
    """Compute F as Meta does: 2/3 of 4 D, multiplied, and rounded up to `multiple_of`.

    Returns None without `multiple_of`, because F is then known only from the tensors.
    """
    multiple_of = value_of(params, "multiple_of", 0)
    if not multiple_of:
        return None
    dim = value_of(params, "dim", 0)
    multiplier = value_of(params, "ffn_dim_multiplier", 1)
    hidden = int(multiplier * int(2 * (4 * dim) / 3))
    return multiple_of * -(-hidden // multiple_of)
