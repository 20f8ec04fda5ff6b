"""Configuration files of published models, and the tables of keys,
against transformers.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from src.checkpoint.hugging_face_config import HARMLESS_KEYS, REJECTED_KEYS, RULES
from src.inference import InferenceEngine, SamplingArgs
from src.model import load_model
from src.model.families import FAMILIES
from tests.support.published import CONFIGS, GENERATION_CONFIGS, LOADED

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")

import torch
import transformers

from tests.model import oracle
from tests.model.test_hugging_face_oracle import FLOAT32_BOUND, randomise
from tests.model.test_llama import run

pytestmark = pytest.mark.oracle

PROMPT = [1, 40, 41, 7, 90, 33, 12, 5]
NEW_TOKENS = 12
MINIMAL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": None,
}


def write(directory: Path, config: dict[str, Any]) -> None:
    """Write a random model for a configuration file, which stays as it is."""
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    kept = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(kept, dtype=torch.float32)
    randomise(model, bool(config.get("tie_word_embeddings")))
    model.save_pretrained(directory)
    path.write_text(json.dumps(config))


def read(directory: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def greedy(model: Any) -> list[int]:
    """Return what transformers' `generate` adds to the prompt, with its cache."""
    settings = transformers.GenerationConfig(
        do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS, pad_token_id=0
    )
    model.generation_config = settings
    ids: list[int] = model.generate(torch.tensor([PROMPT]), generation_config=settings)[
        0
    ].tolist()
    return ids[len(PROMPT) :]


def our_greedy(directory: Path) -> list[int]:
    engine = InferenceEngine(load_model(directory), len(PROMPT) + NEW_TOKENS)
    steps = engine.generate(PROMPT, NEW_TOKENS, SamplingArgs(temperature=0.0))
    return [step.token_id for step in steps]


@pytest.mark.parametrize("name", LOADED)
def test_logits_and_ids_of_a_published_configuration_are_those_of_transformers(
    tmp_path: Path, name: str
) -> None:
    config = {
        key: value for key, value in CONFIGS[name].items() if key != "quantization_config"
    }
    if config["model_type"] == "smollm3":
        config["pad_token_id"] = None  # PyTorch has no row for the default of the class
    write(tmp_path, config)
    theirs = read(tmp_path)
    ours = load_model(tmp_path)
    exact = oracle.logits(theirs, PROMPT)
    assert exact.std() > 0.3
    assert oracle.errors(run(ours.transformer, PROMPT), exact)[0] < FLOAT32_BOUND
    assert our_greedy(tmp_path) == greedy(theirs)


@pytest.mark.parametrize("name", GENERATION_CONFIGS)
def test_the_end_tokens_of_a_published_file_are_those_of_transformers(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, MINIMAL)
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION_CONFIGS[name]))
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path).eos_token_id
    ends = theirs if isinstance(theirs, list) else [theirs]
    assert set(load_model(tmp_path).source.end_ids) == set(ends)


# Keys that were rejected before the rule was transformers' own, and others that files
# have.
IGNORED: dict[str, Any] = {
    "logit_scale": 0.5,
    "query_pre_attn_scalar": 64,
    "final_logit_softcapping": 5.0,
    "attn_logit_softcapping": 5.0,
    "use_qk_norm": True,
    "qk_norm": True,
    "clip_qkv": 0.1,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.5,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
    "no_rope_layers": [0, 0],
    "no_rope_layer_interval": 2,
    "rope_local_base_freq": 100.0,
    "rope_interleaved": True,
    "use_mrope": True,
    "use_mtp": True,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
    "add_cross_attention": True,
    "tie_encoder_decoder": True,
    "is_decoder": False,
    "pruned_heads": {"0": [1]},
    "prefix": "x",
    "use_bfloat16": True,
    "cross_attention_hidden_size": 8,
    "vision_config": {"hidden_size": 8},
    "audio_config": {"hidden_size": 8},
    "compression_config": {"quant_method": "x"},
    "auto_map": {"AutoModelForCausalLM": "modeling.Model"},
    "use_sliding_window": True,
    "max_window_layers": 1,
    "num_beams": 3,
    "suppress_tokens": [3],
    "repetition_penalty": 2.0,
    "min_length": 100,
    "bad_words_ids": [[3]],
    "badwordsids": [[3]],
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "use_cash": True,
    "quantization": {"group_size": 64, "bits": 4},
    "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1]},
    "architectures": ["LLaMAForCausalLM"],
}


@pytest.mark.parametrize("key", IGNORED)
def test_transformers_ignores_a_key_that_is_ignored_here(
    tmp_path: Path, key: str
) -> None:
    write(tmp_path, MINIMAL)
    plain = read(tmp_path)
    expected = oracle.logits(plain, PROMPT)
    ids = greedy(plain)
    (tmp_path / "config.json").write_text(json.dumps(MINIMAL | {key: IGNORED[key]}))
    other = read(tmp_path)
    assert (oracle.logits(other, PROMPT) == expected).all()
    assert greedy(other) == ids
    if (
        key != "quantization"
    ):  # which transformers ignores, but not the tensors of such a model
        assert (
            oracle.errors(run(load_model(tmp_path).transformer, PROMPT), expected)[0]
            < 1e-4
        )
        assert our_greedy(tmp_path) == ids


# What the code that all classes share reads from a configuration, though no class has it.
READ_BY_ALL = {
    "head_dim",
    "layer_types",
    "partial_rotary_factor",
    "quantization_config",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
}
# Written into each file, or moved to a key of the class.
WRITTEN = {
    "_commit_hash",
    "_from_model_config",
    "_name_or_path",
    "num_labels",
    "torch_dtype",
}

OF_LLAMA = {"pretraining_tp"}  # harmless in other families too
# What published files of a family have, though its class has no field for it:
# `hidden_act` is an earlier name of `hidden_activation`, and transformers converts the
# others to `layer_types` and `rope_parameters`.
EARLIER: dict[str, set[str]] = {
    "gemma2": {"hidden_act"},
    # transformers accepts both names of the number of experts.
    "gpt_oss": {"num_experts"},
    "granitemoe": {"num_experts"},
    "mixtral": {"num_experts"},
    "olmoe": {"num_local_experts"},
    "qwen3_moe": {"num_local_experts"},
    "gemma3_text": {"hidden_act", "rope_local_base_freq", "sliding_window_pattern"},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_keys_of_a_family_are_those_of_its_class(kind: str) -> None:
    """A new version of transformers that adds or removes a key fails here,
    and names it.
    """
    made = transformers.CONFIG_MAPPING[kind]
    fields = {field.name for field in dataclasses.fields(made)} | {"model_type"}
    own = FAMILIES[kind].config.rules.keys() | {"model_type"}
    known = RULES.keys() | own | HARMLESS_KEYS | REJECTED_KEYS.keys()
    assert fields - known == set()
    unread = {"sliding_window"} if "sliding_window" not in own else set()
    extra = (RULES.keys() | own | HARMLESS_KEYS) - fields - READ_BY_ALL - WRITTEN
    assert extra <= OF_LLAMA | EARLIER.get(kind, set())
    assert not unread & fields


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_defaults_of_a_family_are_those_of_its_class(kind: str) -> None:
    made = transformers.CONFIG_MAPPING[kind]
    values = {field.name: field.default for field in dataclasses.fields(made)}
    theta = made.default_theta
    if isinstance(theta, dict):  # for layers without and with a window
        assert theta["local"] == FAMILIES[kind].config.local_rope_theta
        theta = theta["global"]
    for key, value in FAMILIES[kind].config.defaults.items():
        assert (theta if key == "rope_theta" else values[key]) == value, key


CHANGED = {
    "sliding_window": 4,
    "attention_chunk_size": 4,
    "per_layer_config": {"0": {"head_dim": 8}},
    "original_max_position_embeddings": 8,
}


@pytest.mark.parametrize("key", CHANGED)
def test_transformers_reads_a_key_that_is_rejected_here(tmp_path: Path, key: str) -> None:
    """The other keys of the table make transformers fail, or read other files."""
    llama3 = {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
    }
    base = MINIMAL | {"rope_parameters": llama3}
    write(tmp_path, base)
    ids = [1, *range(20, 60)]
    plain = greedy(read(tmp_path)), oracle.logits(read(tmp_path), ids)
    (tmp_path / "config.json").write_text(json.dumps(base | {key: CHANGED[key]}))
    try:
        other = read(tmp_path)
        changed = greedy(other), oracle.logits(other, ids)
    except (RuntimeError, ValueError, AttributeError, TypeError):
        return
    assert changed[0] != plain[0] or (changed[1] != plain[1]).any()
