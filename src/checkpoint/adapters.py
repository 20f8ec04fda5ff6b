"""Read LoRA adapters: directories of peft and of mlx, and GGUF files of llama.cpp.

An adapter has two small matrices, A [r, in] and B [out, r], for each weight that it
changes: y = W x + scale * B (A x). The names, ranks and shapes of all matrices are
checked against the base model before any of them is read, and then their elements. The
matrices are copied, because they are small.

- peft: `adapter_config.json` and `adapter_model.safetensors`. The scale is `lora_alpha`
  divided by the rank, or by its square root with `use_rslora`.
- mlx: `adapter_config.json` and `adapters.safetensors`, whose matrices are transposed.
  The config contains the scale.
- llama.cpp: a GGUF file whose `general.type` is `adapter`. The scale is
  `adapter.lora.alpha` divided by the rank.

A key that would change the result and is not supported is rejected with its name.

Source: huggingface/peft 0.21, `tuners/lora/config.py`, `tuners/tuners_utils.py` and
`utils/save_and_load.py`; ml-explore/mlx-lm, `tuner/lora.py`; ggml-org/llama.cpp,
`convert_lora_to_gguf.py` and `src/llama-adapter.cpp`.
"""

import contextlib
import functools
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import regex

from .. import ml
from ..ml.errors import declared_lack_of_memory
from ..untrusted import (
    described,
    followed_inside,
    is_integer,
    label_of,
    read_json_object,
    shown,
    some_of,
)
from .errors import CheckpointError, FileMemoryError, mismatch
from .gguf import read_gguf
from .model_directory import listing_of
from .names import EMBEDDINGS, OUTPUT, Layout, TensorRow, is_matrix, stored_rows
from .params import ANY, OBJECT, Rule, check_known, integer_in, number_in, off, one_of
from .safetensors import SafetensorsFile, TensorEntry

CONFIG_FILE = "adapter_config.json"
PEFT_FILE = "adapter_model.safetensors"
MLX_FILE = "adapters.safetensors"
_PICKLE_FILES = ("adapter_model.bin", "adapter_model.pt", "adapters.npz")
# A config may list each module of a model.
_MOST_CONFIG_BYTES = 1 << 20
_MOST_RANK = 1 << 13
_MOST_SCALE = 1e6
_MOST_PATTERNS = 1000
_MOST_PATTERN_LENGTH = 1 << 12
_PATTERN_SECONDS = 0.5  # for all matches of a file
_FLOATS = ("F32", "BF16", "F16")

_RANK = integer_in(1, _MOST_RANK)
_ALPHA = number_in(-_MOST_SCALE, _MOST_SCALE)


def _texts(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_PATTERNS
        and all(isinstance(x, str) for x in value)
    )


_NAMES: Rule = (
    f"text or a list of at most {_MOST_PATTERNS} texts",
    lambda value: isinstance(value, str) or _texts(value),
)
_LAYERS: Rule = (
    "layer numbers",
    lambda value: (
        is_integer(value, 0, 1 << 20)
        or (isinstance(value, list) and all(is_integer(x, 0, 1 << 20) for x in value))
    ),
)


def _map_of(rule: Rule) -> Rule:
    return (
        f"an object whose values are {rule[0]}",
        lambda value: (
            isinstance(value, dict)
            and len(value) <= _MOST_PATTERNS
            and all(map(rule[1], value.values()))
        ),
    )


# The keys of peft's config. Keys that only matter for training accept any value.
_PEFT_RULES: Mapping[str, Rule] = {
    "peft_type": one_of("LORA"),
    "r": _RANK,
    "lora_alpha": _ALPHA,
    "use_rslora": one_of(True, False),
    "target_modules": _NAMES,
    "exclude_modules": _NAMES,
    "layers_to_transform": _LAYERS,
    "layers_pattern": _NAMES,
    "rank_pattern": _map_of(_RANK),
    "alpha_pattern": _map_of(_ALPHA),
    "bias": one_of("none"),
    "fan_in_fan_out": one_of(False),
    # Some initializations also change the weights of the base model.
    "init_lora_weights": one_of(True, False, "gaussian", "eva", "orthogonal"),
    "modules_to_save": off("modules that replace those of the base model"),
    "use_dora": off("DoRA"),
    "lora_bias": off("biases of adapters"),
    "use_qalora": off("QALoRA"),
    "use_bdlora": off("block-diagonal adapters"),
    "layer_replication": off("replicated layers"),
    "trainable_token_indices": off("trained tokens"),
    "alora_invocation_tokens": off("adapters that begin at an invocation"),
    "target_parameters": off("adapters of parameters"),
    **dict.fromkeys(
        (
            "arrow_config",
            "corda_config",
            "kasa_config",
            "lora_ga_config",
            "loftq_config",
            "megatron_config",
            "monteclora_config",
            "velora_config",
        ),
        off("this variant of LoRA"),
    ),
    **dict.fromkeys(
        (
            "auto_mapping",
            "base_model_name_or_path",
            "ensure_weight_tying",
            "eva_config",
            "inference_mode",
            "lora_dropout",
            "megatron_core",
            "peft_version",
            "qalora_group_size",
            "revision",
            "runtime_config",
            "task_type",
        ),
        ANY,
    ),
}
_PEFT_NEEDED = ("peft_type", "r", "lora_alpha", "target_modules")
_MLX_RULES: Mapping[str, Rule] = {
    "fine_tune_type": one_of("lora"),
    "lora_parameters": OBJECT,
}
_MLX_PARAMETERS: Mapping[str, Rule] = {"rank": _RANK, "scale": _ALPHA, "keys": ANY}
_GGUF_RULES: Mapping[str, Rule] = {
    "general.type": one_of("adapter"),
    "adapter.type": one_of("lora"),
    "adapter.lora.alpha": _ALPHA,
    "adapter.alora.invocation_tokens": off("adapters that begin at an invocation"),
}
_GGUF_NEEDED = ("general.type", "general.architecture", "adapter.type")
_PEFT_NAME = re.compile(
    r"base_model\.model\.(.+)\.(lora_A\.weight|lora_B\.weight|lora_embedding_A"
    r"|lora_embedding_B)",
    re.ASCII | re.DOTALL,
)
# peft also writes the embeddings if an adapter changes them. They belong to the base.
_PEFT_BASE_NAME = re.compile(
    r"base_model\.model\.(model\.embed_tokens|lm_head)(\.base_layer)?\.weight"
)
# The modules of experts and of routers, in all formats.
_OF_EXPERTS = re.compile(r"\.experts\b|_exps$|_gate_inp$|\.mlp\.gate$|block_sparse_moe")
_MLX_NAME = re.compile(r"(.+)\.(lora_a|lora_b)", re.ASCII | re.DOTALL)
_GGUF_NAME = re.compile(r"(.+)\.weight\.(lora_a|lora_b)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class AdapterBase:
    """The properties of the base model that an adapter must match.

    Attributes:
        rows: The table rows for all tensors of the model.
        sizes: The sizes by the letters in `names.py`.
        architecture: The name of the architecture in GGUF files.
        has_output: Whether the output matrix is a separate weight.
    """

    rows: Sequence[TensorRow]
    sizes: Mapping[str, int]
    architecture: str
    has_output: bool

    def matrices(self, layout: Layout) -> dict[str, TensorRow]:
        """Return the rows of the stored matrices, by name without `.weight`.

        The matrices of experts and their routers are not included: adapters of them are
        not supported.
        """
        return {
            name.removesuffix(".weight"): row
            for name, row in stored_rows(self.rows, layout).items()
            if len(row.sizes) == 2 and row.expert is None and is_matrix(row.name)
        }

    def shape(self, row: TensorRow) -> tuple[int, int]:
        """Return the shape [out, in] of a stored matrix."""
        rows, columns = row.sizes
        return sum(self.sizes[letter] for letter in rows.split("+")), self.sizes[columns]


@dataclass(frozen=True)
class StoredPair:
    """The matrices of an adapter for one stored matrix of the base model.

    Attributes:
        a: The matrix A, a tensor [r, in]. For the embedding table, it is [r, V].
        b: The matrix B, a tensor [out, r]. For the embedding table, it is [D, r].
        scale: The factor of their product.
    """

    a: ml.Tensor
    b: ml.Tensor
    scale: float


@dataclass(frozen=True)
class AdapterFile:
    """An adapter, checked against its base model.

    Attributes:
        label: The path for messages.
        kind: The program whose format this is.
        pairs: The matrices, by the name of the base model's stored matrix, which is the
            name of its first part in Meta's names.
    """

    label: str
    kind: Literal["peft", "mlx", "llama.cpp"]
    pairs: Mapping[str, StoredPair]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the matrices, in ascending order."""
        return tuple(sorted({pair.a.shape[0] for pair in self.pairs.values()}))


@dataclass(frozen=True)
class _Matrix:
    """A matrix of an adapter that has not been read yet.

    Attributes:
        name: The name in the file.
        shape: The stored shape.
        is_transposed: Whether the file stores the transpose.
        make: Returns the stored tensor.
    """

    name: str
    shape: tuple[int, ...]
    is_transposed: bool
    make: Callable[[], ml.Weight]

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """The shape of A or B."""
        return self.shape[::-1] if self.is_transposed else self.shape

    def read(self, label: str) -> ml.Tensor:
        """Return a copy of the matrix in memory; its elements must be finite."""
        stored = self.make()
        plain = stored.dequantize() if isinstance(stored, ml.QuantizedTensor) else stored
        if not np.isfinite(plain.to(ml.float32).numpy()).all():
            key = f"tensor {shown(self.name)}"
            raise mismatch(label, key, "finite elements", "NaN or an infinite one")
        values = plain.numpy()
        values = values.T if self.is_transposed else values
        return ml.Tensor.from_numpy(np.array(values, order="C"))


# The matrices of an adapter, by the module that they change: A under "a", B under "b".
_Matrices = dict[str, dict[str, _Matrix]]


def adapter_files(path: Path) -> list[Path]:
    """Return the files of an adapter that exist."""
    names = (CONFIG_FILE, PEFT_FILE, MLX_FILE)
    files = [path / name for name in names] if os.path.isdir(path) else [path]
    return [file for file in files if os.path.isfile(file)]


@declared_lack_of_memory("read_adapter", FileMemoryError)
def read_adapter(path: Path, base: AdapterBase) -> AdapterFile:
    """Read an adapter, and check that it belongs to a base model of these sizes.

    Args:
        path: A directory of peft or mlx, or a GGUF file.
        base: The sizes and names of the base model.

    Raises:
        CheckpointError: The adapter is damaged, unsupported, or made for another model.
        FileMemoryError: Memory for the matrices cannot be allocated.
    """
    label = label_of(path)
    if not os.path.isdir(path):
        if not os.path.exists(path):
            rule = "a directory of peft or mlx, or a GGUF file"
            raise mismatch(label, "path", rule, "nothing")
        return _read_gguf_adapter(path, base)
    if not os.path.lexists(path / CONFIG_FILE):
        rule = f"{CONFIG_FILE} of peft or mlx, or the path of a GGUF file"
        raise mismatch(label, "files", rule, listing_of(path))
    config_path = followed_inside(path / CONFIG_FILE, CheckpointError, path)
    config = read_json_object(config_path, _MOST_CONFIG_BYTES, CheckpointError)
    is_mlx = "peft_type" not in config and not _MLX_RULES.keys().isdisjoint(config)
    name = MLX_FILE if is_mlx else PEFT_FILE
    if not os.path.lexists(path / name):
        pickles = [each for each in _PICKLE_FILES if os.path.lexists(path / each)]
        got = f"{pickles[0]}, which is not read" if pickles else listing_of(path)
        raise mismatch(label, "files", name, got)
    weights_path = followed_inside(path / name, CheckpointError, path)
    source = SafetensorsFile(weights_path)
    with contextlib.closing(source.file):
        if is_mlx:
            pairs = _mlx_pairs(label_of(config_path), config, source, base)
        else:
            pairs = _peft_pairs(label_of(config_path), config, source, base)
        return AdapterFile(label, "mlx" if is_mlx else "peft", pairs)


# peft


def _peft_pairs(
    label: str, config: Mapping[str, object], source: SafetensorsFile, base: AdapterBase
) -> dict[str, StoredPair]:
    """Return the matrices of a peft adapter."""
    settings = _PeftConfig(label, config)
    modules = base.matrices("hugging_face")
    matrices: _Matrices = {}
    for name, entry in source.entries.items():
        if (own := _PEFT_BASE_NAME.fullmatch(name)) is not None and own[1] in modules:
            expected = base.shape(modules[own[1]])
            if entry.shape != expected:
                rule = f"the shape {[*expected]} of the base model"
                raise entry.refusal(rule, [*entry.shape])
            continue
        match = _PEFT_NAME.fullmatch(name)
        if match is None:
            rule = "base_model.model.NAME.lora_A.weight or .lora_B.weight"
            raise entry.refusal(f"a name {rule}", "another name")
        which = "a" if "_A" in match[2] else "b"
        _add(matrices, match[1], which, entry.refusal, _entry_matrix(entry, False))
    _check_modules(source.file.label, matrices, modules)
    targets = settings.targets(modules)
    if missing := [name for name in targets if name not in matrices]:
        rule = f"matrices of the {len(targets)} modules in target_modules"
        raise mismatch(source.file.label, "tensors", rule, f"none of {some_of(missing)}")
    if extra := sorted(matrices.keys() - set(targets)):
        rule = "only modules in target_modules"
        raise mismatch(source.file.label, "tensors", rule, f"also {some_of(extra)}")
    return _read_pairs(source.file.label, matrices, modules, base, settings.scale)


class _PeftConfig:
    """The checked content of peft's `adapter_config.json`.

    Patterns are run with `regex`, which ends a match after a time limit.
    """

    def __init__(self, label: str, config: Mapping[str, object]) -> None:
        check_known(label, config, _PEFT_RULES, _PEFT_NEEDED)
        unknown = [
            key
            for key, value in config.items()
            if key not in _PEFT_RULES and value not in (None, False, {}, [])
        ]
        if unknown:
            raise mismatch(label, "keys", "only known keys", some_of(unknown))
        self._label = label
        self._values: Mapping[str, Any] = config
        self._deadline = time.monotonic() + _PATTERN_SECONDS

    def targets(self, modules: Collection[str]) -> list[str]:
        """Return the modules that the adapter changes, out of all modules."""
        excluded = self._values.get("exclude_modules") or []
        return [
            module
            for module in modules
            if self._is_named("target_modules", self._values["target_modules"], module)
            and not (excluded and self._is_named("exclude_modules", excluded, module))
            and self._is_in_layers(module)
        ]

    def _is_named(self, key: str, names: str | list[str], module: str) -> bool:
        """Return whether a pattern, or a list of names or suffixes, names a module."""
        if names == "all-linear":
            return module.startswith("model.layers.")
        if isinstance(names, str):
            return self._matches(key, names, module)
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _is_in_layers(self, module: str) -> bool:
        """Return whether `layers_to_transform` includes the layer of a module."""
        layers = self._values.get("layers_to_transform")
        if layers in (None, []) or isinstance(self._values["target_modules"], str):
            return True
        patterns = self._values.get("layers_pattern") or [r"[^.]*"]
        patterns = [patterns] if isinstance(patterns, str) else patterns
        numbers = [layers] if isinstance(layers, int) else layers
        name = "|".join(f"(?:{pattern})" for pattern in patterns)
        number = "|".join(map(str, numbers))
        pattern = rf"(?:|.*?\.)(?:{name})\.(?:{number})\..*"
        return self._matches("layers_pattern", pattern, module)

    def _matches(self, key: str, pattern: str, module: str) -> bool:
        """Return whether a pattern from the file matches a whole module name."""
        if len(pattern) > _MOST_PATTERN_LENGTH:
            rule = f"a pattern of at most {_MOST_PATTERN_LENGTH} characters"
            raise mismatch(self._label, key, rule, len(pattern))
        seconds = max(self._deadline - time.monotonic(), 1e-3)
        try:
            return regex.fullmatch(pattern, module, timeout=seconds) is not None
        except TimeoutError:
            rule = f"patterns that match within {_PATTERN_SECONDS} s"
            raise mismatch(self._label, key, rule, "a slow one") from None
        except (regex.error, RecursionError, OverflowError, ValueError, IndexError):
            raise mismatch(self._label, key, "a pattern", shown(pattern)) from None

    def scale(self, module: str, rank: int) -> float:
        """Return the scale of a module, after a check of its rank."""
        expected = self._of_pattern("rank_pattern", module, self._values["r"])
        if rank != expected:
            raise mismatch(self._label, f"rank of {shown(module)}", expected, rank)
        alpha = self._of_pattern("alpha_pattern", module, self._values["lora_alpha"])
        is_root = self._values.get("use_rslora") is True
        return float(alpha) / (math.sqrt(rank) if is_root else rank)

    def _of_pattern(self, key: str, module: str, default: Any) -> Any:
        """Return the value of the first pattern that matches a module."""
        for pattern, value in (self._values.get(key) or {}).items():
            if self._matches(key, rf"(?:.*\.)?(?:{pattern})", module):
                return value
        return default


# mlx


def _mlx_pairs(
    label: str, config: Mapping[str, Any], source: SafetensorsFile, base: AdapterBase
) -> dict[str, StoredPair]:
    """Return the matrices of an mlx adapter. Other keys only matter for training."""
    check_known(label, config, _MLX_RULES, ("lora_parameters",))
    parameters = config["lora_parameters"]
    check_known(
        f"{label}: lora_parameters", parameters, _MLX_PARAMETERS, ("rank", "scale")
    )
    modules = base.matrices("hugging_face")
    matrices: _Matrices = {}
    for name, entry in source.entries.items():
        match = _MLX_NAME.fullmatch(name)
        if match is None:
            raise entry.refusal("a name NAME.lora_a or NAME.lora_b", "another name")
        matrix = _entry_matrix(entry, is_transposed=True)
        _add(matrices, match[1], match[2][-1], entry.refusal, matrix)
    _check_modules(source.file.label, matrices, modules)

    def scale(module: str, rank: int) -> float:
        if rank != parameters["rank"]:
            raise mismatch(label, f"rank of {shown(module)}", parameters["rank"], rank)
        return float(parameters["scale"])

    pairs = _read_pairs(source.file.label, matrices, modules, base, scale)
    if not base.has_output and EMBEDDINGS in pairs and OUTPUT not in pairs:
        # The tied output matrix has the change of the embeddings, W + scale * (B A)^T.
        pair = pairs[EMBEDDINGS]
        a, b = _transposed(pair.b), _transposed(pair.a)
        pairs[OUTPUT] = StoredPair(a, b, pair.scale)
    return pairs


# llama.cpp


def _read_gguf_adapter(path: Path, base: AdapterBase) -> AdapterFile:
    """Read the adapter in a GGUF file."""
    file = read_gguf(path)
    check_known(file.label, file.keys, _GGUF_RULES, _GGUF_NEEDED)
    architecture = file.keys["general.architecture"]
    if architecture != base.architecture:
        rule = f"{base.architecture}, the architecture of the base model"
        raise mismatch(file.label, "general.architecture", rule, described(architecture))
    alpha: Any = file.keys.get("adapter.lora.alpha", 0.0)
    modules = base.matrices("gguf")
    matrices: _Matrices = {}
    with contextlib.closing(file.map()) as mapped:
        for name, entry in file.tensors.items():
            key = f"tensor {shown(name)}"

            def refusal(
                expected: object, actual: object, key: str = key
            ) -> CheckpointError:
                return mismatch(file.label, key, expected, actual)

            match = _GGUF_NAME.fullmatch(name)
            if match is None:
                rule = "a name NAME.weight.lora_a or NAME.weight.lora_b"
                raise refusal(rule, "another name")
            is_table = match[1] in modules and modules[match[1]].name == EMBEDDINGS
            make = functools.partial(entry.make, mapped, name)
            matrix = _Matrix(name, entry.shape, is_table and match[2] == "lora_a", make)
            _add(matrices, match[1], match[2][-1], refusal, matrix)
        _check_modules(file.label, matrices, modules)

        def scale(_module: str, rank: int) -> float:
            return float(alpha) / rank if alpha else 1.0

        pairs = _read_pairs(file.label, matrices, modules, base, scale)
        return AdapterFile(file.label, "llama.cpp", pairs)


# All formats


def _entry_matrix(entry: TensorEntry, is_transposed: bool) -> _Matrix:
    """Return a matrix in a safetensors file."""
    if entry.dtype not in _FLOATS:
        raise entry.refusal(f"a dtype among {', '.join(_FLOATS)}", entry.dtype)
    return _Matrix(entry.name, entry.shape, is_transposed, entry.make)


def _transposed(matrix: ml.Tensor) -> ml.Tensor:
    """Return the transpose of a matrix, as a contiguous copy."""
    return ml.Tensor.from_numpy(np.array(matrix.numpy().T, order="C"))


def _add(
    matrices: _Matrices,
    module: str,
    which: str,
    refusal: Callable[[object, object], CheckpointError],
    matrix: _Matrix,
) -> None:
    """Add the matrix A or B of a module."""
    pair = matrices.setdefault(module, {})
    if which in pair:
        raise refusal(f"one matrix {which.upper()} of {shown(module)}", "another")
    pair[which] = matrix


def _check_modules(
    label: str, matrices: _Matrices, modules: Mapping[str, TensorRow]
) -> None:
    """Check that an adapter changes only matrices of the base model, and at least one."""
    if not matrices:
        raise mismatch(label, "tensors", "matrices A and B", "none")
    if unknown := [name for name in matrices if name not in modules]:
        rule = "only matrices of the base model"
        if any(_OF_EXPERTS.search(name) for name in unknown):
            rule += ", without those of experts (not supported)"
        raise mismatch(label, "modules", rule, f"also {some_of(unknown)}")
    for which in "ab":
        if missing := [name for name, pair in matrices.items() if which not in pair]:
            rule = "matrices A and B of each module"
            got = f"no {which.upper()} of {some_of(missing)}"
            raise mismatch(label, "tensors", rule, got)


def _read_pairs(
    label: str,
    matrices: _Matrices,
    modules: Mapping[str, TensorRow],
    base: AdapterBase,
    scale: Callable[[str, int], float],
) -> dict[str, StoredPair]:
    """Check the shapes of all matrices, and then read them."""
    scales = {}
    for module, pair in matrices.items():
        row = modules[module]
        rows, columns = base.shape(row)
        if row.name == EMBEDDINGS:  # a token selects a column of A
            rows, columns = columns, rows
        shape = pair["a"].logical_shape
        rank = shape[0] if len(shape) == 2 else 0
        expected = (rank, columns), (rows, rank)
        for matrix, logical in zip((pair["a"], pair["b"]), expected, strict=True):
            if not 1 <= rank <= _MOST_RANK or matrix.logical_shape != logical:
                stored = [*logical[::-1]] if matrix.is_transposed else [*logical]
                sizes = str(stored).replace(str(rank), "r") if not rank else stored
                key = f"tensor {shown(matrix.name)}: shape"
                raise mismatch(label, key, f"{sizes} by the base model", [*matrix.shape])
        scales[module] = scale(module, rank)
    return {
        modules[module].name: StoredPair(
            pair["a"].read(label), pair["b"].read(label), scales[module]
        )
        for module, pair in matrices.items()
    }
