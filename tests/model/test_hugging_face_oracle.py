"""Directories that transformers wrote, against its float32 run (eager) and its 16-bit
ones.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.model import InferenceContext, Model, load_model
from src.model.saving import save_quantized

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")

import torch
import transformers

from tests.model import oracle
from tests.model.test_llama import run
from tests.support.mxfp4 import pack_experts

pytestmark = pytest.mark.oracle

FLOAT32_BOUND = 1e-4
SHARE_OF_THEIR_ERROR = 1.1
TOKENS = 300
GREEDY_TOKENS = 150
TEXT_SEEDS = (7, 8, 9, 10)


def llama3(factor: float) -> dict[str, object]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def yarn(factor: float, original: int, **more: object) -> dict[str, object]:
    return {
        "rope_type": "yarn",
        "rope_theta": 100000.0,
        "factor": factor,
        "original_max_position_embeddings": original,
        **more,
    }


def sizes(
    D: int, H: int, K: int, F: int, V: int, L: int, theta: float = 0.0, **more: object
) -> dict[str, Any]:
    if theta:
        more["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    return {
        "hidden_size": D,
        "num_attention_heads": H,
        "num_key_value_heads": K,
        "intermediate_size": F,
        "vocab_size": V,
        "num_hidden_layers": L,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 16384,
        **more,
    }


# In their proportions; all sizes of a configuration differ where the shape allows it.
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama 2 7B, multi-head": sizes(64, 4, 4, 172, 131, 3),
    "Llama 3 8B": sizes(64, 8, 2, 224, 127, 3, theta=500000.0),
    "Llama 3.1 8B, scaled by 8": sizes(
        96, 6, 2, 250, 113, 3, rope_parameters=llama3(8.0)
    ),
    "Llama 3.2 1B, tied, scaled by 32": sizes(
        64,
        4,
        1,
        256,
        149,
        2,
        rope_parameters=llama3(32.0),
        tie_word_embeddings=True,
        head_dim=16,
    ),
    "head dimension above D/H": sizes(48, 4, 2, 110, 101, 2, head_dim=20),
    "head dimension below D/H": sizes(80, 5, 1, 150, 103, 2, head_dim=6),
    "biases of attention": sizes(48, 4, 2, 100, 107, 2, attention_bias=True),
    "biases everywhere": sizes(
        60, 6, 3, 90, 109, 3, attention_bias=True, mlp_bias=True, eos_token_id=[3, 5]
    ),
    "SmolLM2 135M, tied": sizes(
        72,
        9,
        3,
        192,
        163,
        4,
        tie_word_embeddings=True,
        theta=100000.0,
    ),
    "TinyLlama 1.1B": sizes(128, 16, 2, 352, 137, 3, max_position_embeddings=2048),
    "Mistral 7B v0.3": sizes(
        128,
        8,
        2,
        448,
        139,
        2,
        model_type="mistral",
        sliding_window=None,
        theta=1000000.0,
    ),
    "Mistral 7B v0.1, a window shorter than the text": sizes(
        96, 8, 2, 300, 151, 2, model_type="mistral", sliding_window=TOKENS // 3
    ),
    "Ministral 8B, windows in three of four layers": sizes(
        96,
        8,
        2,
        300,
        293,
        4,
        model_type="ministral",
        head_dim=20,
        pad_token_id=None,
        sliding_window=TOKENS // 5,
        layer_types=["full_attention"] + ["sliding_attention"] * 3,
        theta=100000000.0,
    ),
    "Ministral 3 3B, queries that grow": sizes(
        64,
        8,
        2,
        210,
        263,
        3,
        model_type="ministral3",
        head_dim=20,
        tie_word_embeddings=True,
        pad_token_id=None,
        rope_parameters=yarn(
            16.0,
            32,
            beta_fast=32.0,
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            llama_4_scaling_beta=0.1,
        ),
    ),
    "Ministral 3 with a window and unlike coefficients": sizes(
        48,
        4,
        2,
        130,
        269,
        2,
        model_type="ministral3",
        head_dim=16,
        pad_token_id=None,
        sliding_window=50,
        rope_parameters=yarn(
            8.0,
            50,
            mscale=1.0,
            mscale_all_dim=0.4,
            llama_4_scaling_beta=0.5,
        ),
    ),
    "OLMo 3 7B, windows and YaRN": sizes(
        64,
        4,
        4,
        240,
        271,
        5,
        model_type="olmo3",
        pad_token_id=None,
        eos_token_id=3,
        sliding_window=40,
        rms_norm_eps=1e-6,
        rope_parameters={
            "full_attention": yarn(8.0, 64, attention_factor=1.2079441541679836)
            | {"rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        },
    ),
    "OLMo 3 without YaRN, with other layers": sizes(
        60,
        6,
        2,
        170,
        277,
        3,
        model_type="olmo3",
        pad_token_id=None,
        eos_token_id=3,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "linear scaling by 4": sizes(
        64,
        4,
        2,
        120,
        157,
        2,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "Qwen2.5 0.5B": sizes(
        84,
        14,
        2,
        200,
        173,
        3,
        model_type="qwen2",
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        use_sliding_window=False,
        sliding_window=TOKENS // 2,
        max_window_layers=2,
        theta=1000000.0,
    ),
    "R1-Distill-Qwen": sizes(
        72, 6, 2, 180, 179, 2, model_type="qwen2", rms_norm_eps=1e-6
    ),
    "Qwen3 0.6B": sizes(
        64,
        8,
        4,
        192,
        181,
        3,
        model_type="qwen3",
        rms_norm_eps=1e-6,
        head_dim=16,
        tie_word_embeddings=True,
        theta=1000000.0,
    ),
    "Qwen3 with biases": sizes(
        48, 4, 2, 110, 191, 2, model_type="qwen3", head_dim=20, attention_bias=True
    ),
    "SmolLM3 3B": sizes(
        64,
        4,
        1,
        344,
        193,
        6,
        model_type="smollm3",
        rms_norm_eps=1e-6,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=3,
        theta=5000000.0,
    ),
    "SmolLM3, other layers without RoPE": sizes(
        48,
        4,
        2,
        120,
        197,
        3,
        model_type="smollm3",
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=3,
        no_rope_layers=[0, 1, 0],
    ),
    # The texts have 300 tokens, more than the original context.
    "Qwen2.5 7B, YaRN": sizes(
        96,
        6,
        2,
        220,
        241,
        3,
        model_type="qwen2",
        rms_norm_eps=1e-6,
        rope_parameters=yarn(4.0, 64),
    ),
    "Qwen3 8B, YaRN with all keys": sizes(
        64,
        4,
        2,
        190,
        251,
        3,
        model_type="qwen3",
        rms_norm_eps=1e-6,
        head_dim=24,
        rope_parameters=yarn(
            8.0,
            32,
            beta_fast=6.0,
            beta_slow=0.5,
            mscale=1.2,
            mscale_all_dim=0.7,
            truncate=False,
        ),
    ),
    "Llama, YaRN with an attention factor": sizes(
        64, 4, 2, 200, 257, 2, rope_parameters=yarn(16.0, 16, attention_factor=1.3)
    ),
    "Granite 3.3 2B": sizes(
        64,
        4,
        2,
        256,
        199,
        3,
        model_type="granite",
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.6,
        attention_multiplier=0.125,
        logits_scaling=1.5,
    ),
    "Granite 3.3 8B": sizes(
        96,
        4,
        1,
        300,
        211,
        3,
        model_type="granite",
        embedding_multiplier=2.0,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        logits_scaling=4,
        attention_bias=True,
        mlp_bias=True,
    ),
    "Granite with windows and sinks, tied": sizes(
        80,
        5,
        1,
        260,
        281,
        5,
        model_type="granite_swa",
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.6,
        attention_multiplier=0.125,
        logits_scaling=1.5,
        sliding_window=40,
        theta=500000.0,
    ),
    "Granite with windows, with a theta for each layer": sizes(
        64,
        8,
        2,
        210,
        283,
        4,
        model_type="granite_swa",
        tie_word_embeddings=False,
        residual_multiplier=0.5,
        attention_multiplier=0.3,
        logits_scaling=4,
        attention_bias=True,
        mlp_bias=True,
        sliding_window=23,
        layer_types=["sliding_attention", "full_attention"] * 2,
        layer_rope_theta=[10000.0, 0, 500000.0, 10000.0],
        rope_parameters=yarn(4.0, 64),
    ),
    "OLMo 2 1B": sizes(
        64,
        4,
        4,
        256,
        223,
        3,
        model_type="olmo2",
        pad_token_id=None,
        eos_token_id=3,
        theta=500000.0,
    ),
    "OLMo 2 32B, grouped": sizes(
        80,
        8,
        2,
        210,
        227,
        3,
        model_type="olmo2",
        pad_token_id=None,
        eos_token_id=3,
        rms_norm_eps=1e-6,
    ),
    "Gemma 2 2B, soft caps and windows": sizes(
        72,
        4,
        2,
        230,
        229,
        4,
        model_type="gemma2",
        head_dim=20,
        query_pre_attn_scalar=30,
        sliding_window=40,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "Gemma 3 270M, windows with a rotary embedding": sizes(
        60,
        4,
        1,
        200,
        233,
        7,
        model_type="gemma3_text",
        head_dim=20,
        query_pre_attn_scalar=20,
        sliding_window=32,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "Gemma 3 4B, scaled by 8": sizes(
        64,
        4,
        2,
        200,
        239,
        7,
        model_type="gemma3_text",
        head_dim=20,
        query_pre_attn_scalar=20,
        sliding_window=32,
        tie_word_embeddings=True,
        pad_token_id=0,
        rope_parameters={
            "full_attention": {
                "rope_type": "linear",
                "rope_theta": 1000000.0,
                "factor": 8.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "Qwen3 30B A3B": sizes(
        64,
        8,
        2,
        190,
        281,
        3,
        model_type="qwen3_moe",
        head_dim=20,
        moe_intermediate_size=40,
        num_experts=16,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        rms_norm_eps=1e-6,
        theta=1000000.0,
    ),
    "Mixtral 8x7B": sizes(
        72,
        6,
        2,
        136,
        283,
        2,
        model_type="mixtral",
        num_local_experts=5,
        num_experts_per_tok=2,
        theta=1000000.0,
    ),
    "OLMoE 1B 7B": sizes(
        56,
        4,
        4,
        72,
        293,
        3,
        model_type="olmoe",
        pad_token_id=None,
        eos_token_id=3,
        num_experts=9,
        num_experts_per_tok=3,
    ),
    "gpt-oss 20B": sizes(
        64,
        8,
        2,
        96,
        331,
        4,
        model_type="gpt_oss",
        head_dim=64,
        num_local_experts=8,
        num_experts_per_tok=4,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention"] * 2,
        swiglu_limit=7.0,
        initializer_range=0.02,
        router_aux_loss_coef=0.9,
        attention_bias=True,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    ),
    "gpt-oss 120B, by its defaults": sizes(
        64, 6, 3, 48, 337, 3, model_type="gpt_oss", num_local_experts=6
    ),
    "Granite 3.1 1B A400M": sizes(
        64,
        4,
        2,
        48,
        307,
        3,
        model_type="granitemoe",
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.6,
        attention_multiplier=0.125,
        logits_scaling=1.5,
        num_local_experts=8,
        num_experts_per_tok=3,
    ),
    "shards": sizes(64, 4, 2, 130, 167, 3, max_shard_size="60KB"),
}
EVERY_CONFIG = pytest.mark.parametrize("name", CONFIGS)
SAVED_AS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def randomise(model: Any, tied: bool) -> None:
    """Draws weights so large that attention looks around and logits spread, as in
    `tiny.py`.
    """
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        values = 2 * torch.rand(weight.shape, generator=generator) - 1
        if "norm" in name:
            is_offset = model.config.model_type.startswith("gemma")
            values = (0 if is_offset else 1) + 0.4 * values
        elif name.endswith(".bias"):
            values = 0.5 * values
        elif name.endswith(".sinks"):
            values = 2.0 * values
        elif "embed_tokens" in name:
            values = values * (0.35 if tied else 1.5)
        else:
            factor = 5.0 if "lm_head" in name else 2.0
            values = values * factor / weight.shape[-1] ** 0.5
        weight.data.copy_(values)


def save(directory: Path, name: str, dtype: str) -> Path:
    """Writes a random model with `save_pretrained`.

    In 16 bits, each token uses all experts: a rounding error may change a choice, and the
    error is then a matter of chance.
    """
    values = dict(CONFIGS[name])
    if "num_experts_per_tok" in values and dtype != "float32":
        count = values.get("num_experts", values.get("num_local_experts"))
        values["num_experts_per_tok"] = count
    limit = values.pop("max_shard_size", "5GB")
    kind = values.pop("model_type", "llama")
    config = transformers.AutoConfig.for_model(kind, **values)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, bool(values.get("tie_word_embeddings")))
    model.to(SAVED_AS[dtype]).save_pretrained(directory, max_shard_size=limit)
    return directory


def read(directory: Path, dtype: str = "float32", **more: object) -> Any:
    """Reads a model with transformers, computing in a dtype."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=SAVED_AS[dtype], attn_implementation="eager", **more
    )
    return model.eval()


def ids_for(name: str, count: int = TOKENS, seed: int = 7) -> list[int]:
    generator = np.random.default_rng(seed)
    ids: list[int] = generator.integers(0, CONFIGS[name]["vocab_size"], count).tolist()
    return ids


@EVERY_CONFIG
def test_float32_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    directory = save(tmp_path, name, "float32")
    ids = ids_for(name)
    exact = oracle.logits(read(directory), ids)
    assert exact.std() > 0.5
    assert (
        oracle.errors(run(load_model(directory).transformer, ids), exact)[0]
        < FLOAT32_BOUND
    )


def check_no_further_off(model: Model, narrow: Any, wide: Any, name: str) -> None:
    """Hold logits against transformers' in float32, and allow the error of its own in 16
    bits.

    The largest difference on one text is a matter of chance; on several it is not.
    """
    texts = [ids_for(name, seed=seed) for seed in TEXT_SEEDS]
    exact, theirs = (
        np.concatenate([oracle.logits(other, ids) for ids in texts])
        for other in (wide, narrow)
    )
    found = oracle.errors(
        np.concatenate([run(model.transformer, ids) for ids in texts]), exact
    )
    for mine, allowed in zip(found, oracle.errors(theirs, exact), strict=True):
        assert mine <= SHARE_OF_THEIR_ERROR * allowed


# transformers takes its time for float16: the quick tests have it for some.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bfloat16") for name in CONFIGS),
        *(pytest.param(name, "float16", marks=pytest.mark.slow if number % 6 else ())
          for number, name in enumerate(CONFIGS)),
    ],
)  # fmt: skip
def test_16_bit_logits_are_no_further_off_than_theirs(
    tmp_path: Path, name: str, dtype: str
) -> None:
    directory = save(tmp_path, name, dtype)
    check_no_further_off(
        load_model(directory), read(directory, dtype), read(directory), name
    )


@pytest.mark.slow
@EVERY_CONFIG
def test_greedy_tokens_are_equal_where_the_choice_is_clear(
    tmp_path: Path, name: str
) -> None:
    """Ours is fed with the tokens chosen there, so that both go on from one text."""
    directory = save(tmp_path, name, "float32")
    prompt = ids_for(name, 12)
    with torch.no_grad():
        result = read(directory).generate(
            torch.tensor([prompt]),
            max_new_tokens=GREEDY_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
            eos_token_id=None,
        )
    chosen = result.sequences[0, len(prompt) :].numpy()
    exact = torch.stack(result.logits)[:, 0].numpy()
    model = load_model(directory)
    context = InferenceContext(model.args, len(prompt) + GREEDY_TOKENS)
    found = [
        model.transformer.forward(context, tokens, context.length).numpy()[0].argmax()
        for tokens in (prompt, *([token] for token in chosen[:-1].tolist()))
    ]
    second, first = np.sort(exact, axis=1)[:, -2:].T
    is_clear = first - second > FLOAT32_BOUND
    assert is_clear.mean() > 0.95
    np.testing.assert_array_equal(np.array(found)[is_clear], chosen[is_clear])


@pytest.mark.parametrize("dequantize", [False, True])
def test_experts_in_mxfp4_are_those_of_transformers(
    tmp_path: Path, dequantize: bool
) -> None:
    name = "gpt-oss 20B"
    directory = save(tmp_path, name, "bfloat16")
    plain = pack_experts(directory)
    wide = read(directory)
    states = wide.state_dict()
    for key, values in plain.items():
        np.testing.assert_array_equal(states[key].numpy(), values)
    model = load_model(directory, dequantize=dequantize)
    check_no_further_off(model, read(directory, "bfloat16"), wide, name)


def test_several_files_were_written_where_the_limit_asks_for_them(tmp_path: Path) -> None:
    model = load_model(save(tmp_path, "shards", "bfloat16"))
    assert len(model.checkpoint.files) > 2
    assert (tmp_path / "model.safetensors.index.json").exists()


def test_end_tokens_are_those_that_transformers_stops_at(tmp_path: Path) -> None:
    directory = save(tmp_path, "biases everywhere", "bfloat16")
    assert load_model(directory).stop_ids == {3, 5}
    assert read(directory).generation_config.eos_token_id == [3, 5]


VISION = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
# The configuration class of the whole model, and the family of its text part.
WHOLES = {
    "Gemma 3 4B": ("Gemma3Config", "Gemma 3 4B, scaled by 8", {"mm_tokens_per_image": 4}),
    "Ministral 3 3B": ("Mistral3Config", "Ministral 3 3B, queries that grow", {}),
}


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_part_of_a_model_with_images_is_loaded(
    tmp_path: Path, name: str
) -> None:
    """Its configuration is `text_config`, and its tensors have a prefix."""
    whole, part, more = WHOLES[name]
    values = dict(CONFIGS[part])
    kind = values.pop("model_type")
    text = transformers.AutoConfig.for_model(kind, **values)
    config = getattr(transformers, whole)(text_config=text, vision_config=VISION, **more)
    tied = bool(values.get("tie_word_embeddings"))
    config.tie_word_embeddings = tied
    made = transformers.AutoModelForImageTextToText.from_config(config)
    randomise(made.model.language_model, tied)
    made.save_pretrained(tmp_path)
    ids = ids_for(part)
    exact = oracle.logits(made.eval(), ids)
    ours = load_model(tmp_path)
    assert oracle.errors(run(ours.transformer, ids), exact)[0] < FLOAT32_BOUND
    assert ours.source.model_type == kind
    assert ours.source.has_other_parts
    assert any("vision_config" in note for note in ours.notes)
    assert any("vision" in key for key in ours.checkpoint.unused)
    saved = tmp_path / "saved"
    save_quantized(tmp_path, saved, "nf4")
    again = load_model(saved)
    assert again.source.model_type == kind
    assert again.args.windows == ours.args.windows
