"""The arguments of the command line: one parser, one typed record.

Only what argparse needs is imported here, so that `--help` and a wrong argument answer at once. The
ranges of the sampling settings are the business of `SamplingArgs`; here they are only numbers.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .. import __version__
from .escape import escape_line, replace_surrogates
from .examples import EXAMPLES
from .values import integer, number, positive_integer, positive_number, ranges

DEFAULT_CONTEXT_LENGTH = 4096
DEFAULT_DEBUG_LOG = Path("debug.log")
USAGE_ERROR = 2
# The keys of `CHAT_FORMATS`, in its order; a test compares them.
CHAT_FORMAT_NAMES = (
    "llama3",
    "llama2",
    "chatml",
    "chatml-bos",
    "smollm2",
    "zephyr",
    "mistral-v1",
    "mistral-v3",
    "mistral-v0.1-2023",
    "mistral-v0.2-2023",
    "deepseek-r1",
    "deepseek-r1-2025-01",
)
# How many `STAGES` there are; a test compares them.
LAST_STAGE = 21
_LONGEST_MESSAGE = 400

_DESCRIPTION = """\
Chat with a Llama in the terminal; with a prompt, answer once and exit. The answer goes to standard
output, everything else to standard error."""

_EPILOG = """\
examples:
  llama-bolts                                     chat with the bundled model
  llama-bolts -m ~/Llama3.1-8B-Instruct           chat with your own
  llama-bolts -p "What is the capital of Ohio?"   answer once
  cat letter.txt | llama-bolts -s "Summarize."    answer what standard input holds
  llama-bolts --completion -p "Once upon a time"  continue raw text

exit codes:
  0 done   2 usage   3 bad model, tokenizer or config   4 not enough memory
  5 not-a-number in the logits   130 interrupted"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for; None where the default depends on the model or the machine.

    Attributes:
        prompt: text of the one prompt to answer.
        file: file that holds the one prompt.
        standard_input: `-` was given: the prompt is on standard input.
        example: number of the predefined prompt to run, from 1.
        examples, metadata, info, bench: the menu and the three reports.
        system: system prompt.
        completion: continue raw text instead of chatting.
        chat_format: name of the format to write conversations in; None is the model's own.
        stop: texts that end an answer.
        model: model directory; None is the bundled model.
        rope_scaling_factor: overrides the factor of the model's files.
        context_length: positions of the key/value cache.
        threads: threads of the kernels.
        max_tokens: most new tokens of an answer.
        temperature, top_k, top_p, min_p, repeat_penalty, seed: fields of `SamplingArgs`.
        debug_log, trace_json: files of the trace.
        trace_layers, trace_stages: what of it to write; None is the default of each file.
        trace_statistics: numbers about the elements of each result, in the trace.
        statistics: show a line of statistics after each answer.
        quiet: only answers and errors.
        verbose: details and tracebacks.
    """

    prompt: str | None
    file: Path | None
    standard_input: bool
    example: int | None
    examples: bool
    metadata: bool
    info: bool
    bench: bool
    system: str | None
    completion: bool
    chat_format: str | None
    stop: tuple[str, ...]
    model: Path | None
    rope_scaling_factor: float | None
    context_length: int | None
    threads: int | None
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    seed: int | None
    debug_log: Path | None
    trace_json: Path | None
    trace_layers: tuple[range, ...] | None
    trace_stages: tuple[range, ...] | None
    trace_statistics: bool
    statistics: bool
    quiet: bool
    verbose: bool


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line.

    Args:
        arguments: the arguments after the program's name; those of the process when None.

    Raises:
        SystemExit: with 0 after `--help` or `--version`; with 2 after one line on standard error.
    """
    parser = build_parser()
    values = vars(parser.parse_args(arguments))
    if values["standard_input"] not in (None, "-"):
        parser.error(f"a prompt is given with -p TEXT: got {values['standard_input']}")
    values["standard_input"] = values["standard_input"] == "-"
    values["stop"] = tuple(values["stop"])
    _refuse_contradictions(parser, values)
    return Options(**values)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags, in the groups that `--help` shows."""
    parser = _OneLineErrorParser(
        prog="llama-bolts",
        usage="%(prog)s [options] [-p TEXT | -f FILE | -]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,  # an abbreviation would change its meaning when a flag is added
        add_help=False,
    )
    _add_prompt_flags(parser)
    _add_model_flags(parser)
    _add_answer_flags(parser)
    _add_trace_flags(parser)
    _add_report_flags(parser)
    _add_output_flags(parser)
    return parser


class _OneLineErrorParser(argparse.ArgumentParser):
    """Refuses with one line; argparse's own way prints the usage first."""

    def error(self, message: str) -> NoReturn:
        line = escape_line(message, _LONGEST_MESSAGE)
        self.exit(USAGE_ERROR, f"error: {line} (--help lists the options)\n")


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=100)


def _add_prompt_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt", "one prompt, its answer, exit; none: a chat")
    group.add_argument("-p", "--prompt", type=replace_surrogates, metavar="TEXT", help="the prompt")
    group.add_argument("-f", "--file", type=Path, metavar="FILE", help="the prompt is in FILE")
    group.add_argument(
        "standard_input",
        nargs="?",
        metavar="-",
        help="the prompt is on standard input (also without this, where that is no terminal)",
    )
    group.add_argument(
        "--example",
        type=_example_number,
        metavar="N",
        help=f"predefined prompt N of {len(EXAMPLES)}; --examples lists them",
    )
    group.add_argument(
        "-s", "--system", type=replace_surrogates, metavar="TEXT", help="system prompt"
    )
    group.add_argument("--completion", action="store_true", help="continue raw text, do not chat")
    group.add_argument(
        "--chat-format",
        choices=CHAT_FORMAT_NAMES,
        metavar="NAME",
        help=f"write the chat as NAME (default: the model's own): {', '.join(CHAT_FORMAT_NAMES)}",
    )


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        type=Path,
        metavar="PATH",
        help="model directory (default: the bundled model)",
    )
    group.add_argument(
        "-c",
        "--context-length",
        type=positive_integer,
        metavar="N",
        help=f"positions of the cache (default: {DEFAULT_CONTEXT_LENGTH} or the model's, if less)",
    )
    group.add_argument(
        "-t",
        "--threads",
        type=positive_integer,
        metavar="N",
        help="threads (default: the processors this process may use)",
    )
    group.add_argument(
        "--rope-scaling-factor",
        type=positive_number,
        metavar="X",
        help="factor of the rotary scaling, where the model's files say none or a wrong one",
    )


def _add_answer_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answer")
    group.add_argument(
        "-n",
        "--max-tokens",
        type=positive_integer,
        metavar="N",
        help="most new tokens (default: until the model stops or the context is full)",
    )
    group.add_argument(
        "--temperature", type=number, metavar="X", help="0: the most likely token (default: 0.6)"
    )
    group.add_argument(
        "--top-k",
        type=integer,
        metavar="N",
        help="sample from the N most likely; 0: all (default: 50)",
    )
    group.add_argument(
        "--top-p",
        type=number,
        metavar="X",
        help="sample from the most likely that hold probability X (default: 0.9)",
    )
    group.add_argument(
        "--min-p",
        type=number,
        metavar="X",
        help="leave out what is less likely than X times the most likely (default: 0)",
    )
    group.add_argument(
        "--repeat-penalty",
        type=number,
        metavar="X",
        help="make tokens that occurred less likely (default: 1, off)",
    )
    group.add_argument(
        "--seed", type=integer, metavar="N", help="repeat an answer (default: fresh)"
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        type=replace_surrogates,
        metavar="TEXT",
        help="end the answer before TEXT; may be given several times",
    )


def _add_trace_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trace", "the shape of every tensor, stage by stage")
    group.add_argument(
        "--debug-log",
        nargs="?",
        const=DEFAULT_DEBUG_LOG,
        type=_trace_path,
        metavar="PATH",
        help=f"write a log for people, a line per step (without PATH: {DEFAULT_DEBUG_LOG})",
    )
    group.add_argument(
        "--trace-json", type=_trace_path, metavar="PATH", help="write JSON lines for programs"
    )
    group.add_argument(
        "--trace-layers",
        type=ranges,
        metavar="RANGES",
        help="layers in full, such as 0,3-5 (default: the first in the log, all in the JSON lines)",
    )
    group.add_argument(
        "--trace-stages",
        type=_stage_ranges,
        metavar="RANGES",
        help=f"stages, such as 8-13 (default: all, 1-{LAST_STAGE})",
    )
    group.add_argument(
        "--trace-statistics",
        action="store_true",
        help="least, greatest, mean, root mean square, first and last values of each result",
    )


def _add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports", "print and exit")
    group.add_argument(
        "--examples", action="store_true", help="the predefined prompts; in a terminal, choose one"
    )
    group.add_argument(
        "--metadata", action="store_true", help="hyperparameters, tensors, counts and bytes"
    )
    group.add_argument(
        "--info", action="store_true", help="versions, instruction set, threads, memory"
    )
    group.add_argument(
        "--bench", action="store_true", help="tokens per second, and this machine's limits"
    )
    group.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    group.add_argument("-h", "--help", action="help", help="this text")


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--no-stats",
        dest="statistics",
        action="store_false",
        help="no line of statistics after an answer",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="only answers and errors")
    group.add_argument("-v", "--verbose", action="store_true", help="details, and tracebacks")


def _refuse_contradictions(parser: argparse.ArgumentParser, values: Mapping[str, object]) -> None:
    """Refuse two of the flags that each say what this run is to do."""
    actions = {
        "--prompt": values["prompt"] is not None,
        "--file": values["file"] is not None,
        "-": values["standard_input"],
        "--example": values["example"] is not None,
        "--examples": values["examples"],
        "--metadata": values["metadata"],
        "--info": values["info"],
        "--bench": values["bench"],
    }
    given = [flag for flag, is_given in actions.items() if is_given]
    if len(given) > 1:
        parser.error(f"argument {given[1]}: not allowed with {given[0]}")
    fixed_by_example = values["example"] is not None or values["examples"]
    if fixed_by_example and (values["system"] is not None or values["completion"]):
        parser.error(f"argument {given[0]}: not allowed with --system or --completion")
    if values["completion"] and values["chat_format"] is not None:
        parser.error("argument --completion: not allowed with --chat-format")
    if values["completion"] and values["system"] is not None:
        parser.error("argument --completion: not allowed with --system")
    if values["quiet"] and values["verbose"]:
        parser.error("argument --quiet: not allowed with --verbose")
    logs = [values[name] for name in ("debug_log", "trace_json") if values[name] is not None]
    if len(logs) == 2 and logs[0] == logs[1]:
        parser.error("argument --trace-json: must be another file than --debug-log")
    for flag in ("--trace-layers", "--trace-stages", "--trace-statistics"):
        if values[flag[2:].replace("-", "_")] and not logs:
            parser.error(f"argument {flag}: needs --debug-log or --trace-json")


def _example_number(text: str) -> int:
    value = integer(text)
    if not 1 <= value <= len(EXAMPLES):
        raise argparse.ArgumentTypeError(f"must be 1 to {len(EXAMPLES)}: got {text}")
    return value


def _trace_path(text: str) -> Path:
    if text in ("", "-"):
        raise argparse.ArgumentTypeError(f"must be a file: got {text or 'nothing'}")
    return Path(text)


def _stage_ranges(text: str) -> tuple[range, ...]:
    stages = ranges(text)
    if not all(numbers.start >= 1 and numbers.stop <= LAST_STAGE + 1 for numbers in stages):
        raise argparse.ArgumentTypeError(f"must be stages from 1 to {LAST_STAGE}: got {text}")
    return stages
