import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from src.inference import (
    InferenceEngine,
    NumericError,
    Sampler,
    SamplingArgs,
    SamplingError,
)
from src.inference.sampling import (
    MANY,
    at_least_kth_largest,
    draw,
    explain_choice,
    leave_out,
    smallest_of_top_p,
)
from tests.model.tiny import BYTES_VOCAB, token_ids

Logits = npt.NDArray[np.float32]

V = 128256
ALL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


def random_logits(seed: int = 0, size: int = V) -> Logits:
    return (4 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def sampler(**changes: object) -> Sampler:
    return Sampler(SamplingArgs(**(ALL | changes)))


def distribution(drawer: Sampler, logits: Logits) -> dict[int, float]:
    ids, probabilities = drawer.distribution(logits)
    assert math.isclose(probabilities.sum(), 1.0, rel_tol=1e-12)
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))


def kept(logits: Logits, **changes: object) -> dict[int, float]:
    return distribution(sampler(**changes), logits)


def softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


def log(*probabilities: float) -> Logits:
    return np.log(np.array(probabilities)).astype(np.float32)


@pytest.mark.parametrize(
    ("setting", "bad"),
    [
        ("temperature", [-0.1, math.nan, math.inf, -math.inf, "1", None, True, 10**400]),
        ("top_k", [-1, 1.5, "5", None, True]),
        ("top_p", [-0.1, 1.1, math.nan, math.inf, "1", None]),
        ("min_p", [-0.1, 1.1, math.nan, "0", None]),
        ("repeat_penalty", [0, 0.0, -1.0, math.nan, math.inf, "1"]),
        ("seed", [-1, 1.0, "1", True]),
    ],
)
def test_a_setting_outside_of_its_range_is_refused_by_name(setting, bad):
    for value in bad:
        with pytest.raises(SamplingError, match=f"\\[sampling\\] {setting} must be"):
            sampler(**{setting: value})


@pytest.mark.parametrize(
    "good",
    [
        {"temperature": 0},
        {"temperature": 1e-30},
        {"temperature": 5e-324},
        {"temperature": 1e30},
        {"top_k": 0},
        {"top_k": 1},
        {"top_k": 10**9},
        {"top_p": 0},
        {"top_p": 1e-30},
        {"top_p": 1},
        {"min_p": 1.0},
        {"repeat_penalty": 1e-30},
        {"repeat_penalty": 1e30},
        {"seed": 0},
        {"seed": 2**70},
    ],
    ids=str,
)
def test_the_ends_of_each_range_give_a_token(good):
    drawer = sampler(**good)
    drawer.observe([1, 2])
    assert 0 <= drawer.sample(log(0.1, 0.5, 0.2, 0.2), 0) < 4


def test_temperature_zero_or_a_tiny_one_is_the_largest_logit_whatever_else_is_set():
    logits = random_logits()
    for temperature in (1e-30, 5e-324):
        assert sampler(temperature=temperature).sample(logits, 0) == int(
            np.argmax(logits)
        )
    logits[[500, 90000]] = logits.max() + 1  # the lowest id among equals
    for changes in ({}, {"top_k": 3}, {"top_p": 0.1}, {"min_p": 0.9}, {"seed": 5}):
        assert sampler(temperature=0.0, **changes).sample(logits, 0) == 500


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_temperature_divides_the_logits(temperature):
    logits = random_logits(size=50)
    found = kept(logits, temperature=temperature)
    expected = softmax(logits.astype(np.float64) / temperature)
    np.testing.assert_allclose([found[i] for i in range(50)], expected, 1e-9)


def test_top_k_keeps_the_k_largest_and_equals_of_the_last():
    logits = np.array([1, 5, 3, 3, 2, 3, 0], np.float32)
    assert set(kept(logits, top_k=1)) == {1}
    assert set(kept(logits, top_k=2)) == {1, 2, 3, 5}
    assert set(kept(logits, top_k=5)) == {1, 2, 3, 4, 5}
    assert set(kept(logits, top_k=7)) == set(kept(logits, top_k=0)) == set(range(7))


@pytest.mark.parametrize(
    ("probabilities", "changes", "tokens"),
    [
        ((0.1, 0.4, 0.2, 0.3), {"top_p": 0.0}, {1}),
        ((0.1, 0.4, 0.2, 0.3), {"top_p": 0.39}, {1}),
        ((0.1, 0.4, 0.2, 0.3), {"top_p": 0.41}, {1, 3}),
        ((0.1, 0.4, 0.2, 0.3), {"top_p": 0.69}, {1, 3}),
        ((0.1, 0.4, 0.2, 0.3), {"top_p": 0.71}, {1, 2, 3}),
        ((0.1, 0.4, 0.2, 0.3), {"top_p": 0.95}, {0, 1, 2, 3}),
        # 0.4 / 0.7 = 0.57 of the two that top-k keeps.
        ((0.4, 0.3, 0.2, 0.1), {"top_k": 2, "top_p": 0.55}, {0}),
        ((0.4, 0.3, 0.2, 0.1), {"top_p": 0.55}, {0, 1}),
        ((0.5, 0.3, 0.15, 0.05), {"min_p": 0.25}, {0, 1, 2}),
        ((0.5, 0.3, 0.15, 0.05), {"min_p": 0.5}, {0, 1}),
        ((0.5, 0.3, 0.15, 0.05), {"min_p": 1.0}, {0}),
    ],
)
def test_top_p_keeps_the_fewest_that_reach_it_and_min_p_the_probable(
    probabilities, changes, tokens
):
    assert set(kept(log(*probabilities), **changes)) == tokens


@pytest.mark.parametrize(
    ("penalties", "expected"),
    [
        ({}, [1.0, -4.0, 1.0, -2.0, 0.0]),
        # Divided or multiplied once, then less 0.25 for each time and -0.5 for any.
        (
            {"frequency_penalty": 0.25, "presence_penalty": -0.5},
            [1.25, -4.0, 1.0, -2.0, 0.0],
        ),
    ],
)
def test_the_repetition_penalty_knows_the_prompt_and_others_count_the_answer(
    penalties, expected
):
    logits = np.array([2.0, -2.0, 1.0, -1.0, 0.0], np.float32)
    drawer = sampler(repeat_penalty=2.0, **penalties)
    drawer.observe([0, 3, 3, 4])
    for token in (1, 0, 1):
        drawer.observe([token], is_drawn=True)
    found = distribution(drawer, logits)
    np.testing.assert_allclose([found[i] for i in range(5)], softmax(expected), 1e-9)
    assert logits.tolist() == [2.0, -2.0, 1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("penalty", "is_drawn"),
    [({"repeat_penalty": 1.5}, False), ({"presence_penalty": 0.5}, True)],
)
def test_penalties_apply_before_the_largest_logit_is_taken(penalty, is_drawn):
    drawer = sampler(temperature=0.0, **penalty)
    logits = np.array([1.0, 0.75], np.float32)
    drawer.observe([0] if is_drawn else [])
    assert drawer.sample(logits, 0) == 0
    drawer.observe([0], is_drawn=is_drawn)
    assert drawer.sample(logits, 1) == 1


def test_a_penalty_never_makes_a_logit_infinite_or_a_banned_token_possible():
    logits = np.array([3e38, -3e38, -np.inf, 1.0], np.float32)
    drawer = sampler(repeat_penalty=1e-20)
    drawer.observe([0, 1, 2])
    found = distribution(drawer, logits)
    assert found[0] == 1.0
    assert 2 not in found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error_naming_the_position(bad, temperature):
    logits = random_logits(size=100)
    logits[37] = bad
    with pytest.raises(NumericError, match=f"got {bad} for token 37 at position 12"):
        sampler(temperature=temperature).sample(logits, 12)


def test_logits_of_minus_infinity_are_never_drawn_and_a_row_of_them_is_an_error():
    logits = np.full(10, -np.inf, np.float32)
    with pytest.raises(NumericError, match="got -inf for token 0 at position 3"):
        sampler().sample(logits, 3)
    logits[[2, 7]] = 1.0
    drawer = sampler()
    assert {drawer.sample(logits, 0) for _ in range(200)} == {2, 7}


def test_the_same_seed_draws_the_same_tokens_also_one_that_was_drawn():
    logits = random_logits(size=1000)

    def drawn(drawer: Sampler) -> list[int]:
        return [drawer.sample(logits, 0) for _ in range(50)]

    assert drawn(sampler(seed=9)) == drawn(sampler(seed=9)) != drawn(sampler(seed=10))
    first = sampler(seed=None)
    second = sampler(seed=None)
    assert first.seed != second.seed
    assert drawn(first) == drawn(sampler(seed=first.seed))


def test_a_known_seed_gives_known_tokens():
    drawer = sampler(seed=1234, temperature=0.8, top_k=5, top_p=0.9)
    logits = log(0.05, 0.3, 0.25, 0.2, 0.1, 0.1)
    # Of tokens 1, 2, 3, 4 with 0.377, 0.300, 0.227, 0.095; the generator gives
    # 0.977, 0.380, 0.923, 0.262, 0.319, 0.118.
    assert [drawer.sample(logits, 0) for _ in range(6)] == [4, 2, 4, 1, 1, 1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.7}],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_their_probability_says(changes):
    logits = random_logits(5, size=12) / 3
    draws = 5000
    expected = kept(logits, **changes)
    drawer = sampler(**changes, seed=77)
    counts = Counter(drawer.sample(logits, 0) for _ in range(draws))
    assert set(counts) <= set(expected)
    for token, probability in expected.items():
        # Five standard deviations: one run in a million would fail for one token by
        # chance.
        allowed = 5 * math.sqrt(draws * probability * (1 - probability)) + 1
        assert abs(counts[token] - draws * probability) <= allowed


# How a token was chosen: each stage is what the sampler itself would draw from.
LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -np.inf, 0.0], np.float32)
EVERY_STEP = SamplingArgs(0.5, 3, 0.8, 0.1, 2.0, seed=1)


def test_each_step_that_is_on_is_a_stage_with_its_probabilities_in_the_order_of_the_sampling():
    sampler = Sampler(EVERY_STEP)
    sampler.observe([1])
    choice = explain_choice(sampler, LOGITS, 3, 7, 6)
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
    by_token = {found.token_id: found.probabilities for found in choice.candidates}
    # Lower ids first among equals; -inf has no chance.
    assert list(by_token) == [
        1,
        3,
        2,
        0,
        5,
    ]
    penalised = np.array([1.0, 1.5, 2.0, 3.0, -np.inf, 0.0])
    warmed = penalised / 0.5
    kept = softmax([1.5 / 0.5, 2.0 / 0.5, 3.0 / 0.5])
    for token, probabilities in by_token.items():
        expected = [
            softmax(LOGITS)[token],
            softmax(penalised)[token],
            softmax(warmed)[token],
        ]
        assert probabilities[:3] == pytest.approx(expected, rel=1e-6)
    assert [by_token[token][3] for token in (1, 2, 3)] == pytest.approx(
        list(kept), rel=1e-6
    )
    assert by_token[3][4:] == (1.0, 1.0)
    assert by_token[0][3:] == (0.0, 0.0, 0.0)


def test_the_last_stage_is_what_is_drawn_from():
    logits = np.random.default_rng(1).normal(0, 4, 6000).astype(np.float32)
    for args in (
        SamplingArgs(),
        SamplingArgs(top_k=0, min_p=0.02, top_p=1.0),
        EVERY_STEP,
    ):
        sampler = Sampler(args)
        sampler.observe(range(30))
        *_, (_, _, ids, probabilities) = sampler.stages(logits)
        expected = sampler.distribution(logits)
        assert np.array_equal(ids, expected[0])
        assert np.array_equal(probabilities, expected[1])


def test_temperature_zero_leaves_one_token_and_no_further_step_and_what_is_off_is_none():
    off = explain_choice(Sampler(SamplingArgs(1.0, top_k=0, top_p=1.0)), LOGITS, 0, 0, 1)
    assert [stage.name for stage in off.stages] == ["model"]
    args = SamplingArgs(temperature=0.0, top_k=3, top_p=0.5, repeat_penalty=2.0)
    sampler = Sampler(args)
    sampler.observe([1])
    choice = explain_choice(sampler, LOGITS, 3, 0, 1)
    assert [stage.name for stage in choice.stages] == [
        "model",
        "repeat_penalty",
        "temperature",
    ]
    assert choice.stages[-1].kept == 1
    # The drawn one comes last.
    assert [found.token_id for found in choice.candidates] == [
        1,
        3,
    ]
    assert [found.probabilities[-1] for found in choice.candidates] == [0.0, 1.0]


def test_a_logit_bias_is_added_before_all_other_steps():
    logits = random_logits(3, 6000)
    bias = {0: 1.5, 17: -2.25, 4000: 7.0, 5999: 0.0}
    moved = logits.copy()
    for token, value in bias.items():
        moved[token] = np.float32(np.float64(moved[token]) + value)
    for settings in (
        {},
        {"temperature": 0.0},
        {"top_k": 9, "top_p": 0.8, "repeat_penalty": 1.4},
        {"min_p": 0.05, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    ):
        for pairs in (
            bias,
            [*reversed(bias.items())],
            [[*pair] for pair in bias.items()],
        ):
            biased = sampler(**settings, logit_bias=pairs)
            plain = sampler(**settings)
            for one in (biased, plain):
                one.observe([17, 4000, 5])
                one.observe([0, 4000], is_drawn=True)
            before = logits.copy()
            for _ in range(20):
                assert biased.sample(logits, 0) == plain.sample(moved, 0)
            assert np.array_equal(logits, before)
            for found, expected in zip(
                biased.distribution(logits), plain.distribution(moved), strict=True
            ):
                assert np.array_equal(found, expected)


def test_a_bias_of_100_forces_a_token_and_one_of_minus_100_bans_it():
    logits = random_logits(4)
    best = int(logits.argmax())
    for settings in (
        {},
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    ):
        forcing = sampler(**settings, logit_bias={123: 100})
        banning = sampler(**settings, logit_bias={best: -100})
        assert {forcing.sample(logits, 0) for _ in range(20)} == {123}
        assert best not in {banning.sample(logits, 0) for _ in range(200)}
    # A grammar that allows one token alone draws it, whatever its bias.
    alone = np.full(9, -np.inf, np.float32)
    alone[4] = 1.0
    for token in range(9):
        assert sampler(logit_bias={token: 100.0, 4: -100.0}).sample(alone, 0) == 4


def test_a_bias_leaves_the_probability_by_the_model_and_is_a_stage():
    args = SamplingArgs(
        1.0, top_k=0, top_p=1.0, repeat_penalty=2.0, logit_bias={0: 2.0, 3: -1.0}
    )
    biased = Sampler(args)
    biased.observe([3])
    choice = explain_choice(biased, LOGITS, 0, 7, 6)
    plain = explain_choice(Sampler(SamplingArgs()), LOGITS, 0, 7, 6)
    assert [(stage.name, stage.value) for stage in choice.stages] == [
        ("model", None), ("logit_bias", None), ("repeat_penalty", 2.0)
    ]  # fmt: skip
    moved = softmax([3.0, 3.0, 2.0, 2.0, -np.inf, 0.0])
    last = softmax([3.0, 3.0, 2.0, 1.0, -np.inf, 0.0])
    for found, expected in zip(choice.candidates, plain.candidates, strict=True):
        assert found.log_probability == expected.log_probability
        assert found.probabilities[0] == expected.probabilities[0]
        assert found.probabilities[1] == pytest.approx(moved[found.token_id], rel=1e-6)
        assert found.probabilities[2] == pytest.approx(last[found.token_id], rel=1e-6)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({-1: 1.0}, "the ids in logit_bias must be >= 0: got -1"),
        ({"5": 1.0}, "the ids in logit_bias must be >= 0: got '5'"),
        ({True: 1.0}, "the ids in logit_bias must be >= 0: got True"),
        ({5: 100.5}, "logit_bias must be from -100 to 100 for token 5: got 100.5"),
        (
            {5: math.nan},
            "logit_bias must be finite and from -100 to 100 for token 5: got nan",
        ),
        ({5: "1"}, "logit_bias must be a number for token 5: got str"),
        ({5: True}, "logit_bias must be a number for token 5: got bool"),
        (
            {5: 10**400},
            "logit_bias must be finite for token 5: got a number beyond float64",
        ),
        ([(5, 1.0), (5, 2.0)], "logit_bias must have each id once: got 5 twice"),
        ([5], "logit_bias must map token ids to numbers: got list"),
        (None, "logit_bias must map token ids to numbers: got NoneType"),
    ],
)
def test_a_wrong_logit_bias_is_an_error_that_names_the_token(bias, message):
    with pytest.raises(SamplingError) as error:
        SamplingArgs(logit_bias=bias)
    assert str(error.value) == f"[sampling] {message}"
    valid = SamplingArgs(logit_bias={7: 100, 5: -100.0})
    assert valid.logit_bias == ((5, -100.0), (7, 100.0))
    assert hash(valid) == hash(SamplingArgs(logit_bias=valid.logit_bias))


def test_a_bias_beyond_the_vocabulary_is_an_error_that_names_the_id(model):
    size = model.args.vocab_size
    engine = InferenceEngine(model, 64)
    rule = r"^\[sampling\] logit_bias must have ids below the size of the vocabulary: "
    wrong = SamplingArgs(0.0, logit_bias={3: 1.0, size: 1.0})
    with pytest.raises(SamplingError, match=f"{rule}{size} >= {size}$"):
        list(engine.generate([1, 2], 3, wrong))
    with pytest.raises(SamplingError, match=f"{rule}{size} >= {size}$"):
        Sampler(wrong).sample(np.zeros(size, np.float32), 0)
    (step,) = engine.generate([1, 2], 1, SamplingArgs(0.0, logit_bias={size - 1: 100.0}))
    assert step.token_id == size - 1


def test_to_tell_of_candidates_changes_no_token(model):
    prompt = token_ids(BYTES_VOCAB, 6, seed=5)
    args = SamplingArgs(temperature=1.5, repeat_penalty=1.3, seed=4)
    engine = InferenceEngine(model, 40)
    plain = list(engine.generate(prompt, 12, args))
    told = list(engine.generate(prompt, 12, args, candidates=3))
    assert [step.token_id for step in told] == [step.token_id for step in plain]
    assert all(step.choice is None for step in plain)
    for place, step in enumerate(told, len(prompt)):
        assert (step.choice.token_id, step.choice.position) == (step.token_id, place)
        drawn = {found.token_id: found for found in step.choice.candidates}[step.token_id]
        assert drawn.probabilities[-1] > 0.0
        assert len(step.choice.candidates) in (3, 4)
        before = [found.probabilities[0] for found in step.choice.candidates[:3]]
        assert before == sorted(before, reverse=True)


def test_log_probabilities_are_natural_and_the_models_own():
    logits = np.array([1.0, 3.0, 2.0, -200.0, -np.inf, 0.5, -4000.0], np.float32)
    sampler = Sampler(EVERY_STEP)
    sampler.observe([1, 2])
    choice = explain_choice(sampler, logits, 1, 0, 7)
    exact = logits.astype(np.float64)
    log_sum = np.log(np.exp(exact[exact > -1000.0]).sum())
    found = {each.token_id: each.log_probability for each in choice.candidates}
    assert list(found) == [1, 2, 0, 5, 3, 6]  # -inf has no chance, -4000 has a tiny one
    for token, log_probability in found.items():
        assert log_probability == pytest.approx(exact[token] - log_sum, rel=1e-12)
    assert sum(map(np.exp, found.values())) == pytest.approx(1.0, abs=1e-12)
    # One possible token.
    choice = explain_choice(Sampler(SamplingArgs()), logits[4:6], 1, 0, 5)
    assert [(each.token_id, each.log_probability) for each in choice.candidates] == [
        (1, 0.0)
    ]


@pytest.mark.oracle
def test_log_probabilities_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(2).normal(0, 5, 50000).astype(np.float32)
    choice = explain_choice(Sampler(SamplingArgs()), logits, int(logits.argmin()), 0, 20)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), 0)
    top = torch.topk(expected, 20)
    assert [each.token_id for each in choice.candidates[:20]] == top.indices.tolist()
    for each in choice.candidates:
        assert each.log_probability == pytest.approx(
            expected[each.token_id].item(), rel=1e-9
        )


# Choosing among many weights gives what sorting all of them would give.
SIZES = [1, 2, 255, 256, 257, MANY, MANY + 1, 30000]


def values(size: int, kind: str) -> np.ndarray:
    generator = np.random.default_rng(size)
    made = {
        "spread": lambda: np.exp(3.0 * generator.standard_normal(size)),
        "flat": lambda: 1.0 - 1e-5 * generator.random(size),
        "few": lambda: generator.choice([0.25, 0.5, 1.0], size),
        "equal": lambda: np.ones(size),
        "zeros": lambda: np.where(generator.random(size) < 0.01, 1.0, 0.0),
    }[kind]()
    made[generator.integers(size)] = made.max()
    return (made / made.max() if made.max() else np.ones(size)).astype(np.float32)


KINDS = pytest.mark.parametrize("kind", ["spread", "flat", "few", "equal", "zeros"])


def top_p_of(given: np.ndarray, top_p: float) -> np.ndarray:
    """Returns the weights with 0 for those that top-p leaves out."""
    indices, weights = leave_out(given.copy(), *smallest_of_top_p(given, top_p))
    if indices is None:
        return weights
    kept = np.zeros_like(given)
    kept[indices] = weights
    return kept


@KINDS
@pytest.mark.parametrize("size", SIZES)
def test_the_k_largest_and_their_equals_are_found(size, kind):
    given = values(size, kind)
    for k in {k for k in (1, 2, 50, 600, size // 2, size) if 0 < k <= size}:
        expected = np.flatnonzero(given >= np.sort(given)[size - k])
        np.testing.assert_array_equal(at_least_kth_largest(given, k), expected)


@KINDS
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.3, 0.9, 0.999999, 1.0])
def test_top_p_keeps_the_fewest_largest_that_reach_it(size, kind, top_p):
    given = values(size, kind)
    kept = top_p_of(given, top_p)
    chosen = np.flatnonzero(kept)
    np.testing.assert_array_equal(kept[chosen], given[chosen])
    order = np.argsort(-given, kind="stable")
    assert set(chosen) == set(order[: chosen.size]) or top_p == 1.0
    total = math.fsum(given)
    reached = math.fsum(kept)
    assert reached >= top_p * total * (1 - 1e-12)
    if top_p < 1.0:  # without the smallest it would be too little
        assert reached - kept[chosen].min() <= top_p * total * (1 + 1e-12)


def test_top_p_behind_a_mask_never_searches_among_equal_zeros(monkeypatch):
    """That took three times as long as all else."""
    monkeypatch.setattr("src.inference.sampling.at_least_kth_largest", None)
    given = values(30000, "zeros")
    assert smallest_of_top_p(given, 0.5) == (1.0, math.ceil(np.count_nonzero(given) / 2))


@pytest.mark.parametrize("size", SIZES)
def test_each_share_falls_on_the_weight_that_covers_it(size):
    weights = values(size, "spread")
    ends = np.cumsum(weights, dtype=np.float64) / math.fsum(weights)
    for share in [0.0, 1 - 2**-53, *np.random.default_rng(1).random(200)]:
        place = draw(weights, share)
        assert ends[place] >= share - 1e-9
        assert (ends[place - 1] if place else 0.0) <= share + 1e-9


@pytest.mark.parametrize("size", [3, MANY + 700])
def test_a_weight_of_zero_is_never_drawn(size):
    for kept in (0, size // 2, size - 1):
        weights = np.zeros(size, np.float32)
        weights[kept] = 1e-30
        for share in (0.0, 0.5, 1 - 2**-53, 1.0):
            assert draw(weights, share) == kept
