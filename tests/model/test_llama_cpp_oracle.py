"""Tiny random models of each family and format beside llama.cpp, both against float32
weights.

The blocks are made by llama.cpp's quantizer, and each tensor gets the type that its rules
give it.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.gguf import DTYPES, GgufFile, nbytes_of, read_gguf
from src.checkpoint.gguf_writer import GgufWriter
from src.checkpoint.params import MOST_LAYERS
from src.model import InferenceContext, LlamaTransformer, load_model
from src.model.saving_gguf import save_gguf
from tests.bench.shapes import quantize_gguf
from tests.model.families import CONFIGS, WITH_EXPERTS, write_family
from tests.model.test_gguf import dequantized
from tests.support import llama_cpp

pytestmark = pytest.mark.oracle

F32 = 0
F16 = 1
Q4_0 = 2
Q5_0 = 6
Q8_0 = 8
Q4_K = 12
Q6_K = 14
BF16 = 30
MXFP4 = 39
# The type of the output and of the matrices that need more bits; and that of all others.
FILE_TYPES = {
    "F32": (F32, F32, F32), "F16": (F16, F16, F16), "BF16": (BF16, BF16, BF16),
    "Q8_0": (Q8_0, Q8_0, Q8_0), "Q4_0": (Q6_K, Q4_0, Q4_0), "Q4_K_M": (Q6_K, Q6_K, Q4_K),
    "Q6_K": (Q6_K, Q6_K, Q6_K),
}  # fmt: skip
# Types that only files with experts have here.
EXPERT_TYPES = {"MXFP4": (Q8_0, MXFP4, MXFP4)}
FALLBACKS = {Q4_K: Q5_0, Q6_K: Q8_0}  # where a row is no multiple of 256
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,  # the text has 24 tokens
}
# Keys of config.json by family; the name of a variant begins with its family's.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama, YaRN": {"rope_scaling": YARN},
    "qwen2, YaRN": {"rope_scaling": YARN | {"original_max_position_embeddings": 20}},
    "qwen3, YaRN": {"rope_scaling": YARN | {"attention_factor": 1.4}},
}
FAMILIES = ("llama", *CONFIGS, *VARIANTS)
SIZES = {
    "multiples of 256": {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32},
    "multiples of 32": {"hidden_size": 96, "intermediate_size": 160, "head_dim": 12},
}
# All families in all types and sizes, but a few types suffice for others with experts.
CASES = [
    (family, sizes, file_type)
    for family in FAMILIES
    for sizes in SIZES
    for file_type in (*FILE_TYPES, *EXPERT_TYPES)
    if (
        file_type in FILE_TYPES
        if family not in WITH_EXPERTS
        else family in ("qwen3_moe", "gpt_oss")
        or (sizes == "multiples of 256" and file_type in ("F32", "BF16", "Q4_K_M"))
    )
]
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 331}
IDS = [
    5,
    17,
    99,
    0,
    130,
    64,
    64,
    3,
    77,
    12,
    330,
    200,
    201,
    202,
    7,
    8,
    5,
    17,
    99,
    0,
    250,
    31,
    1,
    2,
]


def type_of(name: str, shape: tuple[int, ...], file_type: str, tied: bool) -> int:
    """Give the type of a tensor. Source: llama.cpp, src/llama-quant.cpp (four layers)."""
    output, finer, plain = (FILE_TYPES | EXPERT_TYPES)[file_type]
    if len(shape) == 1 or "ffn_gate_inp" in name or name.endswith(".bias"):
        return F32
    last = "token_embd.weight" if tied else "output.weight"
    matrices = ("attn_v", "ffn_down", "ffn_down_exps")
    finer_names = [f"blk.{n}.{m}.weight" for n in (2, 3) for m in matrices]
    number = output if name == last else finer if name in finer_names else plain
    return number if shape[-1] % 256 == 0 else FALLBACKS.get(number, number)


def requantized(source: GgufFile, path: Path, file_type: str) -> Path:
    """Write a file of float32 tensors in a mix of types,
    as llama.cpp's quantizer does.

    With types other than float32, and in OLMoE's models, each token uses all experts: a
    rounding error may change a choice, and the error is then a matter of chance.
    """
    mapped = source.map()
    keys: Any = source.decoded("", dict.fromkeys(source.keys, MOST_LAYERS))
    for key in source.keys:
        is_certain = file_type == "F32" and not key.startswith("olmoe.")
        if key.endswith(".expert_used_count") and not is_certain:
            keys[key] = source.keys[key.replace("_used_count", "_count")]
    weights = {}
    for name, entry in source.tensors.items():
        number = type_of(
            name, entry.shape, file_type, "output.weight" not in source.tensors
        )
        tensor: Any = entry.make(mapped, name)
        dtype = DTYPES[number]
        if isinstance(dtype, ml.DType):
            weights[name] = tensor.to(dtype)
            continue
        blocks = llama_cpp.quantize(tensor.numpy(), number, nbytes_of(dtype, entry.shape))
        weights[name] = ml.QuantizedTensor(
            dtype, entry.shape, ml.Tensor.from_numpy(blocks)
        )
    tensors = {name: (weight.dtype, weight.shape) for name, weight in weights.items()}
    with GgufWriter(path, keys, tensors) as writer:
        for name, weight in weights.items():
            writer.write(name, weight)
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give the file in float32 of a family and sizes, written once."""
    llama_cpp.needed()

    @cache
    def source(family: str, sizes: str) -> GgufFile:
        place = tmp_path_factory.mktemp("source")
        name = family.partition(",")[0]
        changes: dict[str, Any] = {"model_type": "llama"} if name == "llama" else {}
        based_on = "olmo2" if name == "llama" else name  # it has no keys of its own
        all_sizes = SIZES[sizes] | HEADS | changes | VARIANTS.get(family, {})
        directory = write_family(place / "m", based_on, ml.float32, **all_sizes)
        save_gguf(directory, place / "m.gguf")
        return read_gguf(place / "m.gguf")

    return source


@pytest.mark.parametrize("file_type", [name for name in FILE_TYPES if name != "F32"])
@pytest.mark.parametrize("sizes", SIZES)
def test_files_have_the_types_and_the_blocks_that_llama_cpp_s_own_have(
    tmp_path: Path, sources: Any, sizes: str, file_type: str
) -> None:
    pytest.importorskip("llama_cpp", reason="needs the bench extra")
    source = sources("llama", sizes)
    other = tmp_path / "b.gguf"
    mine = read_gguf(requantized(source, tmp_path / "a.gguf", file_type))
    quantize_gguf(source.path, other, file_type)
    theirs = read_gguf(other)
    data = mine.path.read_bytes()
    other_data = other.read_bytes()
    assert set(mine.tensors) == set(theirs.tensors)
    for name, tensor in mine.tensors.items():
        same = theirs.tensors[name]
        assert tensor.dtype is same.dtype, name
        assert data[tensor.start : tensor.stop] == other_data[same.start : same.stop], (
            name
        )


def logits_of(network: LlamaTransformer) -> Any:
    return network.forward(
        InferenceContext(network.args, 64), IDS, 0, all_positions=True
    ).numpy()


@pytest.mark.parametrize(("family", "sizes", "file_type"), CASES)
def test_logits_are_no_further_from_float32_than_those_of_llama_cpp(
    tmp_path: Path, sources: Any, family: str, sizes: str, file_type: str
) -> None:
    path = requantized(sources(family, sizes), tmp_path / "a.gguf", file_type)
    model = load_model(path)
    exact = logits_of(dequantized(model)).astype(np.float64)
    mine = logits_of(model.transformer)
    with llama_cpp.LlamaCpp(path) as other:
        theirs = other.run_each(IDS)
    (my_max, my_rms), (their_max, their_rms) = (
        (np.abs(logits - exact).max(), np.sqrt(((logits - exact) ** 2).mean()))
        for logits in (mine, theirs)
    )
    assert their_max < 0.25 * np.sqrt((exact**2).mean()), "both run the same network"
    assert my_max <= 1.1 * their_max
    assert my_rms <= 1.1 * their_rms
    second, first = np.sort(exact, axis=1)[:, -2:].T
    is_clear = first - second > 2 * max(my_max, their_max)
    np.testing.assert_array_equal(
        mine.argmax(axis=1)[is_clear], theirs.argmax(axis=1)[is_clear]
    )
    assert is_clear.sum() >= len(IDS) // 4
