"""A tokenizer may have more tokens than the embeddings have rows, or fewer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from src.explorer import Store, run_traced
from src.inference import (
    BatchEngine,
    GrammarError,
    InferenceEngine,
    Message,
    SamplingArgs,
    encode_chat,
)
from src.model import InferenceContext, Model, TokenIdError, load_model
from src.model.saving_gguf import save_gguf
from src.tokenizer import TokenizerError
from tests.model.tiny import GROUPED, write_byte_tokenizer, write_meta_directory
from tests.support.vocabularies import (
    PIECES,
    PLAIN,
    PLAIN_TEXT,
    SPECIAL,
    SPECIAL_TEXT,
    write_vocabulary,
)

TOKENS = PIECES + 2
GREEDY = SamplingArgs(temperature=0.0)
PROMPT = [1, 70, 71, 72]
ROWS = {"as many": TOKENS, "fewer rows": PIECES, "more rows": TOKENS + 9}
EVERY_SIZE = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)


@pytest.fixture
def short(tmp_path: Path) -> Model:
    """A model with two tokens more than rows."""
    return load_model(write_vocabulary(tmp_path / "short", PIECES))


@EVERY_SIZE
def test_a_model_loads_and_answers_with_either_size(tmp_path: Path, rows: int) -> None:
    model = load_model(write_vocabulary(tmp_path, rows))
    write_vocabulary(tmp_path / "bare", rows)
    for file in ("tokenizer.model", "added_tokens.json", "tokenizer_config.json"):
        (tmp_path / "bare" / file).unlink()
    bare = load_model(tmp_path / "bare")
    assert bare.tokenizer is None
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == max(rows, TOKENS)
    sizes = f"the tokenizer has {TOKENS} tokens, the embeddings have {rows} rows"
    assert (sizes in model.notes) == (rows < TOKENS)
    answers = [
        [step.token_id for step in InferenceEngine(each, 64).generate(PROMPT, 20, GREEDY)]
        for each in (model, bare)
    ]
    assert answers[0] == answers[1]
    every_id = range(model.tokenizer.vocab_size)
    assert model.tokenizer.decode(every_id).endswith(SPECIAL_TEXT + PLAIN_TEXT)


@pytest.mark.parametrize("rows", [300, 600])
def test_metas_layout_loads_with_either_size(tmp_path: Path, rows: int) -> None:
    write_meta_directory(tmp_path, replace(GROUPED, vocab=rows))
    write_byte_tokenizer(tmp_path / "tokenizer.model")
    model = load_model(tmp_path)
    assert model.tokenizer is not None
    assert (model.tokenizer.vocab_size, model.args.vocab_size) == (max(512, rows), rows)
    steps = list(InferenceEngine(model, 64).generate([65, 66], 10, GREEDY))
    assert 0 < len(steps) <= 10


def test_an_id_beyond_the_rows_is_an_error_where_it_is_run(short: Model) -> None:
    assert short.tokenizer is not None
    ids = short.tokenizer.encode(f"a{PLAIN_TEXT}{SPECIAL_TEXT}", bos=True, eos=False)
    assert PLAIN in ids
    assert SPECIAL not in ids
    place = ids.index(PLAIN)
    text = rf"^\[forward\] tokens\[{place}\] must be from 0 to {PIECES - 1}: got {PLAIN}$"
    engine = InferenceEngine(short, 64)
    batch = BatchEngine(short, sequence_length=64)
    expected = [step.token_id for step in engine.generate(PROMPT, 10, GREEDY)]
    for bad in (ids, [1, SPECIAL]):
        for generate in (engine.generate, batch.submit):
            with pytest.raises(
                TokenIdError, match=r"^\[forward\] tokens\[\d+\] must be from 0 to"
            ):
                list(generate(bad, max_new_tokens=3))
        with pytest.raises(TokenIdError, match=r"must be from 0 to 258: got "):
            short.transformer.forward(InferenceContext(short.args, 64), bad, 0)
    with pytest.raises(TokenIdError, match=text):
        list(engine.generate(ids))
    with pytest.raises(TokenIdError):
        list(engine.chat([Message("user", PLAIN_TEXT)], chat_format="llama2"))
    assert [step.token_id for step in engine.generate(PROMPT, 10, GREEDY)] == expected
    assert [step.token_id for step in batch.submit(PROMPT, 10, GREEDY)] == expected
    batch.close()


def test_an_end_token_beyond_the_rows_ends_nothing(tmp_path: Path) -> None:
    directory = write_vocabulary(tmp_path, PIECES)
    (directory / "generation_config.json").write_text(
        f'{{"eos_token_id": [70, {SPECIAL}]}}'
    )
    model = load_model(directory)
    assert model.source.end_ids == (70, SPECIAL)
    assert model.stop_ids == {2, 70}
    note = f"end tokens beyond the {PIECES} rows of the embeddings: {SPECIAL} (1 in all)"
    assert note in model.notes
    whole = load_model(write_vocabulary(tmp_path / "whole", TOKENS))
    assert not any("end tokens" in text for text in whole.notes)


def test_no_logit_of_an_id_beyond_the_rows_is_read(short: Model) -> None:
    logits = short.transformer.forward(InferenceContext(short.args, 8), PROMPT, 0)
    assert logits.shape == (1, PIECES)
    hot = SamplingArgs(temperature=100.0, top_k=0, top_p=1.0, seed=3)
    steps = list(InferenceEngine(short, 256).generate(PROMPT, 200, hot, candidates=5))
    assert {step.token_id for step in steps} <= set(range(PIECES))
    for step in steps:
        assert step.choice is not None
        assert all(candidate.token_id < PIECES for candidate in step.choice.candidates)


@EVERY_SIZE
def test_a_grammar_masks_the_rows_of_the_model(tmp_path: Path, rows: int) -> None:
    pytest.importorskip("llguidance", reason="the serve extra is not installed")
    from src.inference.grammars import Grammar, Grammars

    model = load_model(write_vocabulary(tmp_path, rows))
    assert model.tokenizer is not None
    grammars = Grammars(model.tokenizer, model.stop_ids)
    engine = InferenceEngine(model, 64)
    grammar = Grammar("lark", 'start: "ab" | "xyz"')
    for sampling in (GREEDY, SamplingArgs(temperature=50.0, top_k=0, top_p=1.0, seed=1)):
        steps = engine.generate(PROMPT, 9, sampling, mask=grammars.mask(grammar))
        assert "".join(step.text for step in steps) in ("ab", "xyz")
    # Only a token without a row could end this answer.
    ends = Grammars(model.tokenizer, {SPECIAL})
    mask = ends.mask(Grammar("lark", 'start: "ab"'))
    if rows == PIECES:
        text = (
            rf"an allowed token id must be below the {PIECES} rows of the embeddings: "
            r"got none"
        )
        with pytest.raises(GrammarError, match=text):
            list(engine.generate(PROMPT, 9, GREEDY, mask=mask, end_ids={SPECIAL}))
    else:
        answer = list(engine.generate(PROMPT, 9, GREEDY, mask=mask, end_ids={SPECIAL}))
        assert "".join(step.text for step in answer) == "ab"
        assert answer[-1].token_id == SPECIAL
    for each in (grammars, ends):
        each.close()


def test_a_draft_model_is_compared_in_the_ids_that_both_can_run(
    short: Model, tmp_path: Path
) -> None:
    long = load_model(write_vocabulary(tmp_path / "long", TOKENS + 9))
    expected = [
        step.token_id for step in InferenceEngine(short, 64).generate(PROMPT, 20, GREEDY)
    ]
    for draft in (short, long):
        engine = InferenceEngine(short, 64, draft_model=draft)
        assert [step.token_id for step in engine.generate(PROMPT, 20, GREEDY)] == expected


@EVERY_SIZE
def test_the_explorer_shows_a_run_of_either_size(tmp_path: Path, rows: int) -> None:
    model = load_model(write_vocabulary(tmp_path, rows))
    assert model.tokenizer is not None
    ids = encode_chat(model.tokenizer, [Message("user", "hi")], chat_format="llama2")
    run = run_traced(model, ids, 3, GREEDY, Store())
    assert run["tokens"][: len(ids)] == ids
    assert all(int(token) < rows for token in run["texts"])


def test_tokens_beyond_the_rows_are_left_out_of_a_gguf_file(
    tmp_path: Path, short: Model
) -> None:
    directory = tmp_path / "short"
    with pytest.raises(TokenizerError, match=r"tokens: expected at most 259, .* '<pad>'"):
        save_gguf(directory, tmp_path / "plain.gguf")
    (directory / "added_tokens.json").write_text(f'{{"{SPECIAL_TEXT}": {SPECIAL}}}')
    save_gguf(directory, tmp_path / "special.gguf")
    saved = load_model(tmp_path / "special.gguf")
    model = load_model(directory)
    assert saved.tokenizer is not None
    assert model.tokenizer is not None
    assert (saved.tokenizer.vocab_size, model.tokenizer.vocab_size) == (
        PIECES,
        PIECES + 1,
    )
    text = f"Hello {SPECIAL_TEXT}"
    ids = model.tokenizer.encode(text, bos=True, eos=False)
    assert saved.tokenizer.encode(text, bos=True, eos=False) == ids
    logits = [each.transformer.forward(InferenceContext(each.args, 64), ids, 0).numpy()
              for each in (saved, model)]  # fmt: skip
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-4)
