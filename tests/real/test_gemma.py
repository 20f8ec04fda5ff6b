"""Gemma 3 270M in Q4_K_M: ids and logits beside llama.cpp, and a recorded answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.inference import BatchEngine, InferenceEngine, SamplingArgs
from src.model import InferenceContext, Model, load_model
from src.model.saving import save_quantized
from src.tokenizer import load_tokenizer
from tests.real.float32 import divergence, gemma_float32_logits
from tests.real.gemma import GREEDY_TOKENS, gemma_file, recorded_gemma
from tests.real.recorded import TEXT, all_logits
from tests.real.texts import SCRIPTS, all_texts
from tests.support import llama_cpp

pytestmark = pytest.mark.real

TOKENS = 640  # more than the window of 512
CHARACTERS = 40_000  # of prose and of code
GREEDY = SamplingArgs(temperature=0.0)


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return gemma_file()
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def gemma(path: Path) -> Model:
    return load_model(path)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: text[:CHARACTERS] for name, text in all_texts().items()}


def encoded(model: Model, text: str) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(text, bos=False, eos=False)


def test_ids_are_those_of_llama_cpp(
    path: Path, gemma: Model, texts: dict[str, str], figures: list[str]
) -> None:
    llama_cpp.needed()
    assert gemma.tokenizer is not None
    assert gemma.tokenizer.vocab_size == 262_144
    characters = sum(map(len, texts.values()))
    assert characters > 200_000
    with llama_cpp.LlamaCpp(path, 16) as other:
        for name, text in texts.items():
            found = encoded(gemma, text)
            assert found == other.tokenize(text), name
            assert gemma.tokenizer.decode(found) == text, name
    figures.append(
        f"Gemma 3: ids of {characters} characters of prose, code and {len(SCRIPTS)} "
        "scripts equal llama.cpp's"
    )


def test_the_written_tokenizer_gives_the_same_ids_in_sentencepiece(
    path: Path, gemma: Model, texts: dict[str, str], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentencepiece", reason="needs the oracle extra")
    save_quantized(path, tmp_path / "saved", dequantize=True)
    own = load_tokenizer(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.model"
    theirs = library.SentencePieceProcessor(model_file=str(file))
    for name, text in texts.items():
        expected = encoded(gemma, text)
        assert own.encode(text, bos=False, eos=False) == expected, name
        assert theirs.encode(text) == expected, name


def test_logits_are_twice_as_near_to_float32_as_those_of_llama_cpp(
    path: Path, gemma: Model, figures: list[str]
) -> None:
    llama_cpp.needed()
    assert gemma.tokenizer is not None
    text = TEXT.read_text("utf-8")
    ids = gemma.tokenizer.encode(text, bos=True, eos=False)[:TOKENS]
    exact = gemma_float32_logits(path, ids)
    ours = divergence(all_logits(gemma.transformer, ids), exact)
    with llama_cpp.LlamaCpp(path, TOKENS) as other:
        theirs = divergence(other.run_each(ids), exact)
    figures.append(
        f"Gemma 3: {TOKENS} tokens beside float32: mean KL {ours:.2e}, of llama.cpp "
        f"{theirs:.2e}"
    )
    assert ours <= theirs / 2


def token_ids(steps: Any) -> list[int]:
    return [step.token_id for step in steps]


def test_the_answer_is_the_recorded_one_alone_and_in_a_batch(
    gemma: Model, figures: list[str]
) -> None:
    expected = recorded_gemma()["greedy_ids"]
    prompt = recorded_gemma()["prompt_ids"]
    assert len(expected) == GREEDY_TOKENS
    length = len(prompt) + GREEDY_TOKENS
    alone = InferenceEngine(gemma, length).generate(prompt, GREEDY_TOKENS, GREEDY)
    assert token_ids(alone) == expected
    with BatchEngine(gemma, sequence_length=256, cache_tokens=1024) as engine:
        requests = [
            engine.submit(prompt + expected[:n], GREEDY_TOKENS - n, GREEDY)
            for n in (0, 5, 60)
        ]
        found = [token_ids(request) for request in requests]
    assert found == [expected[n:] for n in (0, 5, 60)]
    figures.append(f"Gemma 3: {GREEDY_TOKENS} greedy tokens: equal alone and in a batch")


@pytest.mark.parametrize("chunks", [(1, 500, 139), (300, 300, 40)])
def test_chunks_beyond_the_window_give_the_same_bits(
    gemma: Model, chunks: tuple[int, ...]
) -> None:
    ids = encoded(gemma, TEXT.read_text("utf-8"))[: sum(chunks)]
    context = InferenceContext(gemma.args, len(ids))
    for size in chunks:
        start = context.length
        row = gemma.transformer.forward(context, ids[start : start + size], start)
    whole = InferenceContext(gemma.args, len(ids))
    np.testing.assert_array_equal(
        row.numpy(), gemma.transformer.forward(whole, ids).numpy()
    )
