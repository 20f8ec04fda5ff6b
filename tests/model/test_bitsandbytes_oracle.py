"""Directories that transformers wrote with bitsandbytes, and those that it reads of ours.

Rows are multiples of 64 long here: with others, what bitsandbytes 0.50.2 dequantizes with
AVX-512 differs from its own definition.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.names import rows_of
from src.model import load_model
from src.model.saving import save_quantized

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")
pytest.importorskip("bitsandbytes", reason="needs the oracle extra")
pytest.importorskip("accelerate", reason="needs the oracle extra")
pytest.importorskip("compressed_tensors", reason="needs the oracle extra")

import bitsandbytes
import torch
import transformers

from tests.model import oracle
from tests.model.test_hugging_face_oracle import (
    CONFIGS,
    SHARE_OF_THEIR_ERROR,
    check_no_further_off,
    ids_for,
    read,
    save,
)
from tests.model.test_llama import run

# transformers warns of bitsandbytes.
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _one_way_to_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    # On processors with AVX512-BF16, bitsandbytes 0.50.2 packs 4-bit weights anew and
    # refuses any whose number of rows is no multiple of 32.
    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: False)


NAMES = ("Llama 3.2 1B, tied, scaled by 32", "Mistral 7B v0.3")


def plain_weight(module: Any) -> Any:
    """Returns a layer's weight as it multiplies with it: bfloat16 numbers, in float32."""
    weight = module.weight
    if isinstance(module, bitsandbytes.nn.Linear4bit):
        whole = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
        return whole.float().reshape(module.out_features, module.in_features)
    if weight.dtype is torch.int8:
        scales = module.weight_scale.float().repeat_interleave(32, dim=1)
        return (weight.float() * scales).bfloat16().float().detach()
    return weight.detach().float()


def dequantized(model: Any, config: dict[str, Any]) -> Any:
    """Makes a plain float32 model of the weights of a quantized one."""
    values = dict(config)
    kind = values.pop("model_type", "llama")
    wide = transformers.AutoConfig.for_model(kind, **values, attn_implementation="eager")
    plain = transformers.AutoModelForCausalLM.from_config(wide)
    state = {name: p.detach().float() for name, p in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            state[f"{name}.weight"] = plain_weight(module)
    plain.load_state_dict(state, strict=False)
    plain.tie_weights()
    return plain.eval()


@pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_no_further_off_than_those_of_transformers(
    tmp_path: Path, name: str, double: bool
) -> None:
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    plain = save(tmp_path / "plain", name, "bfloat16")
    read(plain, "bfloat16", quantization_config=config).save_pretrained(
        tmp_path / "small"
    )
    model = load_model(tmp_path / "small")
    narrow = read(tmp_path / "small", "bfloat16")
    weight = model.tensors["layers.0.attention.wq.weight"]
    assert isinstance(weight, ml.QuantizedTensor)
    assert (weight.nested is not None) == double
    theirs_weight = narrow.model.layers[0].self_attn.q_proj.weight
    whole = bitsandbytes.functional.dequantize_4bit(
        theirs_weight.data, theirs_weight.quant_state
    )
    np.testing.assert_array_equal(
        weight.dequantize(ml.bfloat16).numpy().astype(np.float32),
        whole.float().numpy().reshape(weight.shape),
    )
    wide = dequantized(read(tmp_path / "small", "bfloat16"), CONFIGS[name])
    check_no_further_off(model, narrow, wide, name)


@pytest.mark.parametrize("quantize", ["nf4", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_transformers_reads_what_is_saved_here(
    tmp_path: Path, name: str, quantize: str
) -> None:
    save_quantized(
        save(tmp_path / "plain", name, "bfloat16"), tmp_path / "saved", quantize
    )
    model = load_model(tmp_path / "saved")
    theirs = read(tmp_path / "saved", "bfloat16")
    names = {row.name: row.hugging_face for row in rows_of(model.args.n_layers)}
    modules = dict(theirs.named_modules())
    for key, weight in model.tensors.items():
        if not isinstance(weight, ml.QuantizedTensor):
            continue
        whole = plain_weight(modules[names[key].removesuffix(".weight")])
        np.testing.assert_array_equal(
            weight.dequantize(ml.bfloat16).numpy().astype(np.float32), whole.numpy()
        )
    ids = ids_for(name)
    exact = oracle.logits(
        dequantized(theirs, CONFIGS[name] | {"tie_word_embeddings": False}), ids
    )
    found = oracle.errors(run(model.transformer, ids), exact)
    assert (
        found[1]
        <= SHARE_OF_THEIR_ERROR * oracle.errors(oracle.logits(theirs, ids), exact)[1]
    )
