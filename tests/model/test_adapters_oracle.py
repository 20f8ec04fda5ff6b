"""Adapters next to peft, on random models of several families, and next to llama.cpp."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.model import LoadedAdapter, Model, load_adapter, load_model
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from tests.model.test_adapters import EVERYTHING
from tests.support import llama_cpp
from tests.support.adapters import gguf_arrays, random_pairs, write_gguf, write_peft
from tools.nano.roman import BUNDLED_ADAPTER

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")
pytest.importorskip("peft", reason="needs the oracle extra")

import peft
import torch
import transformers

from tests.model import oracle
from tests.model.test_hugging_face_oracle import (
    FLOAT32_BOUND,
    SHARE_OF_THEIR_ERROR,
    randomise,
)

pytestmark = [
    pytest.mark.oracle,
    # peft 0.21 calls functions that transformers has renamed.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning"),
]

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 211,
    "num_hidden_layers": 3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 3,
    "max_position_embeddings": 4096,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 24},
    "phi3": {"sliding_window": None},
    "llama, tied": {"tie_word_embeddings": True},
}
JOINED = "qkv_proj o_proj gate_up_proj down_proj"
IDS = [5, 17, 99, 0, 130, 64, 64, 3, 77, 12, 7, 8, 5, 17, 99, 200, 31, 1, 2, 210]
IDS *= 6
DTYPES = ["float32", "bfloat16"]
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def modules_of(family: str, layers_only: bool = False) -> list[str]:
    names = JOINED.split() if family == "phi3" else EVERYTHING.split()[:7]
    return names if layers_only else [*names, "embed_tokens", "lm_head"]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Returns a random model of each family in each dtype, written by transformers."""
    place = tmp_path_factory.mktemp("bases")
    found = {}
    for family, changes in FAMILIES.items():
        for dtype in DTYPES:
            kind = family.partition(",")[0]
            config = transformers.AutoConfig.for_model(kind, **SIZES | changes)
            model = transformers.AutoModelForCausalLM.from_config(config)
            randomise(model, bool(changes.get("tie_word_embeddings")))
            directory = place / f"{family}-{dtype}"
            model.to(getattr(torch, dtype)).save_pretrained(directory)
            found[family, dtype] = directory
    return found


def theirs(directory: Path, dtype: str = "float32") -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype)
    ).eval()


def train(base: Path, directory: Path, **settings: Any) -> Path:
    """Saves an adapter with peft, whose random B is as large as its A."""
    settings = {"init_lora_weights": False} | settings
    model = peft.get_peft_model(theirs(base), peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(settings["r"])
    for name, weight in model.named_parameters():
        if "lora_" in name:
            values = 2 * torch.rand(weight.shape, generator=generator) - 1
            weight.data.copy_(0.6 * values / max(weight.shape) ** 0.5)
    model.save_pretrained(directory)
    return directory


def with_adapters(base: Path, dtype: str, *adapters: tuple[Path, float]) -> Any:
    """Returns transformers' model with adapters that peft adds up."""
    model = None
    for number, (path, scale) in enumerate(adapters):
        name = f"a{number}"
        if model is None:
            model = peft.PeftModel.from_pretrained(
                theirs(base, dtype), path, adapter_name=name
            )
        else:
            model.load_adapter(path, name)
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer) and name in module.scaling:
                module.scaling[name] *= scale
    assert model is not None
    model.base_model.set_adapter([f"a{number}" for number in range(len(adapters))])
    return model.eval()


def logits(model: Model, *adapters: tuple[LoadedAdapter, float]) -> Any:
    with ml.adapted_rows([(len(IDS), len(IDS), adapters)]):
        return model(IDS, all_positions=True).numpy()


def check(base: Path, dtype: str, *adapters: tuple[Path, float]) -> None:
    """Holds our logits against peft's: the same, or no further from float32."""
    exact = oracle.logits(with_adapters(base, "float32", *adapters), IDS)
    plain = oracle.logits(theirs(base, "float32"), IDS)
    assert np.abs(exact - plain).max() > 0.5
    model = load_model(base)
    loaded = [(load_adapter(model, path), scale) for path, scale in adapters]
    found = logits(model, *loaded)
    if dtype == "float32":
        np.testing.assert_allclose(found, exact, atol=FLOAT32_BOUND, rtol=0)
        return
    narrow = oracle.logits(with_adapters(base, dtype, *adapters), IDS)
    allowed = oracle.errors(narrow, exact)
    for mine, most in zip(oracle.errors(found, exact), allowed, strict=True):
        assert mine <= SHARE_OF_THEIR_ERROR * most


@pytest.mark.parametrize("dtype", DTYPES)
@EVERY_FAMILY
def test_each_family_has_the_logits_of_peft(
    tmp_path: Path, bases: Any, family: str, dtype: str
) -> None:
    base = bases[family, dtype]
    modules = modules_of(family, layers_only=True)
    path = train(base, tmp_path, r=8, lora_alpha=12, target_modules=modules)
    check(base, dtype, (path, 1.0))


@EVERY_FAMILY
def test_embeddings_and_output_have_the_logits_of_peft(
    tmp_path: Path, bases: Any, family: str
) -> None:
    base = bases[family, "float32"]
    modules = modules_of(family)
    path = train(base, tmp_path, r=4, lora_alpha=8, target_modules=modules)
    check(base, "float32", (path, 1.0))


@pytest.mark.parametrize("rank", [1, 2, 3, 16, 33, 64])
@pytest.mark.parametrize("is_root", [False, True], ids=["lora", "rslora"])
def test_each_rank_has_the_logits_of_peft(
    tmp_path: Path, bases: Any, rank: int, is_root: bool
) -> None:
    base = bases["llama", "float32"]
    settings: dict[str, Any] = {
        "r": rank,
        "lora_alpha": 6 if is_root else 2 * rank,
        "use_rslora": is_root,
    }
    path = train(base, tmp_path, target_modules=modules_of("llama", True), **settings)
    check(base, "float32", (path, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_several_adapters_with_scales_have_the_logits_of_peft(
    tmp_path: Path, bases: Any, family: str, dtype: str
) -> None:
    base = bases[family, dtype]
    modules = modules_of(family, layers_only=True)
    adapters = []
    for number, (rank, scale) in enumerate([(4, 0.7), (16, -0.9), (1, 1.6)]):
        some = modules[number:]
        path = train(
            base, tmp_path / str(number), r=rank, lora_alpha=12, target_modules=some
        )
        adapters.append((path, scale))
    check(base, dtype, *adapters)


def test_patterns_of_ranks_alphas_and_modules_have_the_logits_of_peft(
    tmp_path: Path, bases: Any
) -> None:
    base = bases["qwen3", "float32"]
    path = train(
        base,
        tmp_path,
        r=8,
        lora_alpha=12,
        target_modules=r".*\.(q_proj|o_proj|up_proj)",
        rank_pattern={"q_proj": 3, r"layers\.1\..*up_proj": 5},
        alpha_pattern={"o_proj": 30, r"layers\.[02]\..*": 9},
        exclude_modules=["model.layers.1.self_attn.o_proj"],
    )
    check(base, "float32", (path, 1.0))


def test_layers_to_transform_have_the_logits_of_peft(tmp_path: Path, bases: Any) -> None:
    base = bases["llama", "float32"]
    layers: dict[str, Any] = {"layers_to_transform": [0, 2], "layers_pattern": "layers"}
    modules = ["q_proj", "v_proj", "down_proj"]
    path = train(base, tmp_path, r=8, lora_alpha=12, target_modules=modules, **layers)
    assert len(load_adapter(load_model(base), path).products) == 6
    check(base, "float32", (path, 1.0))


@pytest.mark.parametrize("quantize", ["nf4", "q4_0"])
def test_a_quantized_base_is_near_peft_on_the_dequantized_network(
    tmp_path: Path, bases: Any, quantize: str
) -> None:
    base = bases["llama", "float32"]
    modules = modules_of("llama", layers_only=True)
    path = train(base, tmp_path, r=8, lora_alpha=12, target_modules=modules)
    model = load_model(base, quantize=quantize)
    narrow = theirs(base)
    state = narrow.state_dict()
    for row in model.args.tensor_rows:
        weight = model.tensors.get(row.name)
        if isinstance(weight, ml.QuantizedTensor):
            state[row.hugging_face].copy_(torch.from_numpy(weight.dequantize().numpy()))
    exact = oracle.logits(peft.PeftModel.from_pretrained(narrow, path).eval(), IDS)
    found = logits(model, (load_adapter(model, path), 1.0))
    np.testing.assert_allclose(found, exact, atol=FLOAT32_BOUND, rtol=0)


def test_the_bundled_adapter_has_the_logits_of_peft(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save_quantized(None, base, adapters=[(BUNDLED_ADAPTER, 0.0)])
    check(base, "bfloat16", (BUNDLED_ADAPTER, 1.0))


# llama.cpp


@pytest.mark.parametrize("scale", [1.0, -0.6])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("weights", ["F32", "Q8_0"])
def test_a_gguf_adapter_is_no_further_from_float32_than_llama_cpp(
    tmp_path: Path, bases: Any, family: str, weights: str, scale: float
) -> None:
    llama_cpp.needed()
    base = bases[family, "float32"]
    path = tmp_path / "m.gguf"
    save_gguf(base, path, quantize=None if weights == "F32" else "q8_0")
    args = load_model(base).args
    pairs = random_pairs(args, 8, modules=" ".join(modules_of(family, True)))
    is_interleaved = family == "llama"
    arrays = gguf_arrays(pairs, args, is_interleaved)
    adapter = write_gguf(tmp_path / "a.gguf", arrays, alpha=12, architecture=family)
    directory = write_peft(tmp_path / "peft", pairs, alpha=12)
    wide = load_model(path, dequantize=weights != "F32")
    assert wide.args.dtype is ml.float32
    exact = logits(wide, (load_adapter(wide, directory), scale))
    with llama_cpp.LlamaCpp(path) as other:
        before = other.run_chunk(IDS, 0)
        other.use_adapters((adapter, scale))
        narrow = other.run_chunk(IDS, 0)
    assert np.abs(narrow - before).max() > 0.5
    model = load_model(path)
    found = logits(model, (load_adapter(model, adapter), scale))
    for mine, most in zip(
        oracle.errors(found, exact), oracle.errors(narrow, exact), strict=True
    ):
        assert mine <= max(SHARE_OF_THEIR_ERROR * most, FLOAT32_BOUND)
