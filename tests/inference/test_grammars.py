"""Masks by llguidance: answers follow them, and hostile grammars are refused in time."""

import json
import os
import random
import re
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.inference import (
    BatchEngine,
    GrammarError,
    InferenceEngine,
    Message,
    SamplingArgs,
)
from src.inference.errors import ClosedError, GrammarLimitError
from src.inference.grammars import (
    MOST_KEPT,
    MOST_USED,
    MOST_USED_BY_CLIENT,
    Grammar,
    GrammarMask,
    Grammars,
)
from src.model import Model
from tests.server.running import wait_until
from tests.support.many import many

pytest.importorskip("llguidance", reason="the serve extra is not installed")


def allowed_by(mask: GrammarMask) -> list[int]:
    bits = np.unpackbits(mask.allowed().view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def drawn(
    mask: GrammarMask, model: Model, chance: random.Random, most: int
) -> str | None:
    """Draws tokens that may come with equal chances; returns the text, None where it was
    cut.
    """
    ids: list[int] = []
    try:
        for _ in range(most):
            token = chance.choice(allowed_by(mask))
            mask.accept(token)
            if token in model.stop_ids:
                return model.tokenizer.decode(ids)
            ids.append(token)
        return None
    finally:
        mask.close()


def schema_of(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    """Returns a random schema."""
    low = chance.randrange(3)
    kinds = ["object", "array", "anyOf", "plain", "plain"]
    match chance.choice(kinds) if depth else "plain":
        case "object":
            names = chance.sample(
                ["a", "b c", "é", 'x"y', "long_name", "1"], chance.randrange(4)
            )
            required = [name for name in names if chance.random() < 0.7]
            properties = {name: schema_of(chance, depth - 1) for name in names}
            return {"type": "object", "required": required, "additionalProperties": False,
                    "properties": properties}  # fmt: skip
        case "array":
            return {
                "type": "array",
                "items": schema_of(chance, depth - 1),
                "minItems": low,
                "maxItems": low + chance.randrange(3),
            }
        case "anyOf":
            return {"anyOf": [schema_of(chance, depth - 1) for _ in range(2)]}
    return chance.choice(
        [
            {"type": chance.choice(["number", "boolean", "null"])},
            {"enum": chance.sample([1, "two", None, True, 2.5, "\u2028", "fünf"], 3)},
            {"const": chance.choice([0, "x", None, False])},
            {
                "type": "string",
                "pattern": chance.choice(["^[a-c]{1,4}$", "^\\d{3}-\\d$"]),
            },
            {"type": "string", "minLength": low, "maxLength": low + chance.randrange(9)},
            {
                "type": "integer",
                "minimum": low - 50,
                "maximum": low + chance.randrange(50),
            },
        ]
    )


@pytest.mark.parametrize("count", [60, many])
def test_what_is_drawn_by_random_schemas_validates(grammars, bundled, count):
    jsonschema = pytest.importorskip("jsonschema")
    chance = random.Random(count)
    complete = 0
    for _ in range(count):
        schema = schema_of(chance)
        mask = grammars.mask(Grammar("json_schema", json.dumps(schema)))
        text = drawn(mask, bundled, chance, 400)
        if text is not None:
            complete += 1
            jsonschema.validate(json.loads(text), schema)
    assert complete > count // 2


def test_an_engine_follows_a_grammar_and_drafts_change_nothing(grammars, bundled):
    grammar = Grammar("lark", 'start: "yes" | "no" | /[0-9]{2}/')
    for seed in range(10):
        answers = set()
        for speculation in (True, False):
            engine = InferenceEngine(bundled, 256, speculation=speculation)
            bias = {token: token % 11 - 5.0 for token in range(0, 2000, 1 + seed)}
            sampling = SamplingArgs(temperature=1.0, seed=seed, logit_bias=bias)
            mask = grammars.mask(grammar)
            steps = list(engine.chat([Message("user", "hi")], 20, sampling, mask=mask))
            assert steps[-1].stop_reason == "eot"
            answers.add("".join(step.text for step in steps))
        (answer,) = answers
        assert re.fullmatch(r"yes|no|\d\d", answer)


def test_an_answer_goes_on_within_its_grammar(grammars, bundled):
    begun = bundled.tokenizer.encode('{"a', bos=False, eos=False)
    schema = {"type": "object", "properties": {"abc": {"enum": [1]}}, "required": ["abc"],
              "additionalProperties": False}  # fmt: skip
    mask = grammars.mask(Grammar("json_schema", json.dumps(schema)), begun)
    rest = drawn(mask, bundled, random.Random(1), 200)
    assert rest is not None
    assert json.loads('{"a' + rest) == {"abc": 1}


def test_the_end_comes_only_where_the_grammar_ends(grammars, bundled):
    mask = grammars.mask(Grammar("regex", "a"))
    allowed = allowed_by(mask)
    assert not bundled.stop_ids.intersection(allowed)
    mask.accept(allowed[0])
    assert set(allowed_by(mask)) == set(bundled.stop_ids)


def chain(count: int, rule: str) -> str:
    return "\n".join(rule.format(n=n, m=n + 1) for n in range(count))


HOSTILE = {
    "no json": ("json_schema", "{"),
    "a list": ("json_schema", "[]"),
    "twice": ("json_schema", '{"type":"string","type":"object"}'),
    "unknown keyword": ("json_schema", '{"not":{}}'),
    "unknown type": ("json_schema", '{"type":"wizard"}'),
    "leads elsewhere": ("json_schema", '{"$ref":"http://localhost/x"}'),
    "leads to a file": ("json_schema", '{"$ref":"file:///etc/passwd"}'),
    "leads to itself": ("json_schema", '{"$ref":"#"}'),
    "deep": ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    "very deep": ("json_schema", "[" * 200_000),
    "long": ("json_schema", json.dumps({"enum": ["x" * 300_000]})),
    "powers": (
        "json_schema",
        json.dumps({"type": "string", "pattern": "^(a{1000}){1000}$"}),
    ),
    "many of all": (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"type": "string", "pattern": f".*{n}.{{30}}"} for n in range(200)
                ]
            }
        ),
    ),
    "products": (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{name}{n}": {}}} for name in "ab"]}
                    for n in range(16)
                ]
            }
        ),
    ),
    "regex": ("regex", "("),
    "regex of powers": ("regex", "(a{1000}){1000}"),
    "deep regex": ("regex", "(" * 50_000 + ")" * 50_000),
    "no lark": ("lark", "\x00\xff:::"),
    "no start": ("lark", "x: y"),
    "deep lark": ("lark", "start: " + "(" * 60 + '"a"'),
    "doubling": ("lark", "start: A0\n" + chain(40, "A{n}: A{m} A{m}") + '\nA40: "x"'),
    "kind": ("bnf", "x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_time_and_memory(grammars, name):
    def usage() -> tuple[float, int]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime, own.ru_maxrss

    def use() -> None:
        mask = grammars.mask(Grammar(*HOSTILE[name]))
        for _ in range(20):  # some show what they are with the first tokens
            mask.accept(allowed_by(mask)[0])

    before = usage()
    started = time.perf_counter()
    with pytest.raises(GrammarError, match=r"^\[grammar\] ") as refused:
        use()
    after = usage()
    assert after[0] - before[0] < 1
    assert (after[1] - before[1]) << 10 < 64 << 20
    assert time.perf_counter() - started < 8  # the child is bounded by processor time
    assert "\n" not in str(refused.value)
    mask = grammars.mask(Grammar("regex", "yes"))  # and the next one works
    mask.allowed()
    mask.close()


# ---- processes -------------------------------------------------------------------------

# Each token is ambiguous, so that a mask takes longer with every token before it.
AMBIGUOUS = Grammar("lark", 'start: e\ne: e e | e e e | "a" | "b" | "ab"')


@pytest.fixture
def own_grammars(bundled: Model) -> Iterator[Grammars]:
    """Processes that a test may stop and kill."""
    grammars = Grammars(bundled.tokenizer, bundled.stop_ids)
    yield grammars
    grammars.close(kills=True)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def follow(mask: GrammarMask, tokens: list[int]) -> None:
    for token in tokens:
        mask.accept(token)
        mask.allowed()


def test_equal_grammars_are_compiled_once(own_grammars, bundled):
    grammar = Grammar("regex", "(yes|no){3}")
    with ThreadPoolExecutor(8) as pool:
        masks = [*pool.map(own_grammars.mask, [grammar] * 20)]
    assert len(children(own_grammars._process.pid)) == 1
    texts = [
        drawn(mask, bundled, random.Random(seed), 20) for seed, mask in enumerate(masks)
    ]
    assert all(re.fullmatch("(yes|no){3}", text) for text in texts)
    assert len({*texts}) > 1


def test_processes_end_with_what_uses_them(own_grammars):
    for number in range(MOST_KEPT + 5):
        mask = own_grammars.mask(Grammar("regex", f"[ab]{{{number + 1}}}"))
        mask.accept(allowed_by(mask)[0])
        mask.allowed()
        mask.close()
        del mask
    (first, *_) = compilers = children(own_grammars._process.pid)
    wait_until(lambda: len(children(own_grammars._process.pid)) == MOST_KEPT)
    wait_until(
        lambda: (
            not any(children(pid) for pid in compilers if Path(f"/proc/{pid}").exists())
        )
    )
    own_grammars.close()
    wait_until(lambda: not Path(f"/proc/{first}").exists())


def test_grammars_in_use_are_limited_in_all_and_by_client(own_grammars):
    uses = [
        own_grammars.use(
            Grammar("regex", f"a{{{number}}}"), client=number // MOST_USED_BY_CLIENT
        )
        for number in range(MOST_USED)
    ]
    same = own_grammars.use(Grammar("regex", "a{0}"), client=0)  # it is in use already
    with pytest.raises(
        GrammarLimitError, match=f"{MOST_USED} grammars are in use already"
    ):
        own_grammars.use(Grammar("regex", "b"), client="another")
    uses.pop().close()
    rule = f"{MOST_USED_BY_CLIENT} grammars of this client are in use already"
    with pytest.raises(GrammarLimitError, match=rule):
        own_grammars.use(Grammar("regex", "b"), client=0)
    with own_grammars.use(Grammar("regex", "b"), client="another") as use:
        use.compile()
    for each in (*uses, same):
        each.close()
        each.close()
    assert len(own_grammars._entries) <= MOST_KEPT


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("target", ["first", "compiler"])
def test_a_process_that_was_ended_or_stopped_is_replaced(
    own_grammars, target, number, monkeypatch
):
    monkeypatch.setattr("src.inference.grammars._SECONDS", 1.0)
    grammar = Grammar("regex", "yes|no")
    mask = own_grammars.mask(grammar)
    first = own_grammars._process.pid
    (compiler,) = children(first)
    os.kill(first if target == "first" else compiler, number)
    if number == signal.SIGKILL and target == "compiler":
        wait_until(lambda: not Path(f"/proc/{compiler}").exists())
    other = Grammar("regex", "yes") if target == "first" else grammar
    failed = 0
    while failed < 3:
        try:
            mask = own_grammars.mask(other)
            mask.accept(allowed_by(mask)[0])
            mask.allowed()
            break
        except GrammarError:
            failed += 1
    assert failed == (number == signal.SIGSTOP)  # its own request waits for it, and fails


def test_a_slow_mask_ends_its_own_answer(own_grammars, bundled):
    tokens = [bundled.tokenizer.encode(text, bos=False, eos=False)[0] for text in "ab"]
    mask = own_grammars.mask(AMBIGUOUS)
    with pytest.raises(
        GrammarError, match=r"the answer so far: expected masks within 0\.02 sec"
    ):
        follow(mask, tokens * 1000)


def test_requests_do_not_wait_for_the_mask_of_another_one(
    own_grammars, bundled, monkeypatch
):
    monkeypatch.setattr("src.inference.grammars._SECONDS", 3.0)
    sampling = SamplingArgs(temperature=0.0)
    with BatchEngine(bundled, sequence_length=256) as engine:
        expected = [step.token_id for step in engine.submit([1, 2, 3], 100, sampling)]
        mask = own_grammars.mask(Grammar("regex", "(yes|no){50}"))
        slow = engine.submit([4, 5], 100, sampling, mask=mask)
        next(slow)
        (compiler,) = children(own_grammars._process.pid)
        wait_until(lambda: len(children(compiler)) == 1)
        (follower,) = children(compiler)
        os.kill(follower, signal.SIGSTOP)
        started = time.monotonic()
        answer = [step.token_id for step in engine.submit([1, 2, 3], 100, sampling)]
        assert answer == expected
        assert time.monotonic() - started < 2.0
        with pytest.raises(GrammarError, match=r"the answer so far: .* got no response"):
            list(slow)
        assert time.monotonic() - started < 8.0
        again = engine.submit(
            [4, 5], 3, sampling, mask=own_grammars.mask(Grammar("regex", "yes"))
        )
        assert "".join(step.text for step in again) == "yes"


def test_an_answer_whose_mask_is_late_has_the_bits_of_one_alone(
    own_grammars, bundled, monkeypatch
):
    """No pass waits for a mask, so that each answer leaves out passes of the others."""
    monkeypatch.setattr("src.inference.batch._MASK_SECONDS", 0.0)
    grammar = Grammar("regex", "[a-z ]{40}")
    sampling = [SamplingArgs(temperature=1.0, seed=seed) for seed in range(4)]
    ids = [
        bundled.tokenizer.encode(text, bos=True, eos=False)
        for text in ("One", "Two words", "Three", "And four")
    ]
    expected = []
    for prompt, args in zip(ids, sampling, strict=True):
        engine = InferenceEngine(bundled, 256)
        steps = engine.generate(prompt, 60, args, mask=own_grammars.mask(grammar))
        expected.append([step.token_id for step in steps])
    with BatchEngine(bundled, sequence_length=256) as batch:
        requests = [
            batch.submit(prompt, 60, args, mask=own_grammars.mask(grammar))
            for prompt, args in zip(ids, sampling, strict=True)
        ]
        assert [[step.token_id for step in request] for request in requests] == expected


def test_close_ends_answers_under_way_if_it_kills(own_grammars):
    mask = own_grammars.mask(Grammar("regex", "(yes|no){50}"))
    mask.accept(allowed_by(mask)[0])
    mask.allowed()
    own_grammars.close(kills=True)
    mask.accept(0)
    with pytest.raises(GrammarError):
        mask.allowed()
    with pytest.raises(ClosedError, match="the process of the grammars was ended"):
        own_grammars.mask(Grammar("regex", "a"))


def test_the_process_ends_with_its_owner(bundled):
    grammars = Grammars(bundled.tokenizer, bundled.stop_ids)
    grammars.start()
    process = grammars._process
    assert process is not None
    assert process.poll() is None
    grammars.close()
    assert process.returncode == 0


def test_without_llguidance_the_extra_is_named(bundled, monkeypatch, tmp_path):
    (tmp_path / "absent.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setattr("src.inference.grammars._PROGRAM", tmp_path / "absent.py")
    rule = r"^grammars need llguidance 1.7 or later: run `pip install -e '.\[serve\]'` "
    rule += "in the repository$"
    with pytest.raises(GrammarError, match=rule):
        Grammars(bundled.tokenizer, [1]).start()
