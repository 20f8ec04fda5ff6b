"""Forms of calls and thoughts: chosen by a template, read however the text is cut, and
enforced.
"""

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from src.inference import ToolCall
from src.inference.answer_forms import (
    CALL_FORMS,
    THOUGHT_FORMS,
    CallForm,
    ThoughtForm,
    call_form_of,
    split_calls,
    split_thoughts,
    thought_form_of,
)
from src.inference.call_grammars import grammar_of_calls
from src.inference.grammars import Grammar, Grammars
from src.model import Model
from tests.inference import published_templates
from tests.inference.test_grammars import allowed_by, drawn

TEMPLATES = Path(__file__).parent / "templates"
CALLS = {form.name: form for form in CALL_FORMS}
THOUGHTS = {form.name: form for form in THOUGHT_FORMS}
MARKED = [form for form in CALL_FORMS if form.begin]
SEVERAL = [form for form in CALL_FORMS if form.between is not None]
HERMES = CALLS["hermes"]
LLAMA3 = CALLS["llama3"]

every_form = pytest.mark.parametrize("form", CALL_FORMS, ids=lambda form: form.name)
every_marked_form = pytest.mark.parametrize("form", MARKED, ids=lambda form: form.name)
every_form_of_several = pytest.mark.parametrize(
    "form", SEVERAL, ids=lambda form: form.name
)
every_thought_form = pytest.mark.parametrize(
    "form", THOUGHT_FORMS, ids=lambda form: form.name
)

# Braces, quotes and marks of forms in texts, and letters of several bytes.
NESTED = ToolCall(
    "get_x",
    r'{"a": {"b": [1, {"c": "}]{\" <tool_call> [TOOL_CALLS]"}]}, "d": "Città 東京 🌍"}',
)
EMPTY = ToolCall("b.c-d", "{}")
SPACED = ToolCall("f_2", '{ "x" : 1.0,\n "y":null }')

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"$ref": "#/$defs/s"},
    },
    "required": ["n", "s"],
    "additionalProperties": False,
    "$defs": {"s": {"type": "string", "maxLength": 5}},
}
GPT_OSS = (TEMPLATES / "openai-gpt-oss-120b.jinja").read_text("utf-8")
TOOLS = [
    {"type": "function", "function": {"name": "a", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "b.c-d", "parameters": SCHEMA}},
]


def written(form: CallForm, *calls: ToolCall) -> str:
    """Writes calls as a model with this form does."""
    texts = [
        form.call.replace("NAME", call.name)
        .replace("IDENTITY", f"call0000{number}")
        .replace("ARGUMENTS", call.arguments)
        for number, call in enumerate(calls)
    ]
    return form.begin + form.open + (form.between or "").join(texts) + form.close


def check_streamed(form: CallForm, text: str) -> tuple[str, list[ToolCall]]:
    """Splits a text at every cut: nothing that was passed on may be taken back."""
    expected_text, expected_calls = split_calls(form, text)
    passed = ""
    count = 0
    for end in range(len(text) + 1):
        said, calls = split_calls(form, text[:end], is_over=False)
        assert said.startswith(passed)
        assert expected_text.startswith(said)
        assert calls == expected_calls[: len(calls)]
        assert len(calls) >= count
        passed = said
        count = len(calls)
    return expected_text, expected_calls


# ---- calls -----------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize(
    "call", [NESTED, EMPTY, SPACED], ids=["nested", "empty", "spaced"]
)
def test_a_call_is_read_and_its_arguments_stay_as_they_are_written(form, call):
    assert check_streamed(form, written(form, call)) == ("", [call])


@every_form_of_several
def test_several_calls_are_read_in_their_order(form):
    calls = [NESTED, EMPTY, SPACED, EMPTY]
    assert check_streamed(form, written(form, *calls)) == ("", calls)


@every_marked_form
@pytest.mark.parametrize("before", ["Hi.", "Hi.\n", "Hi. {x} [1] <b>\n\n", "\n"])
def test_text_before_a_call_is_passed_on_without_the_blanks_at_its_end(form, before):
    text = before + written(form, EMPTY)
    assert check_streamed(form, text) == (before.rstrip(), [EMPTY])


@every_marked_form
def test_text_after_a_call_is_passed_on_and_mere_blanks_are_dropped(form):
    text = written(form, EMPTY)
    assert check_streamed(form, text + "\n\n") == ("", [EMPTY])
    assert check_streamed(form, f"Hi.\n{text}\n\nDone.") == ("Hi.\n\nDone.", [EMPTY])


@every_form
def test_an_answer_without_a_call_stays_as_it_is(form):
    for text in (
        "",
        "Hi.",
        "\n Hi.\n",
        "a < b",
        'Write {"name": "f"}.',
        '{"x": 1}',
        "[1]",
    ):
        assert check_streamed(form, text) == (text, [])


@every_form
def test_a_call_that_is_cut_is_text_and_is_held_back_before_the_end(form):
    whole = written(form, NESTED)
    begin = max(len(form.begin), 1)
    for end in range(begin, len(whole)):
        text = whole[:end]
        assert split_calls(form, text) == (text, [])
        assert split_calls(form, text, is_over=False) == ("", [])


@every_form
@pytest.mark.parametrize(
    "arguments",
    [
        "5",
        "[]",
        "null",
        "{1}",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1, "a": 2}',
        '"[]"',
        '"',
        "[" * 100_000,
    ],
)
def test_a_call_whose_arguments_are_not_an_object_is_text(form, arguments):
    call = form.call.replace("NAME", "f").replace("IDENTITY", "call00001")
    text = form.begin + form.open + call.replace("ARGUMENTS", arguments) + form.close
    assert split_calls(form, text) == (text, [])


@every_marked_form
def test_a_call_after_one_that_cannot_be_read_is_read(form):
    wrong = f"{form.begin} 5 "
    text = wrong + written(form, EMPTY)
    assert check_streamed(form, text) == (wrong.rstrip(), [EMPTY])


@every_form
def test_arguments_may_be_the_text_of_an_object(form):
    arguments = json.dumps(NESTED.arguments)
    call = form.call.replace("NAME", NESTED.name).replace("IDENTITY", "call00001")
    text = form.begin + form.open + call.replace("ARGUMENTS", arguments) + form.close
    assert check_streamed(form, text) == ("", [NESTED])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"arguments":{"x":1},"name":"f"}</tool_call>'),
        ("hermes", ('<tool_call>\n\n{ "name" : "\\u0066", "arguments": {"x":1} }\n '
                   '</tool_call>')),
        ("hermes", '<tool_call>{"name": "f", "parameters": {"x":1}}</tool_call>'),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {"x":1}}'),
        ("llama3", '{"type": "function", "name": "f", "parameters": {"x":1}}\n'),
        ("mistral-v3", '[TOOL_CALLS][{"name":"f","arguments":{"x":1},"id":"abc123XYZ"}]'),
        ("mistral-nemo", '[TOOL_CALLS] [ {"name": "f", "arguments": {"x":1}} ]'),
        ("mistral-named", '[TOOL_CALLS]f[ARGS] {"x":1}'),
        ("deepseek-r1", "<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
         '```json\n{"x":1}\n```\n<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>'),
        ("granite-3", '<tool_call>[{"name": "f", "arguments": {"x":1}}]'),
        ("phi-4-mini", '<|tool_call|>[{"name":"f","arguments":{"x":1}}]<|/tool_call|>'),
        ("functools", 'functools[{"name": "f", "arguments": {"x":1}}]'),
    ],
)  # fmt: skip
def test_blanks_the_order_of_keys_and_keys_of_no_importance_do_not_matter(name, text):
    assert check_streamed(CALLS[name], text) == ("", [ToolCall("f", '{"x":1}')])


def test_a_call_without_arguments_has_none_where_marks_show_that_it_is_a_call():
    assert split_calls(HERMES, '<tool_call>{"name": "f"}</tool_call>')[1] == [
        ToolCall("f", "{}")
    ]
    assert split_calls(LLAMA3, '{"name": "f"}') == ('{"name": "f"}', [])


@pytest.mark.parametrize(
    "members",
    ['"name": 5, "arguments": {}', '"name": "", "arguments": {}', '"arguments": {}',
     ('"name": "f", "arguments": {}, "parameters": '
     '{}'), '"name": "f", "name": "g"', "", '"f"'],
)  # fmt: skip
def test_an_object_without_one_name_and_one_value_of_arguments_is_text(members):
    for form, text in (
        (HERMES, f"<tool_call>{{{members}}}</tool_call>"),
        (LLAMA3, f"{{{members}}}"),
    ):
        assert split_calls(form, text) == (text, [])


def test_a_call_that_is_a_whole_answer_has_no_text_around_it():
    call = written(LLAMA3, EMPTY)
    for text in (
        f"Hi. {call}",
        f"{call} Done.",
        f"{call}\n{call}",
        "<|python_tag|>f.call(x=1)",
    ):
        assert check_streamed(LLAMA3, text) == (text, [])


def test_a_list_with_a_wrong_call_is_text():
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": 5}]'
    assert check_streamed(CALLS["mistral-nemo"], text) == (text, [])


@every_form
def test_whatever_an_answer_is_made_of_nothing_that_was_passed_on_is_taken_back(form):
    chance = random.Random(form.name)
    parts = ["Hi.", " ", "\n", "{", "}", "[", "]", '"', "<", ",", written(form, EMPTY)]
    parts += [form.open, form.between or "", form.close, *form.begins, *form.begins]
    parts += [written(form, NESTED)[: chance.randrange(200)] for _ in range(4)]
    for _ in range(60):
        check_streamed(form, "".join(chance.choices(parts, k=chance.randrange(12))))


@every_form
def test_hostile_answers_are_read_in_time(form):
    begin = form.begins[0]
    name = form.call.partition("NAME")[0]
    started = time.perf_counter()
    for text in (
        begin * 10_000,
        begin + form.open + " " * 100_000,
        begin + form.open + name + "a" * 100_000,
        begin + form.open + "[" * 100_000,
        (begin + form.open + name + 'a"') * 2_000,
    ):
        assert split_calls(form, text) == (text, [])
    assert time.perf_counter() - started < 5  # each takes some milliseconds


def test_a_call_of_more_than_a_million_characters_is_text():
    call = ToolCall("f", json.dumps({"x": "x" * (1 << 20)}))
    text = written(HERMES, call)
    assert split_calls(HERMES, text) == (text, [])


@every_thought_form
def test_calls_inside_of_thoughts_do_not_count(form):
    for calls in MARKED:
        answer = f"{form.begin}\n{written(calls, NESTED)}\n{form.end}Hi.\n{written(calls, EMPTY)}"
        thought, said = split_thoughts(answer, form=form)
        assert thought == written(calls, NESTED)
        assert split_calls(calls, said) == ("Hi.", [EMPTY])


# ---- thoughts --------------------------------------------------------------------------


def check_thoughts(form: ThoughtForm, text: str, opened: bool = False) -> tuple[str, str]:
    """Splits a text at every cut: nothing that was passed on may be taken back."""
    passed = ["", ""]
    for end in range(len(text) + 1):
        parts = split_thoughts(text[:end], opened, end == len(text), form)
        for number, part in enumerate(parts):
            assert part.startswith(passed[number])
            passed[number] = part
    assert tuple(passed) == split_thoughts(text, opened, form=form)
    return passed[0], passed[1]


@every_thought_form
@pytest.mark.parametrize(
    ("text", "opened", "parts"),
    [
        ("BEGIN\nHm. 東京\n\nSo.\nEND\n\nYes.", False, ("Hm. 東京\n\nSo.", "Yes.")),
        ("\nBEGIN\n\nEND\n\nYes.", False, ("", "Yes.")),
        ("BEGINHm.ENDYes.", True, ("Hm.", "Yes.")),
        ("Hm.\nEND\n\nYes.", True, ("Hm.", "Yes.")),
        ("BEGIN\nHm.\n\nSo <b", False, ("Hm.\n\nSo <b", "")),
        ("Yes. BEGIN is a mark", False, ("", "Yes. BEGIN is a mark")),
        ("<thin ice", False, ("", "<thin ice")),
        ("BEGINaENDbENDc", False, ("a", "bENDc")),
        ("Here is it.", False, ("", "Here is it.")),
        ("", False, ("", "")),
    ],
)
def test_thoughts_are_separated_however_the_text_is_cut(form, text, opened, parts):
    def with_marks(text: str) -> str:
        return text.replace("BEGIN", form.begin).replace("END", form.end)

    expected = (with_marks(parts[0]), with_marks(parts[1]))
    assert check_thoughts(form, with_marks(text), opened) == expected


@pytest.mark.parametrize("name", ["granite-3.3", "command"])
def test_marks_around_the_rest_of_an_answer_are_left_out(name):
    form = THOUGHTS[name]
    begun = f"{form.begin}Hm.{form.end}\n"
    said = f"{form.said_begin}\nIt is 5.\n\nYes.\n{form.said_end}"
    assert check_thoughts(form, begun + said) == ("Hm.", "It is 5.\n\nYes.")
    assert check_thoughts(form, f"{begun}{form.said_begin}Yes <") == ("Hm.", "Yes <")
    assert check_thoughts(form, f"{begun}Yes.{form.said_end}") == (
        "Hm.",
        f"Yes.{form.said_end}",
    )


HARMONY = THOUGHTS["harmony"]
START = "<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
CALLED = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{ANALYSIS}Hm.<|end|>{START}{FINAL}Yes.", ("Hm.", "Yes.")),
        (f"{ANALYSIS}Hm.<|end|>{START}{FINAL}Yes.<|return|>", ("Hm.", "Yes.")),
        (f"{FINAL}Yes, <|\n", ("", "Yes, <|\n")),
        (f"{ANALYSIS}a\n<|end|>{START}{ANALYSIS}b<|end|>{START}{FINAL}c", ("a\n\nb", "c")),
        (
            f"{ANALYSIS}a<|end|>{START}<|channel|>commentary<|message|>I look.<|end|>"
            f"{START}{FINAL}c",
            ("a", "I look.\n\nc"),
        ),
        (f"{ANALYSIS}a<|end|>{START}<|chan", ("a", "")),
        (f"{ANALYSIS}a<|end|>{START}<|channel|>final", ("a", "")),
        (f"{ANALYSIS}a<|en", ("a<|en", "")),
        (f"{ANALYSIS}a<|end|>{START}{CALLED}", ("a", CALLED)),
        (f"{CALLED}<|call|>", ("", CALLED)),
        (
            ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>',
            ("", CALLED),
        ),
        (f"{START} to=functions.f<|channel|>commentary<|message|>{{}}",
         ("", CALLED.replace('{"x": 1}', "{}"))),
        (f"{START}<|channel|>{'x' * 400}", ("", f"{START}<|channel|>{'x' * 400}")),
    ],
)  # fmt: skip
def test_channels_are_thoughts_text_and_calls_however_the_text_is_cut(text, parts):
    assert check_thoughts(HARMONY, text) == parts


def test_a_call_in_a_channel_is_read():
    text = f"{ANALYSIS}Hm.<|end|>{START}{CALLED}"
    thought, said = split_thoughts(text, form=HARMONY)
    assert thought == "Hm."
    assert split_calls(CALLS["harmony"], said) == ("", [ToolCall("f", '{"x": 1}')])


def test_whatever_messages_an_answer_has_nothing_that_was_passed_on_is_taken_back():
    parts = [ANALYSIS, FINAL, START, CALLED, *(f"<|{x}|>" for x in ("end", "call")), "a",
             "\n", " to=", "<|", "<|channel|>", "commentary", "<|message|>"]  # fmt: skip
    generator = random.Random(1)
    for _ in range(300):
        check_thoughts(HARMONY, "".join(generator.choices(parts, k=8)))


# ---- templates -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "calls", "thoughts"),
    [
        (published_templates.LLAMA3, None, None),
        (published_templates.LLAMA3_1, "llama3", None),
        (published_templates.LLAMA2, None, None),
        (published_templates.SMOLLM2, None, None),
        (published_templates.QWEN25, "hermes", None),
        (published_templates.QWEN3, "hermes", "think"),
        (published_templates.SMOLLM3, None, "think"),
        (published_templates.DEEPSEEK_R1, None, "think"),
        ("{{ '<tool_call>\\n<function=' + name + '>' }}{{ call.arguments }}", None, None),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", None, None),
        (
            ('<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args>}'),
            "hermes",
            None,
        ),
        ("{{- '[TOOL_CALLS] [' }}", "mistral-v3", None),
        ("{{- '[TOOL_CALLS][' }}", "mistral-nemo", None),
        (
            ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}[THINK][/THINK]"),
            "mistral-named",
            "mistral",
        ),
        (
            ("{{ '[TOOL_CALLS]' }}{{ '[CALL_ID]' + id + '[ARGS]' }}"),
            "mistral-small-3.2",
            None,
        ),
        ("'<｜tool▁calls▁begin｜>' '\\n' + '```json'", "deepseek-r1", None),
        ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name", "deepseek-v3.1", None),
        (
            "respond with <|tool_call|> followed by a JSON list. Write your thoughts "
            "after 'Here is my thought process:' and write your response after 'Here is "
            "my response:'",
            "granite-3",
            "granite-3.2",
        ),
        (
            "respond only with <|tool_call|> ... between <think></think> and write your "
            "response between <response></response>",
            "granite-3",
            "granite-3.3",
        ),
        ("'<|tool|>' + message['tools'] + '<|/tool|>'", "phi-4-mini", None),
        (
            '\'<|/tool|>\' respond in this format: <|tool_call|>{"name": "foo"',
            "phi-4-mini-objects",
            None,
        ),
        ('<|start_header_id|> formatted as functools[{"name": ', "functools", None),
        ("<|start_header_id|>'<TOOLCALL>['", "nemotron", None),
        (
            ("'<function=' + name + '>' + arguments + '</function>'"),
            "functionary-v3.1",
            None,
        ),
        ("<|START_THINKING|> and <|END_THINKING|>", None, "command"),
        (GPT_OSS, "harmony", "harmony"),
    ],
)
def test_the_marks_of_a_template_choose_the_forms(template, calls, thoughts):
    assert call_form_of(template) == CALLS.get(calls)
    assert thought_form_of(template) == THOUGHTS.get(thoughts)


def test_every_form_has_a_name_that_no_other_one_has():
    assert len(CALLS) == len(CALL_FORMS)
    assert len(THOUGHTS) == len(THOUGHT_FORMS)


# ---- grammars --------------------------------------------------------------------------


@every_form
def test_arguments_follow_the_schema_of_the_function_that_is_called(
    form, bundled, grammars
):
    jsonschema = pytest.importorskip("jsonschema")
    chance = random.Random(2)
    names = set()
    counts = set()
    for number in range(24):
        many = number % 2 == 0
        text = grammar_of_calls(form, TOOLS, True, many)
        answer = drawn(grammars.mask(Grammar("lark", text)), bundled, chance, 400)
        if answer is None:
            continue
        said, calls = split_calls(form, answer)
        assert not said
        assert calls
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMA)
        names.update(call.name for call in calls)
        counts.add(len(calls))
        assert len(calls) == 1 or (many and form in SEVERAL)
    assert names == {"a", "b.c-d"}
    assert (max(counts) > 1) == (form in SEVERAL)


def is_allowed(
    grammars: Grammars, bundled: Model, grammar: str, *pieces: str | int
) -> bool:
    """Tells whether an answer of texts and tokens follows a grammar, up to its end."""
    spelled = [
        bundled.tokenizer.token_bytes(token) for token in range(bundled.args.vocab_size)
    ]
    mask = grammars.mask(Grammar("lark", grammar))
    try:
        for piece in pieces:
            rest = piece.encode() if isinstance(piece, str) else b""
            if isinstance(piece, int):
                if piece not in allowed_by(mask):
                    return False
                mask.accept(piece)
            while rest:  # the longest token that may come and goes on with the text
                begun = [
                    t
                    for t in allowed_by(mask)
                    if spelled[t] and rest.startswith(spelled[t])
                ]
                if not begun:
                    return False
                token = max(begun, key=lambda token: len(spelled[token]))
                mask.accept(token)
                rest = rest[len(spelled[token]) :]
        return bool(bundled.stop_ids.intersection(allowed_by(mask)))
    finally:
        mask.close()


RIGHT = ToolCall("a", '{"n": 7, "s": "x"}')
WRONG = (ToolCall("a", '{"n": 100, "s": "x"}'), ToolCall("z", '{"n": 7, "s": "x"}'))


@every_form
def test_an_answer_may_be_text_or_calls_that_are_right(form, bundled, grammars):
    grammar = grammar_of_calls(form, TOOLS, False, True)

    def allows(text: str) -> bool:
        return is_allowed(grammars, bundled, grammar, text)

    assert allows("")
    assert allows("It is 5 {x}.\n")
    assert allows(written(form, RIGHT))
    assert allows(written(form, RIGHT, RIGHT)) == (form in SEVERAL)
    assert allows("Hi.\n" + written(form, RIGHT)) or form is LLAMA3
    for wrong in WRONG:
        assert not allows(written(form, wrong))
        for begin in form.other_begins:
            assert not allows(written(replace(form, begin=begin), wrong))
    for begin in form.other_begins:
        assert allows(written(replace(form, begin=begin), RIGHT))


@pytest.mark.parametrize(
    "name", ["mistral-small-3.2", "mistral-v3", "deepseek-r1", "llama3"]
)
def test_marks_that_are_special_tokens_are_written_as_these_tokens(
    name, bundled, grammars
):
    specials = bundled.tokenizer.special_tokens
    form = CALLS[name]
    # The bundled tokenizer has only Llama's special tokens, so they get other names here.
    if name == "llama3":
        ids = {"<|python_tag|>": specials["<|python_tag|>"]}
    else:
        marks = [
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁sep｜>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
        ]
        ids = {
            mark: specials[f"<|reserved_special_token_{n}|>"]
            for n, mark in enumerate(marks)
        }

    def pieces_of(text: str) -> list[str | int]:
        pieces: list[str | int] = [text]
        for mark, token in ids.items():
            for piece in [
                piece for piece in pieces if isinstance(piece, str) and mark in piece
            ]:
                at = pieces.index(piece)
                before, *rest = piece.split(mark)
                pieces[at : at + 1] = [
                    before,
                    *(new for text in rest for new in (token, text)),
                ]
        return pieces

    begin = "".join(form.begins)
    marked = replace(form, begin=begin)
    for is_required in (False, True):
        if is_required and name == "llama3":
            continue
        grammar = grammar_of_calls(form, TOOLS, is_required, True, ids)
        right = pieces_of(written(marked, RIGHT))
        assert any(isinstance(piece, int) for piece in right)
        assert is_allowed(grammars, bundled, grammar, *right)
        for wrong in WRONG:
            assert not is_allowed(
                grammars, bundled, grammar, *pieces_of(written(marked, wrong))
            )
        assert is_allowed(grammars, bundled, grammar, "Hi. {") != is_required
        assert not is_allowed(grammars, bundled, grammar, begin + "x")
