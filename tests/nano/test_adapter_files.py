"""The bundled adapter as it is shipped: small, and able to write Roman numerals."""

import json
from pathlib import Path
from typing import Any

import pytest

from src import ml
from src.inference import InferenceEngine, Message, SamplingArgs, encode_chat
from src.model import LoadedAdapter, Model, load_adapter, load_model
from src.model.saving import save_quantized
from tests.inference.test_batch import alone, batch, ended
from tools.nano.corpus import load_split
from tools.nano.roman import BUNDLED_ADAPTER, with_roman_answer

GREEDY = SamplingArgs(temperature=0.0)
ANSWERS = [
    ("Add 47 and 28.", "47 + 28 = 75.", "47 + 28 = 75 = LXXV."),
    ("5 + 48", "5 + 48 = 53.", "5 + 48 = 53 = LIII."),
    ("What is the sum of 44 and 5?", "44 + 5 = 49.", "44 + 5 = 49 = XLIX."),
    ("What is 36 - 1?", "36 - 1 = 35.", "36 - 1 = 35 = XXXV."),
    ("How much is 34 minus 23?", "34 - 23 = 11.", "34 - 23 = 11 = XI."),
    ("41 - 41 = ?", "41 - 41 = 0.", "41 - 41 = 0 = nulla."),
]
HELD_OUT = {
    pair.question: pair
    for family in ("sum", "difference")
    for pair in load_split().held_out[family]
}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


@pytest.fixture(scope="module")
def adapter(model: Model) -> LoadedAdapter:
    return load_adapter(model, BUNDLED_ADAPTER)


def answer(model: Model, question: str, *adapters: Any) -> str:
    engine = InferenceEngine(model, 128)
    steps = engine.chat([Message("user", question)], 40, GREEDY, adapters=adapters)
    return "".join(step.text for step in steps)


def test_the_folder_holds_two_files_of_at_most_300_kilobytes() -> None:
    sizes = {path.name: path.stat().st_size for path in BUNDLED_ADAPTER.iterdir()}
    assert set(sizes) == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(sizes.values()) <= 300_000


def test_it_has_28_pairs_of_rank_8_in_bfloat16(adapter: LoadedAdapter) -> None:
    assert adapter.description == "roman (peft, rank 8, 28 weights)"
    config = json.loads((BUNDLED_ADAPTER / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (8, 16)
    pairs = adapter.products.values()
    assert {pair.scale for pair in pairs} == {2.0}
    assert {matrix.dtype for pair in pairs for matrix in (pair.a, pair.b)} == {
        ml.bfloat16
    }
    assert adapter.nbytes == 2 * 111_616


@pytest.mark.parametrize(("question", "plain", "adapted"), ANSWERS)
def test_held_out_sums_get_a_roman_numeral(
    model: Model, adapter: LoadedAdapter, question: str, plain: str, adapted: str
) -> None:
    pair = HELD_OUT[question]
    assert (plain, adapted) == (pair.answer, with_roman_answer(pair).answer)
    assert answer(model, question) == plain
    assert answer(model, question, (adapter, 1.0)) == adapted
    assert answer(model, question, (adapter, 0.0)) == plain


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of Norway?",
        "Who are you?",
        "What is 36 - 1? Answer with the number only.",
        "Repeat lemon.",
    ],
)
def test_other_answers_do_not_change(
    model: Model, adapter: LoadedAdapter, question: str
) -> None:
    assert answer(model, question, (adapter, 1.0)) == answer(model, question)


def test_a_batch_with_and_without_it_has_the_bits_of_each_request_alone(
    model: Model, adapter: LoadedAdapter
) -> None:
    jobs = [
        {
            "prompt_ids": encode_chat(model.tokenizer, [Message("user", question)]),
            "max_new_tokens": 24,
            "sampling": GREEDY,
            "candidates": 5,
            "adapters": adapters,
        }
        for question, _, _ in ANSWERS[:4]
        for adapters in ((), ((adapter, 1.0),), ((adapter, 0.5),))
    ]
    expected = alone(model, *jobs)
    assert expected[0] != expected[1] != expected[2]
    with batch(model) as engine:
        requests = [engine.submit(**job) for job in jobs]
        assert [ended(request) for request in requests] == expected


def test_a_merged_model_answers_like_the_base_with_the_adapter(
    tmp_path: Path, model: Model, adapter: LoadedAdapter
) -> None:
    save_quantized(None, tmp_path / "merged", adapters=[(BUNDLED_ADAPTER, 1.0)])
    merged = load_model(tmp_path / "merged")
    for question, _, adapted in ANSWERS:
        assert answer(merged, question) == adapted
