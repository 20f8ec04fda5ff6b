"""The bundled model as it is shipped: Meta's layout, small, and able to answer."""

import json

import pytest

from src.inference import InferenceEngine
from src.model import Model, load_model
from src.model.sources import BUNDLED_MODEL
from src.tokenizer.tiktoken_file import SPECIAL_TOKEN_NAMES
from tools.nano.evaluate import Examiner, pinned_pairs
from tools.nano.pairs import Pair

META_KEYS = {
    "dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "vocab_size",
    "multiple_of",
    "ffn_dim_multiplier",
    "norm_eps",
    "rope_theta",
    "use_scaled_rope",
}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


@pytest.fixture(scope="module")
def examiner() -> Examiner:
    return Examiner()


def test_the_folder_holds_the_three_files_and_the_card_of_at_most_twelve_megabytes() -> (
    None
):
    sizes = {path.name: path.stat().st_size for path in BUNDLED_MODEL.iterdir()}
    expected = {"consolidated.00.pth", "params.json", "tokenizer.model", "MODEL_CARD.md"}
    assert set(sizes) == expected
    assert sum(sizes.values()) <= 12_000_000


def test_params_have_exactly_the_keys_of_meta() -> None:
    params = json.loads((BUNDLED_MODEL / "params.json").read_text())
    assert set(params) == META_KEYS
    assert params["use_scaled_rope"] is True


def test_the_sizes_differ_weights_are_bfloat16_and_the_context_is_at_least_1024(
    model: Model,
):
    args = model.args
    sizes = [
        args.dim,
        args.n_layers,
        args.n_heads,
        args.n_kv_heads,
        args.head_dim,
        args.ffn_dim,
        args.vocab_size,
        args.n_heads // args.n_kv_heads,
    ]
    assert len(set(sizes)) == len(sizes)
    assert {tensor.dtype.name for tensor in model.tensors.values()} == {"bfloat16"}
    assert InferenceEngine(model, sequence_length=1024).sequence_length == 1024


def test_the_vocabulary_ends_with_the_special_tokens_of_llama_3_1(model: Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.vocab_size == tokenizer.bos_id + 256
    assert tokenizer.special_tokens == {
        name: tokenizer.bos_id + number for number, name in enumerate(SPECIAL_TOKEN_NAMES)
    }
    assert len(tokenizer.encode("4096", bos=False, eos=False)) == 4  # single digits


@pytest.mark.parametrize("pair", pinned_pairs(), ids=lambda pair: pair.question)
def test_the_prompts_of_the_documentation_are_answered(
    examiner: Examiner, pair: Pair
) -> None:
    assert examiner.answer(pair) == pair.answer


def test_a_name_is_remembered_over_several_turns(examiner: Examiner) -> None:
    setup = (
        ("My name is Clara.", "Nice to meet you, Clara!"),
        ("What is the capital of Norway?", "The capital of Norway is Oslo."),
        ("What is 2 + 3?", "2 + 3 = 5."),
        ("Repeat the word lemon.", "lemon"),
    )
    question = Pair("", "", "", "What is my name?", "", setup=setup)
    assert examiner.answer(question) == "Your name is Clara."
