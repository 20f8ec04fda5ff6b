"""The perplexity of a text, by its definition and by llama.cpp, and the divergence of
models.
"""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.inference import NumericError, PromptError, perplexity
from src.inference.perplexity import (
    Estimate,
    mean_estimate,
    perplexity_of,
    score_chunks,
    text_chunks,
)
from src.model import InferenceContext, LlamaTransformer, Model, load_model
from src.model.saving_gguf import save_gguf
from src.model.sources import BUNDLED_MODEL
from tests.model.families import write_family
from tests.support import llama_cpp
from tests.support.llama_perplexity import log_softmax
from tests.support.llama_perplexity import perplexity as llama_perplexity

TEXT = (Path(__file__).parents[1] / "golden/real.txt").read_text("utf-8")
MOST_DIFFERENCE = 0.005


def all_logits(transformer: LlamaTransformer, chunk: list[int]) -> Any:
    context = InferenceContext(transformer.args, len(chunk))
    return transformer.forward(context, chunk, 0, all_positions=True).numpy()


def test_chunks_are_whole_and_begin_with_the_token_that_begins_texts(
    bundled: Model,
) -> None:
    assert bundled.tokenizer is not None
    ids = bundled.tokenizer.encode(TEXT, bos=True, eos=False)
    chunks = text_chunks(bundled.tokenizer, TEXT, 50)
    assert [len(chunk) for chunk in chunks] == [50] * (len(ids) // 50)
    for number, chunk in enumerate(chunks):
        assert chunk[0] == bundled.tokenizer.bos_id
        assert chunk[1:] == ids[50 * number + 1 : 50 * number + 50]


def test_chunks_begin_with_text_where_the_vocabulary_has_no_such_token(
    tmp_path: Path, bundled: Model
) -> None:
    path = tmp_path / "a.gguf"
    save_gguf(None, path)
    tokenizer = load_model(path).tokenizer
    assert tokenizer is not None
    tokenizer.adds_bos = False
    ids = tokenizer.encode(TEXT, bos=False, eos=False)
    chunks = text_chunks(tokenizer, TEXT, 50)
    assert [token for chunk in chunks for token in chunk] == ids[: 50 * len(chunks)]


@pytest.mark.parametrize("length", [3, 4, 49, 50, 200])
def test_losses_are_those_of_one_pass_of_each_chunk(bundled: Model, length: int) -> None:
    assert bundled.tokenizer is not None
    chunks = text_chunks(bundled.tokenizer, TEXT, length)[:2]
    scores = list(score_chunks(bundled.transformer, chunks))
    assert len(scores) == 2
    for chunk, score in zip(chunks, scores, strict=True):
        logits = all_logits(bundled.transformer, chunk)
        # The first token that counts follows the token in the middle.
        first = length // 2 + 1
        expected = [
            -log_softmax(logits[at - 1])[chunk[at]] for at in range(first, length)
        ]
        assert score.against is None
        assert score.seconds > 0
        np.testing.assert_allclose(score.losses, expected, rtol=1e-12)


def test_losses_do_not_depend_on_the_rows_that_are_in_memory(
    bundled: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bundled.tokenizer is not None
    chunks = text_chunks(bundled.tokenizer, TEXT, 100)[:1]
    [expected] = score_chunks(bundled.transformer, chunks)
    for rows in (1, 7, 49, 50):
        monkeypatch.setattr(perplexity, "_ROWS", rows)
        [score] = score_chunks(bundled.transformer, chunks)
        assert score.losses.tolist() == expected.losses.tolist()


def test_a_model_does_not_diverge_from_itself(bundled: Model) -> None:
    assert bundled.tokenizer is not None
    chunks = text_chunks(bundled.tokenizer, TEXT, 64)[:2]
    for score in score_chunks(bundled.transformer, chunks, bundled.transformer):
        assert score.against is not None
        assert score.against.losses.tolist() == score.losses.tolist()
        assert score.against.divergences.tolist() == [0.0] * 31
        assert score.against.same_top.tolist() == [True] * 31


def test_the_divergence_is_that_of_the_reference_from_the_model(bundled: Model) -> None:
    assert bundled.tokenizer is not None
    model = load_model(quantize="nf4")
    chunks = text_chunks(bundled.tokenizer, TEXT, 64)[:1]
    [score] = score_chunks(model.transformer, chunks, bundled.transformer)
    rows = all_logits(model.transformer, chunks[0])[32:-1]
    reference_rows = all_logits(bundled.transformer, chunks[0])[32:-1]
    assert score.against is not None
    for place, (row, other) in enumerate(zip(rows, reference_rows, strict=True)):
        log_q = log_softmax(row)
        log_p = log_softmax(other)
        expected = float(np.sum(np.exp(log_p) * (log_p - log_q)))
        assert score.against.divergences[place] == pytest.approx(expected, rel=1e-9)
        assert score.against.same_top[place] == (row.argmax() == other.argmax())
    assert score.against.divergences.min() > 0
    [alone] = score_chunks(bundled.transformer, chunks)
    np.testing.assert_allclose(score.against.losses, alone.losses, rtol=1e-12)


def test_estimates_have_their_standard_errors() -> None:
    assert mean_estimate(np.array([1.0, 2.0, 3.0])) == Estimate(2.0, math.sqrt(2 / 3 / 2))
    assert mean_estimate(np.array([5.0])) == Estimate(5.0, 0.0)
    found = perplexity_of(np.log([2.0, 2.0, 2.0]))
    assert found.value == pytest.approx(2.0)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    found = perplexity_of(np.array([1.0, 3.0]))
    assert found == Estimate(math.exp(2.0), math.exp(2.0))  # variance 1, of 2 values


@pytest.mark.parametrize(
    ("text", "length", "reason"),
    [
        ("some words", 2, "length must be at least 3: got 2"),
        ("", 3, "tokens of the text must be at least those of a chunk: 1 < 3"),
        ("a" * 40, 500, "tokens of the text must be at least those of a chunk: .* < 500"),
    ],
)
def test_what_fills_no_chunk_is_rejected(
    bundled: Model, text: str, length: int, reason: str
) -> None:
    assert bundled.tokenizer is not None
    with pytest.raises(PromptError, match=reason):
        text_chunks(bundled.tokenizer, text, length)


def test_logits_that_are_not_finite_are_an_error() -> None:
    model = load_model()
    assert model.tokenizer is not None
    chunks = text_chunks(model.tokenizer, TEXT, 20)[:1]
    list(score_chunks(model.transformer, chunks))
    model.transformer.norm.weight = ml.full((model.args.dim,), float("nan"))
    with pytest.raises(NumericError, match="got nan for token 0 at position 10"):
        list(score_chunks(model.transformer, chunks))


@pytest.mark.oracle
@pytest.mark.parametrize("quantize", [None, "q8_0", "q4_0"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_random_models_have_the_perplexity_of_llama_cpp(
    tmp_path: Path, bundled: Model, family: str, quantize: str | None
) -> None:
    llama_cpp.needed()
    changes: dict[str, Any] = {"model_type": "llama"} if family == "llama" else {}
    source = write_family(
        tmp_path / "m",
        "olmo2" if family == "llama" else family,
        ml.float32,
        hidden_size=64,
        intermediate_size=96,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=bundled.args.vocab_size,
        **changes,
    )
    shutil.copy(BUNDLED_MODEL / "tokenizer.model", source)
    path = tmp_path / "a.gguf"
    save_gguf(source, path, quantize)
    model = load_model(path)
    assert model.tokenizer is not None
    chunks = text_chunks(model.tokenizer, TEXT, 128)
    losses = [score.losses for score in score_chunks(model.transformer, chunks)]
    found = perplexity_of(np.concatenate(losses))
    with llama_cpp.LlamaCpp(path, 128) as other:
        expected, error, count = llama_perplexity(other, TEXT, 128)
    assert len(chunks) == count
    assert found.value == pytest.approx(expected, rel=MOST_DIFFERENCE)
    assert found.error == pytest.approx(error, rel=4 * MOST_DIFFERENCE)
