"""Masks by llguidance: answers follow them, and hostile grammars are refused in time."""

import json
import random
import re
import resource
import time
from typing import Any

import numpy as np
import pytest

from src.inference import GrammarError, InferenceEngine, Message, SamplingArgs
from src.inference.grammars import Grammar, GrammarMask, Grammars
from src.model import Model

pytest.importorskip("llguidance", reason="the serve extra is not installed")


def allowed_by(mask: GrammarMask) -> list[int]:
    bits = np.unpackbits(mask.allowed().view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def drawn(mask: GrammarMask, model: Model, chance: random.Random, most: int) -> str | None:
    """Draws tokens that may come with equal chances; returns the text, None where it was cut."""
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
    low, kinds = chance.randrange(3), ["object", "array", "anyOf", "plain", "plain"]
    match chance.choice(kinds) if depth else "plain":
        case "object":
            names = chance.sample(["a", "b c", "é", 'x"y', "long_name", "1"], chance.randrange(4))
            required = [name for name in names if chance.random() < 0.7]
            properties = {name: schema_of(chance, depth - 1) for name in names}
            return {"type": "object", "required": required, "additionalProperties": False,
                    "properties": properties}  # fmt: skip
        case "array":
            return {"type": "array", "items": schema_of(chance, depth - 1), "minItems": low,
                    "maxItems": low + chance.randrange(3)}  # fmt: skip
        case "anyOf":
            return {"anyOf": [schema_of(chance, depth - 1) for _ in range(2)]}
    return chance.choice(
        [
            {"type": chance.choice(["number", "boolean", "null"])},
            {"enum": chance.sample([1, "two", None, True, 2.5, "\u2028", "fünf"], 3)},
            {"const": chance.choice([0, "x", None, False])},
            {"type": "string", "pattern": chance.choice(["^[a-c]{1,4}$", "^\\d{3}-\\d$"])},
            {"type": "string", "minLength": low, "maxLength": low + chance.randrange(9)},
            {"type": "integer", "minimum": low - 50, "maximum": low + chance.randrange(50)},
        ]
    )


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_is_drawn_by_random_schemas_validates(grammars, bundled, count):
    jsonschema = pytest.importorskip("jsonschema")
    chance, complete = random.Random(count), 0
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
            sampling = SamplingArgs(temperature=1.0, seed=seed)
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
    "powers": ("json_schema", json.dumps({"type": "string", "pattern": "^(a{1000}){1000}$"})),
    "many of all": ("json_schema", json.dumps(
        {"allOf": [{"type": "string", "pattern": f".*{n}.{{30}}"} for n in range(200)]})),
    "products": ("json_schema", json.dumps(
        {"allOf": [{"anyOf": [{"properties": {f"{name}{n}": {}}} for name in "ab"]}
                   for n in range(16)]})),
    "regex": ("regex", "("),
    "regex of powers": ("regex", "(a{1000}){1000}"),
    "deep regex": ("regex", "(" * 50_000 + ")" * 50_000),
    "no lark": ("lark", "\x00\xff:::"),
    "no start": ("lark", "x: y"),
    "deep lark": ("lark", "start: " + "(" * 60 + '"a"'),
    "doubling": ("lark", "start: A0\n" + chain(40, "A{n}: A{m} A{m}") + '\nA40: "x"'),
    "kind": ("bnf", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_time_and_memory(grammars, name):
    def usage() -> tuple[float, int]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime, own.ru_maxrss

    def use() -> None:
        mask = grammars.mask(Grammar(*HOSTILE[name]))
        for _ in range(20):  # some show what they are with the first tokens
            mask.accept(allowed_by(mask)[0])

    before, started = usage(), time.perf_counter()
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


def test_the_process_ends_with_its_owner(bundled):
    found = Grammars(bundled.tokenizer, bundled.stop_ids)
    found.close()
    assert found._process.returncode == 0
