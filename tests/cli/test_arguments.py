"""The command line as it is parsed: flags, refusals, help, names of other programs,
examples.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from src import __version__
from src.cli.arguments import (
    _NEEDS,
    _NOT_WITH,
    EXAMPLES,
    FLAGS,
    build_parser,
    example_lines,
    parse_arguments,
)
from src.cli.commands import run_command
from src.cli.flag_parser import _IGNORED, _REFUSED, OTHER_NAMES
from src.inference import CHAT_FORMATS, Request
from src.sampling_steps import STEPS
from src.trace.events import STAGES
from tests.cli.conftest import ALPHABET, REPOSITORY, run_code, session_of


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(arguments)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ([], {}),
        (["-"], {"standard_input": True}),
        (["-p", "a\udcffb"], {"prompt": "a\ufffdb"}),  # bytes that are not UTF-8
        (["-p", "-sane people"], {"prompt": "-sane people"}),  # a hyphen, and a blank
    ],
)
def test_what_is_not_given_has_its_default(arguments, fields):
    options = dataclasses.asdict(parse_arguments(arguments))
    given = {k: v for k, v in options.items() if v not in (None, False, ())}
    assert given == {"statistics": True, **fields}


def test_flags_arrive_in_the_record():
    options = parse_arguments(
        [
            *(
                "-p",
                "hi",
                "-s=short",
                "-m",
                "dir",
                "-c64",
                "-t2",
                "-n5",
                "-v",
                "--no-stats",
                "--json",
            ),
            *("--temperature=0", "--top-k=3", "--top-p=0.5", "--min-p=0.1", "--seed=7"),
            *(
                "--debug-log",
                "--trace-json=t",
                "--trace-layers=0,3-5",
                "--trace-stages=8",
            ),
            *(
                "--trace-statistics",
                "--trace-row=26:2",
                "--trace-steps=4",
                "--repeat-penalty=1.1",
                "--stop=END",
            ),
            *(
                "--stop=.",
                "--rope-scaling-factor=32",
                "--quantize=nf4",
                "--chat-format=llama2",
            ),
        ]
    )
    assert options == dataclasses.replace(
        parse_arguments([]),
        prompt="hi",
        system="short",
        model="dir",
        context_length=64,
        threads=2,
        max_tokens=5,
        verbose=True,
        statistics=False,
        json=True,
        temperature=0.0,
        top_k=3,
        top_p=0.5,
        min_p=0.1,
        seed=7,
        debug_log=Path("debug.log"),
        trace_json=Path("t"),
        trace_stages=(range(8, 9),),
        trace_layers=(range(1), range(3, 6)),
        trace_row=(26, 2),
        trace_statistics=True,
        trace_steps=(range(4, 5),),
        repeat_penalty=1.1,
        stop=("END", "."),
        rope_scaling_factor=32.0,
        quantize="nf4",
        chat_format="llama2",
    )


def test_the_help_lists_all_chat_formats_and_the_number_of_stages():
    text = " ".join(build_parser().format_help().split())
    assert ", ".join(CHAT_FORMATS) in text
    assert f"stage N of the {len(STAGES)} stages" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-n", "0"], "argument -n/--max-tokens: must be at least 1: got 0"),
        (["-c", "-1"], "argument -c/--context-length: must be 0 or more: got -1"),
        (["-c", "1.5"], "must be a whole number: got 1.5"),
        (["--temperature", "warm"], "argument --temperature: must be a number: got warm"),
        (["--rope-scaling-factor", "nan"], "must be a finite number above 0: got nan"),
        (["--example", "0"], f"must be 1 to {len(EXAMPLES)}: got 0"),
        (["hello"], "argument: expected -p TEXT for a prompt, got hello"),
        (["--chat-format", "llama9"], "argument --chat-format: invalid choice: 'llama9'"),
        (["--stop", ""], "argument --stop: must be a text: got nothing"),
        (["--debug-log="], "argument --debug-log: must be a path: got nothing"),
        (["--save-gguf", "-"], "argument --save-gguf: must be a path: got -"),
        (
            ["--debug-log", "a", "--trace-json", "a"],
            "must be another file than --debug-log",
        ),
        *(
            (
                ["--trace-layers", bad],
                f"numbers and ascending ranges like 0,3-5: got {bad}",
            )
            for bad in ("a", "1,", "3-", "+3", "1_0", "5-3")
        ),
        *(
            (
                ["--debug-log", "--trace-row", bad],
                f"must be a position or last, and a head as in 26:2: got {bad}",
            )
            for bad in ("x", "2:", ":2", "+2", "1_0", "last:x", "2:1:0")
        ),
        (["--serve", ":+80"], "PORT from 0 to 65535: got :+80"),
        (
            ["--debug-log", "--trace-stages", "0-3"],
            "must be stages from 1 to 21: got 0-3",
        ),
        (["--explain", "22"], "argument --explain: must be a stage from 1 to 21: got 22"),
        (["-temp", "0"], "unrecognized arguments: -temp; did you mean --temperature?"),
        (
            ["--max_tokens", "3"],
            "unrecognized arguments: --max_tokens; did you mean --max-tokens?",
        ),
        (
            ["--chat"],
            "unrecognized arguments: --chat; did you mean --chat-format or --chat-template?",
        ),
        (
            ["-s", "42"],
            "argument -s/--system: must be a text, --seed sets a seed: got 42",
        ),
        (["-hf", "a/b", "-m", "c"], "argument --hf-repo: not allowed with --model"),
        (["-hff", "a.gguf"], "argument --hf-file: needs --hf-repo"),
        (["-mu", "x"], "argument -mu: not available: -m takes a path or a name"),
        (["-x"], "unrecognized arguments: -x ("),
        (["-p"], "expected one argument"),
        (
            ["--json", "-p", "x", "--logprobs", "101"],
            "argument --logprobs: must be 0 to 100",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(capsys, arguments, reason):
    assert reason in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["-hf", "org/repo"], "hf.co/org/repo"),
        (["-hfr", "org/repo:Q4_K_M"], "hf.co/org/repo:Q4_K_M"),
        (["--hf-repo", "org/repo", "-hff", "a/b.gguf"], "hf.co/org/repo/a/b.gguf"),
        (["-m", "ollama:a"], "ollama:a"),
    ],
)
def test_the_flags_of_llama_cpp_name_a_model_of_the_hub(arguments, name):
    assert parse_arguments(arguments).model == name


VALUES = {
    "--branch": "1:a", "--save-activation": "x=y", "--vector-texts": "a b",
    "--system": "x", "--think": "on", "--chat-format": "llama3", "--quantize": "nf4",
    "--overflow": "drop", "--template-arg": "name=1", "--attention": "eager",
    "--activations": "int8", "--cache-type": "q8_0",
}  # fmt: skip


WRONG = [((f, o), f"not allowed with {o}") for f, others in _NOT_WITH for o in others]
WRONG += [((flag,), f"needs {' or '.join(needed)}") for flag, needed in _NEEDS.items()]


@pytest.mark.parametrize(("flags", "why"), WRONG)
def test_flags_that_do_not_go_together_or_alone_are_refused_by_their_names(
    capsys, flags, why
):
    given = []
    for name in flags:
        action = build_parser()._option_string_actions.get(name)
        given += (
            [name]
            if action is None or action.nargs == 0
            else [name, *VALUES.get(name, "1").split()]
        )
    assert f"argument {flags[0]}: {why}" in refusal(capsys, *given)


def test_controls_in_a_wrong_argument_are_shown_escaped_and_cut(capsys):
    line = refusal(capsys, "--\x1b[2J" + "x" * 9999)
    assert "\x1b" not in line
    assert r"\x1b[2J" in line
    assert len(line) < 500


def test_help_names_every_flag_in_a_group_and_fits_the_page():
    text = build_parser().format_help()
    assert max(map(len, text.splitlines())) <= 79
    for heading in (
        "prompt:",
        "model:",
        "answer:",
        "trace:",
        "reports:",
        "output:",
        "exit codes:",
    ):
        assert f"\n{heading}" in text
    assert "\noptions:" not in text
    assert "positional arguments" not in text


def test_help_and_a_wrong_argument_load_nothing_heavy():
    done = run_code(
        "import sys\n"
        "from src.cli.arguments import parse_arguments\n"
        "import src.main\n"
        "heavy = {'numpy', 'rich', 'prompt_toolkit', 'cffi', 'regex', 'structlog'}\n"
        "print(heavy & set(sys.modules))\n"
    )
    assert (done.stdout, done.stderr) == (b"set()\n", b"")


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"llama-bolts {__version__}\n"


# As people type them for llama.cpp, ollama and mlx_lm; the fields of `Options` that they
# set.
FOREIGN: dict[str, dict[str, Any]] = {
    "-sys Be": {"system": "Be"},
    "--system-prompt Be": {"system": "Be"},
    "--temp 0": {"temperature": 0.0},
    "--temp=0.5": {"temperature": 0.5},
    "--ctx-size 64": {"context_length": 64},
    "--predict 3": {"max_tokens": 3},
    "--n-predict 3": {"max_tokens": 3},
    "--max-new-tokens 3": {"max_tokens": 3},
    "-r User:": {"stop": ("User:",)},
    "-no-cnv": {"completion": True},
    "--ignore-chat-template": {"completion": True},
    "--chat-template-file a.jinja": {"chat_template": "a.jinja"},
    "-j {}": {"json_schema": "{}"},
    "-jf schema.json": {"json_schema": Path("schema.json")},
    "-st": {},
    "-cnv": {},
    "-ngl 99": {},
    "-ngl -1": {},
    "--mlock": {},
    "-fa": {},
    "-fa on": {},
    "-b 512": {},
    "--jinja": {},
    "--keepalive 5m": {},
}


@pytest.mark.parametrize("typed", FOREIGN)
def test_flags_of_other_programs_mean_the_same_or_are_ignored_aloud(capsys, typed):
    """`-st` was read as `-s t`, and `-ngl` as `-n gl`."""
    options = parse_arguments([*typed.split(), "-p", "x"])
    expected = dataclasses.replace(parse_arguments(["-p", "x"]), **FOREIGN[typed])
    assert options == expected
    said = capsys.readouterr()
    warning = f"warning: {typed.split()[0]} is ignored: "
    assert said.out == ""
    assert said.err.startswith("" if FOREIGN[typed] else warning)
    assert said.err.count("\n") == (not FOREIGN[typed])


def test_arguments_of_a_chat_template_are_json_and_the_last_of_a_name_counts():
    typed = [
        "--template-arg",
        "a=1",
        "--template-arg",
        "b=[null]",
        "--template-arg",
        'a="x=y"',
    ]
    assert dict(parse_arguments([*typed, "-p", "x"]).template_arg) == {
        "a": "x=y",
        "b": [None],
    }


@pytest.mark.parametrize(
    "value", ["a", "=1", "a=", "a=x", "a b=1", "1=1", "a={1}", "a=NaN"]
)
def test_a_wrong_argument_of_a_chat_template_is_refused(capsys, value):
    expected = (
        "argument --template-arg: must be NAME=JSON, as in enable_thinking=false: got "
    )
    assert expected + value in refusal(capsys, "--template-arg", value)


def test_no_word_of_several_letters_is_read_as_a_flag_of_one_letter_and_its_value(capsys):
    for first in "psmfctnqvh":
        for rest in ("t", "zz", "x=1", "1x", "-1"):
            word = f"-{first}{rest}"
            if word not in build_parser()._option_string_actions:
                assert f": {word} " in refusal(capsys, word).replace(";", " ")


def test_names_of_other_programs_are_none_of_ours_and_lead_to_ours():
    shown = build_parser().format_help().split()
    for theirs, ours in OTHER_NAMES.items():
        assert theirs not in shown
        assert any(word.strip(",") == ours for word in shown)
    tables = (*_IGNORED.values(), *_REFUSED.values())
    names = [name.rstrip("=") for text in tables for name in text.split()]
    assert len(names) == len(set(names))
    assert not {*names} & {word.strip(",") for word in shown}


def test_the_page_of_the_command_line_shows_the_names_of_other_programs():
    page = (REPOSITORY / "docs" / "COMMAND-LINE.md").read_text("utf-8")
    for theirs, ours in OTHER_NAMES.items():
        if ours != "--help":
            assert re.search(rf"^\| .*`{theirs}`.* \| .*`{ours}`", page, flags=re.M), (
                theirs
            )


def test_most_new_tokens_have_a_name_here_and_one_in_python_and_each_leads_to_the_other():
    assert "--max-tokens N      " in build_parser().format_help()
    assert "in Python: max_new_tokens" in " ".join(build_parser().format_help().split())
    assert "`--max-tokens` on the command line" in (Request.__doc__ or "")


def test_the_list_has_the_six_prompts_of_the_source_engine_with_their_system_prompts():
    assert [example.completion for example in EXAMPLES] == [True] + [False] * 5
    assert all(example.system for example in EXAMPLES[1:])
    assert example_lines()[0] == "1. [completion] Hello, my name is"
    assert example_lines()[5] == (
        "6. [chat] What is the flag of Turkey? (system: Answer with only one emoji)"
    )


def test_without_a_terminal_there_is_a_list_and_no_chat(run, tmp_path):
    done = run("--examples", "-m", tmp_path, stdin=b"1\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == example_lines()


def test_an_example_of_the_other_kind_is_asked_beside_the_conversation(
    alphabet_model, capsys
):
    for flags, number in (((), "1"), (("--completion",), "6")):
        session = session_of(alphabet_model, "-c", "300", *flags)
        session.ask("Hello" if not flags else "see a")
        turns = session.turns
        capsys.readouterr()
        run_command(session, f"/examples {number}")
        assert capsys.readouterr().err == f"{EXAMPLES[int(number) - 1].description}\n"
        assert session.turns is turns
        assert session.system is None
        assert session.last.text == ("tuvwxyz" if number == "1" else ALPHABET)


def test_an_example_begins_a_conversation_that_goes_on(alphabet_model):
    session = session_of(alphabet_model, "-c", "300", "-n", "9")
    session.ask("Hello")
    for command in ("/examples 6", "/continue"):
        run_command(session, command)
    [turn] = session.turns
    assert (turn.question, turn.answer) == (EXAMPLES[5].prompt, ALPHABET[:18])
    assert session.system == EXAMPLES[5].system


@pytest.mark.parametrize("name", FLAGS)
def test_every_option_is_read(name):
    """Code of the command line names it, besides the table of flags."""
    folder = REPOSITORY / "src" / "cli"
    text = "\n".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    field = re.compile(rf"^    {name}: Annotated", re.MULTILINE)
    assert name in STEPS or re.search(rf"\b{name}\b", field.sub("", text))


@pytest.mark.parametrize("name", sorted(FLAGS.keys() - {"standard_input"}))
def test_every_flag_is_in_a_page(name):
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    words = re.findall(r"(?<![\w-])-[\w-]+", text)
    assert {*FLAGS[name][0].split()} & {*words}
