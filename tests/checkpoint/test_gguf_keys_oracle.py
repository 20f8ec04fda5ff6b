"""Keys of an architecture that are ignored here: llama.cpp gives the same logits with
them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.checkpoint.gguf import read_gguf
from src.checkpoint.params import MOST_LAYERS
from src.model import load_model
from src.model.saving_gguf import save_gguf
from tests.model.families import CONFIGS, EVEN_SIZES, write_family
from tests.support import llama_cpp
from tests.support.gguf_writer import F32, Stored, gguf_bytes

pytestmark = pytest.mark.oracle

IDS = [5, 17, 99, 0, 130, 64, 64, 3, 77, 12] * 3
# Keys that llama.cpp has for other architectures, and one that it does not have.
OF_OTHERS = {
    "attention.scale": 1.7,
    "embedding_scale": 1.7,
    "residual_scale": 1.7,
    "logit_scale": 1.7,
    "attention.clamp_kqv": 1.7,
    "attention.max_alibi_bias": 1.7,
    "attention.sliding_window": 2,
    "attention.layer_norm_epsilon": 0.5,
    "attention.output_scale": 1.7,
    "unheard_of": "x",
    "attn_logit_softcapping": 1.7,
    "final_logit_softcapping": 1.7,
    "use_parallel_residual": True,
    "expert_feed_forward_length": 2,
    "expert_shared_count": 2,
    "leading_dense_block_count": 2,
    "rope.freq_base_swa": 7.0,
    "rope.scaling.yarn_log_multiplier": 1.7,
    "rope.scaling.yarn_attn_factor": 1.7,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 7.0,
    "rope.scaling.yarn_beta_slow": 0.7,
    "hidden_activation": "gelu",
    "attention.sliding_window_pattern": 2,
    "rope.dimension_count_swa": 2,
    "pooling_type": 1,
    "attention.key_length_swa": 2,
    "embedding_length_out": 2,
    "attention.value_scale": 1.7,
}
# Keys that llama.cpp reads for one architecture alone, or for all.
OF_GRANITE = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
READ: dict[str, Any] = {
    "rope.scaling.attn_factor": 1.7,
    "attention.causal": False,
}


OF_YARN = ("log_multiplier", "beta_fast", "beta_slow")
HAVE_YARN = ("olmo3", "ministral3", "gpt_oss")
SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
# The name in GGUF files where it is not the model_type.
ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "olmo3": "olmo2",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
}


def with_keys(source: Path, path: Path, keys: dict[str, Any]) -> Path:
    """Write a file of float32 tensors again, with more keys."""
    file = read_gguf(source)
    content = source.read_bytes()
    tensors = {
        name: Stored(entry.shape, F32, content[entry.start : entry.stop])
        for name, entry in file.tensors.items()
    }
    known = file.decoded("", dict.fromkeys(file.keys, MOST_LAYERS))
    path.write_bytes(gguf_bytes({**known, **keys}, tensors))
    return path


def logits(path: Path) -> Any:
    with llama_cpp.LlamaCpp(path) as model:
        return model.run(IDS)


@pytest.fixture(scope="module", params=["llama", *CONFIGS])
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Write a model of each architecture, whose file has its name."""
    llama_cpp.needed()
    name = request.param
    place = tmp_path_factory.mktemp("source")
    changes: dict[str, Any] = EVEN_SIZES | {"hidden_size": 96}
    if name == "llama":
        changes |= {"model_type": "llama"}
    family = "olmo2" if name == "llama" else name
    save_gguf(
        write_family(place / name, family, ml.float32, **changes), place / f"{name}.gguf"
    )
    return place / f"{name}.gguf"


def test_ignored_keys_change_no_logits(tmp_path: Path, source: Path) -> None:
    name = ARCHITECTURES.get(source.stem, source.stem)
    expected = logits(source)
    windows = tuple(key for key in OF_OTHERS if "sliding_window" in key or "swa" in key)
    own = {
        "granite": OF_GRANITE,
        "granite_swa": (*OF_GRANITE, *windows),
        "granitemoe": OF_GRANITE,
        "gpt_oss": ("expert_feed_forward_length", *windows),
        "qwen3_moe": ("expert_feed_forward_length",),
        "olmo2": ("attention.sliding_window",),
        "olmo3": tuple(key for key in windows if key != "rope.freq_base_swa"),
        "gemma2": (*SOFT_CAPS, *windows),
        "gemma3_text": (*SOFT_CAPS, *windows),
        "ministral3": tuple(f"rope.scaling.yarn_{key}" for key in OF_YARN),
    }.get(source.stem, ())
    keys = {f"{name}.{key}": value for key, value in OF_OTHERS.items() if key not in own}
    path = with_keys(source, tmp_path / "a.gguf", keys)
    np.testing.assert_array_equal(logits(path), expected)
    model = load_model(path)
    assert model.args == load_model(source).args
    assert model.source.ignored == {"a.gguf": tuple(keys)}
    assert any(
        note.startswith(f"ignored keys of a.gguf: '{name}.") for note in model.notes
    )


def test_keys_that_llama_cpp_reads_are_used_or_rejected(
    tmp_path: Path, source: Path
) -> None:
    name = ARCHITECTURES.get(source.stem, source.stem)
    expected = logits(source)
    own = {
        "granite": {"rope.scaling.finetuned": False},
    }
    for key, value in (READ | own.get(source.stem, {})).items():
        path = with_keys(source, tmp_path / "a.gguf", {f"{name}.{key}": value})
        if key != "attention.causal":  # llama.cpp makes no logits with it
            assert not np.array_equal(logits(path), expected), key
        if key == "rope.scaling.attn_factor" and source.stem in HAVE_YARN:
            assert load_model(path).args != load_model(source).args
            continue
        with pytest.raises(CheckpointError, match=f"{name}.{key}: expected "):
            load_model(path)


def test_the_old_name_of_the_rope_factor_is_used(tmp_path: Path, source: Path) -> None:
    if source.stem in HAVE_YARN:
        pytest.skip("has the factor of YaRN, which has one name")
    name = ARCHITECTURES.get(source.stem, source.stem)
    old = f"{name}.rope.scale_linear"
    new = f"{name}.rope.scaling.factor"
    path = with_keys(source, tmp_path / "old.gguf", {old: 4.0})
    newer = with_keys(source, tmp_path / "new.gguf", {new: 4.0})
    both = with_keys(source, tmp_path / "both.gguf", {new: 4.0, old: 2.0})
    expected = logits(newer)
    for each in (path, both):
        np.testing.assert_array_equal(logits(each), expected)
        assert load_model(each).args == load_model(newer).args
    assert not np.array_equal(expected, logits(source))
