"""Configuration files of published models load, or the error names what is not
supported.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from src.checkpoint import CheckpointError
from src.checkpoint.hugging_face_config import HuggingFaceConfig, read_hugging_face_config
from src.model.families import FAMILIES
from tests.support.published import CONFIGS, GENERATION_CONFIGS, LOADED, MLX

SAMPLING_OF_A_DUMP = (
    "cross_attention_hidden_size",
    "finetuning_task",
    "output_attentions",
    "prefix",
    "pruned_heads",
    "sep_token_id",
    "task_specific_params",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "torchscript",
    "use_bfloat16",
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
)
OF_RELORA = ("max_sequence_length", "architectures")
# The keys of each file that the class of transformers does not have.
IGNORED: dict[str, tuple[str, ...]] = {
    "HuengchI/Atom-7B": ("max_length",),
    "DocWobble/Orpheus_3B_Quantized": ("unsloth_fixed",),
    "GribAI/Tensor-12m": ("hidden_dropout",),
    "jiaweizzhao/GaLore": OF_RELORA,
    "Rachmanino/moc": ("max_sequence_length", "act_channels", "architectures"),
    "dandingsky/ProRes": OF_RELORA,
    "wdlctc/mini-s": OF_RELORA,
    "IrfanUruchi/Llama-2-13B-Computer-Engineering-": ("max_sequence_length",),
    "orqan137/K-Policy-LLM": ("unk_token_id",),
    "WSZYO/LLama3FineTuning-Python": ("unsloth_fixed", "unsloth_version"),
    "gopu-inc/agentV1": ("use_mrope",),
    "Siddhesh19991/Llama-3-8B-Fine-tune": ("unsloth_version",),
    "galiihajiip/LLM-RAG": ("use_mrope",),
    "Hao-Shi-SBINT/my_config": (
        *SAMPLING_OF_A_DUMP,
        "_attn_implementation_autoset",
        "add_cross_attention",
        "is_decoder",
        "instruct",
        "ignore_token_id",
        "bosp_token_id",
        "bosr_token_id",
        "boss_token_id",
        "eosp_token_id",
        "eosr_token_id",
        "eoss_token_id",
        "sc_token_id",
    ),
    "TDevViper/FineTuneKit": (*SAMPLING_OF_A_DUMP, "add_cross_attention", "is_decoder"),
}


def read(directory: Path, config: Any, generation: Any = None) -> HuggingFaceConfig:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_hugging_face_config(directory, FAMILIES)


@pytest.mark.parametrize("name", LOADED)
def test_a_published_configuration_loads_and_its_ignored_keys_are_listed(
    tmp_path: Path, name: str
) -> None:
    config = CONFIGS[name]
    found = read(tmp_path, config)
    assert found.given == config
    assert sorted(found.ignored["config.json"]) == sorted(IGNORED.get(name, ()))
    assert (found.quantization is not None) == ("quantization_config" in config)


def test_every_family_and_enough_files_are_among_them() -> None:
    families = {config["model_type"] for config in CONFIGS.values()}
    assert families == {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "granite",
        "olmo2",
        "smollm3",
    }
    assert len(LOADED) >= 33
    assert len(GENERATION_CONFIGS) >= 20


@pytest.mark.parametrize("name", MLX)
def test_a_configuration_of_mlx_is_rejected_and_its_plain_twin_loads(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(
        CheckpointError, match=r"config\.json: quantization.*MLX's quantized weig"
    ):
        read(tmp_path, CONFIGS[name])
    keys = CONFIGS[name].items()
    read(
        tmp_path,
        {key: value for key, value in keys if not key.startswith("quantization")},
    )


@pytest.mark.parametrize("name", GENERATION_CONFIGS)
def test_a_published_generation_configuration_loads(tmp_path: Path, name: str) -> None:
    generation = GENERATION_CONFIGS[name]
    found = read(tmp_path, CONFIGS["HamZil/Llama-2-7b-hf"], generation)
    assert found.generation == generation
    known = {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "transformers_version",
        "use_cache",
    }
    known |= {"_from_model_config", "output_hidden_states"}
    known |= {"do_sample"}
    if generation.get("do_sample") is not False:
        known |= {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}
    unknown = tuple(key for key in generation if key not in known)
    assert found.ignored["generation_config.json"] == unknown
