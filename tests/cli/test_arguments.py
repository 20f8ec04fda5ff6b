import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from src.cli.arguments import (
    CHAT_FORMAT_NAMES,
    LAST_STAGE,
    Options,
    build_parser,
    parse_arguments,
)
from src.cli.examples import EXAMPLES
from src.cli.flag_parser import _OTHER_NAMES
from src.inference import CHAT_FORMATS
from src.trace import STAGES


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(arguments)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_without_arguments_everything_has_its_default() -> None:
    options = parse_arguments([])
    given = {k: v for k, v in dataclasses.asdict(options).items() if v not in (None, False, ())}
    assert given == {"statistics": True}


def test_flags_arrive_in_the_record() -> None:
    options = parse_arguments(
        [
            *("-phi", "-sshort", "-mdir", "-c64", "-t2", "-n5", "-v", "--no-stats", "--json"),
            *("--temperature=0", "--top-k=3", "--top-p=0.5", "--min-p=0.1", "--seed=7"),
            *("--debug-log", "--trace-json=t", "--trace-layers=0,3-5", "--trace-stages=8"),
            *("--trace-statistics", "--trace-steps=4"),
            *("--repeat-penalty=1.1", "--stop=END", "--stop=.", "--rope-scaling-factor=32"),
            *("--quantize=nf4", "--chat-format=llama2"),
        ]
    )
    assert options == Options(
        prompt="hi",
        file=None,
        standard_input=False,
        example=None,
        examples=False,
        metadata=False,
        check_weights=False,
        verify=False,
        info=False,
        bench=False,
        explain=None,
        system="short",
        completion=False,
        chat_format="llama2",
        stop=("END", "."),
        model=Path("dir"),
        rope_scaling_factor=32.0,
        quantize="nf4",
        save_quantized=None,
        context_length=64,
        threads=2,
        max_tokens=5,
        temperature=0.0,
        top_k=3,
        top_p=0.5,
        min_p=0.1,
        repeat_penalty=1.1,
        seed=7,
        debug_log=Path("debug.log"),
        trace_json=Path("t"),
        trace_layers=(range(1), range(3, 6)),
        trace_stages=(range(8, 9),),
        trace_steps=(range(4, 5),),
        trace_statistics=True,
        json=True,
        jsonl=None,
        logprobs=None,
        diagrams=None,
        statistics=False,
        quiet=False,
        verbose=True,
    )


def test_every_chat_format_can_be_named_and_help_lists_them() -> None:
    assert tuple(CHAT_FORMATS) == CHAT_FORMAT_NAMES
    text = " ".join(build_parser().format_help().split())
    assert ", ".join(CHAT_FORMATS) in text


def test_the_stages_that_can_be_asked_for_are_those_of_the_registry() -> None:
    assert list(STAGES) == list(range(1, LAST_STAGE + 1))


def test_a_dash_means_standard_input() -> None:
    assert parse_arguments(["-"]).standard_input
    assert not parse_arguments([]).standard_input


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-n", "0"], "argument -n/--max-tokens: must be at least 1: got 0"),
        (["-n", "-3"], "argument -n/--max-tokens: "),
        (["-c", "0"], "argument -c/--context-length: must be at least 1: got 0"),
        (["-c", "1.5"], "must be a whole number: got 1.5"),
        (["-c", "9" * 5000], "must be a whole number"),
        (["-t", "none"], "argument -t/--threads: must be a whole number: got none"),
        (["--temperature", "warm"], "argument --temperature: must be a number: got warm"),
        (["--rope-scaling-factor", "nan"], "must be a finite number above 0: got nan"),
        (["--rope-scaling-factor", "0"], "must be a finite number above 0: got 0"),
        (["--example", "0"], f"must be 1 to {len(EXAMPLES)}: got 0"),
        (["--example", "7"], "got 7"),
        (["hello"], "a prompt is given with -p TEXT: got hello"),
        (["-", "hello"], "a prompt is given with -p TEXT: got hello"),
        (["-p", "a", "-f", "b"], "argument --file: not allowed with --prompt"),
        (["-", "-p", "a"], "not allowed with"),
        (["--info", "--metadata"], "argument --info: not allowed with --metadata"),
        (["--example", "1", "-s", "x"], "not allowed with --system"),
        (["--examples", "--completion"], "not allowed with --system or --completion"),
        (["--completion", "-s", "x"], "argument --completion: not allowed with --system"),
        (["--completion", "--chat-format", "zephyr"], "not allowed with --chat-format"),
        (["--chat-format", "llama9"], "argument --chat-format: invalid choice: 'llama9'"),
        (["-q", "-v"], "argument --quiet: not allowed with --verbose"),
        (["--stop", ""], "argument --stop: must be a text: got nothing"),
        (["--debug-log="], "argument --debug-log: must be a file: got nothing"),
        (["--trace-json", "-"], "argument --trace-json: must be a file: got -"),
        (["--debug-log", "a", "--trace-json", "a"], "must be another file than --debug-log"),
        (["--debug-log", "--trace-layers", "a"], "must be numbers and ranges like 0,3-5: got a"),
        (["--debug-log", "--trace-layers", "1,"], "must be numbers and ranges like 0,3-5: got 1,"),
        (["--debug-log", "--trace-layers", "5-3"], "must be a range from low to high: got 5-3"),
        (["--debug-log", "--trace-layers", "9" * 5000], "must be a whole number"),
        (["--debug-log", "--trace-stages", "0-3"], "must be stages from 1 to 21: got 0-3"),
        (["--debug-log", "--trace-stages", "22"], "must be stages from 1 to 21: got 22"),
        (["--trace-layers", "0"], "argument --trace-layers: needs --debug-log or --trace-json"),
        (["--trace-statistics"], "argument --trace-statistics: needs --debug-log or --trace-json"),
        (["--temp", "0"], "unrecognized arguments: --temp; near it: --temperature"),
        (["--max-token=3"], "unrecognized arguments: --max-token=3; near it: --max-tokens"),
        (["--ctx-size=3"], "unrecognized arguments: --ctx-size=3; near it: --context-length ("),
        (["--gpu-layers", "3"], "unrecognized arguments: --gpu-layers ("),
        (["-x"], "unrecognized arguments: -x ("),
        (["--json", "--info"], "argument --json: not allowed with --info"),
        (["--examples", "--json"], "argument --json: not allowed with --examples"),
        (["-p"], "expected one argument"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert reason in refusal(capsys, *arguments)


def test_controls_in_a_wrong_argument_are_shown_escaped_and_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refusal(capsys, "--\x1b[2J" + "x" * 9999)
    assert "\x1b" not in line
    assert r"\x1b[2J" in line
    assert len(line) < 500


def test_bytes_of_the_command_line_that_are_not_utf8_become_replacement_characters() -> None:
    assert parse_arguments(["-p", "a\udcffb"]).prompt == "a\ufffdb"


@pytest.mark.parametrize(("columns", "longest"), [("40", 77), ("80", 79), ("200", 79)])
def test_help_names_every_flag_in_a_group_and_fits_the_page(
    monkeypatch: pytest.MonkeyPatch, columns: str, longest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = build_parser().format_help()
    assert max(map(len, text.splitlines())) <= longest
    for heading in ("prompt:", "model:", "answer:", "trace:", "reports:", "output:", "exit codes:"):
        assert f"\n{heading}" in text
    assert "\noptions:" not in text
    assert "positional arguments" not in text


def test_help_and_a_wrong_argument_load_nothing_heavy() -> None:
    check = (
        "import sys\n"
        "from src.cli.arguments import parse_arguments\n"
        "import src.main\n"
        "heavy = {'numpy', 'rich', 'prompt_toolkit', 'cffi', 'regex', 'structlog'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from src import __version__

    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"llama-bolts {__version__}\n"


def test_names_of_other_programs_lead_to_flags_that_there_are() -> None:
    parser = build_parser()
    for name, ours in _OTHER_NAMES.items():
        assert name not in parser._option_string_actions
        assert ours in parser._option_string_actions
        assert parser.near(f"{name}=3") == f"; near it: {ours}"
