"""How a token was chosen: each stage is what the sampler itself would draw from."""

from pathlib import Path

import numpy as np
import pytest

from src.inference import InferenceEngine, PromptError, Sampler, SamplingArgs
from src.inference.sampling import explain_choice
from src.model import load_model
from tests.model.tiny import BYTES_VOCAB, token_ids, write_meta_directory

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -np.inf, 0.0], np.float32)
ALL = SamplingArgs(
    temperature=0.5, top_k=3, top_p=0.8, min_p=0.1, repeat_penalty=2.0, seed=1
)  # fmt: skip


def softmax(logits: "list[float] | np.ndarray") -> "np.ndarray":
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


def test_each_step_that_is_on_is_a_stage_in_the_order_of_the_sampling() -> None:
    sampler = Sampler(ALL)
    sampler.observe([1])
    choice = explain_choice(sampler, LOGITS, 3, 7, 2)
    assert [(stage.name, stage.value) for stage in choice.stages] == [
        ("model", None),
        ("repeat_penalty", 2.0),
        ("temperature", 0.5),
        ("top_k", 3),
        ("top_p", 0.8),
        ("min_p", 0.1),
    ]
    assert [stage.kept for stage in choice.stages] == [5, 5, 5, 3, 1, 1]
    assert (choice.token_id, choice.position) == (3, 7)


def test_the_probabilities_are_those_of_each_step_alone() -> None:
    sampler = Sampler(ALL)
    sampler.observe([1])
    choice = explain_choice(sampler, LOGITS, 3, 0, 6)
    by_token = {found.token_id: found.probabilities for found in choice.candidates}
    assert list(by_token) == [1, 3, 2, 0, 5]  # lower ids first among equals; -inf has no chance
    penalised = np.array([1.0, 1.5, 2.0, 3.0, -np.inf, 0.0])
    warmed = penalised / 0.5
    kept = softmax([1.5 / 0.5, 2.0 / 0.5, 3.0 / 0.5])
    for token, probabilities in by_token.items():
        expected = [softmax(LOGITS)[token], softmax(penalised)[token], softmax(warmed)[token]]
        assert probabilities[:3] == pytest.approx(expected, rel=1e-6)
    assert [by_token[token][3] for token in (1, 2, 3)] == pytest.approx(list(kept), rel=1e-6)
    assert by_token[3][4:] == (1.0, 1.0)
    assert by_token[0][3:] == (0.0, 0.0, 0.0)


def test_the_last_stage_is_what_is_drawn_from() -> None:
    logits = np.random.default_rng(1).normal(0, 4, 6000).astype(np.float32)
    for args in (SamplingArgs(), SamplingArgs(top_k=0, min_p=0.02, top_p=1.0), ALL):
        sampler = Sampler(args)
        sampler.observe(range(30))
        *_, (_, _, ids, probabilities) = sampler.stages(logits)
        expected = sampler.distribution(logits)
        assert np.array_equal(ids, expected[0])
        assert np.array_equal(probabilities, expected[1])


def test_temperature_zero_leaves_one_token_and_no_further_step() -> None:
    args = SamplingArgs(temperature=0.0, top_k=3, top_p=0.5, repeat_penalty=2.0)
    sampler = Sampler(args)
    sampler.observe([1])
    choice = explain_choice(sampler, LOGITS, 3, 0, 1)
    assert [stage.name for stage in choice.stages] == ["model", "repeat_penalty", "temperature"]
    assert choice.stages[-1].kept == 1
    assert [found.token_id for found in choice.candidates] == [1, 3]  # the drawn one comes last
    assert choice.candidates[1].probabilities[-1] == 1.0
    assert choice.candidates[0].probabilities[-1] == 0.0


def test_settings_that_are_off_leave_the_model_alone() -> None:
    off = SamplingArgs(1.0, top_k=0, top_p=1.0)
    choice = explain_choice(Sampler(off), LOGITS, 0, 0, 1)
    assert [stage.name for stage in choice.stages] == ["model"]


def test_to_tell_of_candidates_changes_no_token(tmp_path: Path) -> None:
    model = load_model(write_meta_directory(tmp_path, BYTES_VOCAB, tokenizer=True))
    prompt = token_ids(BYTES_VOCAB, 6, seed=5)
    args = SamplingArgs(temperature=1.5, repeat_penalty=1.3, seed=4)
    engine = InferenceEngine(model, 40)
    plain = list(engine.generate(prompt, 12, args))
    told = list(engine.generate(prompt, 12, args, candidates=3))
    assert [step.token_id for step in told] == [step.token_id for step in plain]
    assert all(step.choice is None for step in plain)
    for place, step in enumerate(told, len(prompt)):
        assert step.choice is not None
        assert (step.choice.token_id, step.choice.position) == (step.token_id, place)
        drawn = {found.token_id: found for found in step.choice.candidates}[step.token_id]
        assert drawn.probabilities[-1] > 0.0
        assert len(step.choice.candidates) in (3, 4)
        before = [found.probabilities[0] for found in step.choice.candidates[:3]]
        assert before == sorted(before, reverse=True)


@pytest.mark.parametrize("count", [-1, True, 1.0])
def test_a_wrong_number_of_candidates_is_refused(tmp_path: Path, count: object) -> None:
    model = load_model(write_meta_directory(tmp_path, BYTES_VOCAB, tokenizer=True))
    with pytest.raises(PromptError, match="candidates must be a whole number >= 0"):
        InferenceEngine(model, 40).generate([1], candidates=count)  # type: ignore[arg-type]


def test_log_probabilities_are_natural_and_the_models_own() -> None:
    logits = np.array([1.0, 3.0, 2.0, -200.0, -np.inf, 0.5, -4000.0], np.float32)
    sampler = Sampler(ALL)
    sampler.observe([1, 2])
    choice = explain_choice(sampler, logits, 1, 0, 7)
    exact = logits.astype(np.float64)
    log_sum = np.log(np.exp(exact[exact > -1000.0]).sum())
    found = {each.token_id: each.log_probability for each in choice.candidates}
    assert list(found) == [1, 2, 0, 5, 3, 6]  # -inf has no chance, -4000 has a tiny one
    for token, log_probability in found.items():
        assert log_probability == pytest.approx(exact[token] - log_sum, rel=1e-12)
    assert sum(map(np.exp, found.values())) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.oracle
def test_log_probabilities_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(2).normal(0, 5, 50000).astype(np.float32)
    choice = explain_choice(Sampler(SamplingArgs()), logits, int(logits.argmin()), 0, 20)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), 0)
    top = torch.topk(expected, 20)
    assert [each.token_id for each in choice.candidates[:20]] == top.indices.tolist()
    for each in choice.candidates:
        assert each.log_probability == pytest.approx(expected[each.token_id].item(), rel=1e-9)


def test_one_candidate_of_a_vocabulary_of_one_possible_token() -> None:
    logits = np.array([-np.inf, 2.0], np.float32)
    choice = explain_choice(Sampler(SamplingArgs()), logits, 1, 0, 5)
    assert [(each.token_id, each.log_probability) for each in choice.candidates] == [(1, 0.0)]
