"""Ablations of SmolLM2 in float32 change the logits as those of other programs do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.checkpoint.safetensors import SafetensorsFile
from src.inference.vectors import read_array, save_arrays
from src.model import InferenceContext, Intervention, Model, intervene, load_model
from src.model.saving import save_quantized

pytestmark = [pytest.mark.real, pytest.mark.oracle]

TEXT = "The cat sat on the mat. The cat sat on the"
LAYER = 17
HEAD = 4
# Two programs sum float32 in other orders. The effect of the head is more than 1.
BOUND = 5e-4


@pytest.fixture(scope="module")
def directory(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's dequantized weights in Hugging Face's layout, in float32."""
    place = tmp_path_factory.mktemp("float32") / "smollm2"
    save_quantized(smollm2, place, None, dequantize=True)
    weights = place / "model.safetensors"
    source = SafetensorsFile(weights)
    arrays = {name: read_array(weights, name) for name in source.entries}
    weights.unlink()
    save_arrays(weights, arrays, source.metadata | {"format": "pt"})
    config = place / "config.json"
    values = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(values | {"torch_dtype": "float32"}), "utf-8")
    return place


@pytest.fixture(scope="module")
def plain(directory: Path) -> Model:
    return load_model(directory)


def logits_of(model: Model, ids: list[int], *changes: Intervention) -> Any:
    context = InferenceContext(model.args, len(ids))
    with intervene(model, *changes):
        rows = model.transformer.forward(context, ids, all_positions=True)
    return rows.numpy().copy()


def ids_of(model: Model) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(TEXT, bos=True)


def has_the_same_effect(model: Model, base: Any, ablated: Any) -> None:
    """Checks logits without and with the ablation, and their difference."""
    ids = ids_of(model)
    zero = Intervention.zero(model, f"layers.{LAYER}.attention.heads[{HEAD}]")
    ours = logits_of(model, ids)
    changed = logits_of(model, ids, zero)
    assert np.abs(changed - ours).max() > 1
    assert np.abs(ours - base).max() < BOUND
    assert np.abs(changed - ablated).max() < BOUND
    assert np.abs((changed - ours) - (ablated - base)).max() < BOUND


def test_an_ablation_has_the_effect_of_a_hook_in_transformers(
    directory: Path, plain: Model
) -> None:
    torch = pytest.importorskip("torch", reason="needs the oracle extra")
    transformers = pytest.importorskip("transformers", reason="needs the oracle extra")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32
    ).eval()
    columns = slice(HEAD * plain.args.head_dim, (HEAD + 1) * plain.args.head_dim)

    def without_head(_module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        heads = inputs[0].clone()
        heads[..., columns] = 0
        return (heads,)

    tokens = torch.tensor([ids_of(plain)])
    with torch.inference_mode():
        base = reference(tokens).logits[0].numpy()
        o_proj = reference.model.layers[LAYER].self_attn.o_proj
        handle = o_proj.register_forward_pre_hook(without_head)
        ablated = reference(tokens).logits[0].numpy()
        handle.remove()
    has_the_same_effect(plain, base, ablated)


def test_an_ablation_has_the_effect_that_it_has_in_transformer_lens(
    directory: Path, plain: Model
) -> None:
    bridges = pytest.importorskip(
        "transformer_lens.model_bridge", reason="transformer-lens is not installed"
    )
    import torch  # transformer_lens needs it

    bridge = bridges.TransformerBridge.boot_transformers(
        str(directory), dtype=torch.float32, device="cpu"
    )

    def without_head(heads: Any, hook: Any) -> Any:
        heads = heads.clone()
        heads[:, :, HEAD] = 0  # [batch, T, H, h]
        return heads

    tokens = torch.tensor([ids_of(plain)])
    hooks = [(f"blocks.{LAYER}.attn.hook_z", without_head)]
    with torch.inference_mode():
        base = bridge(tokens)[0].numpy()
        ablated = bridge.run_with_hooks(tokens, fwd_hooks=hooks)[0].numpy()
    has_the_same_effect(plain, base, ablated)
