"""The arguments of the command line: one parser, one typed record, and the predefined prompts.

Only what argparse needs is imported here, so that `--help` and a wrong argument answer at once. The
ranges of the sampling settings are the business of `SamplingArgs`; here they are only numbers.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..untrusted import replace_surrogates
from .flag_parser import (
    FlagFormatter,
    FlagParser,
    integer,
    integer_in,
    number,
    positive_integer,
    positive_number,
    ranges,
)

DEFAULT_CONTEXT_LENGTH = 4096
MOST_CANDIDATES = 100  # of which a step can tell
DEFAULT_DEBUG_LOG = Path("debug.log")
# The keys of `CHAT_FORMATS`, in its order; a test compares them.
CHAT_FORMAT_NAMES = (
    "llama3", "llama2", "chatml", "chatml-bos", "smollm2", "zephyr", "mistral-v1", "mistral-v3",
    "mistral-v0.1-2023", "mistral-v0.2-2023", "deepseek-r1", "deepseek-r1-2025-01",
)  # fmt: skip
# The keys of `QUANTIZATIONS`; a test compares them.
QUANTIZATION_NAMES = ("nf4", "int8")
# How many `STAGES` there are; a test compares them.
LAST_STAGE = 21
_REPORTS = (
    "--examples", "--metadata", "--check-weights", "--verify", "--info", "--bench", "--explain",
)  # fmt: skip

_DESCRIPTION = """\
Chat with a Llama in the terminal; with a prompt, answer once and exit.
The answer goes to standard output, everything else to standard error."""

_EPILOG = """\
examples:
  llama-bolts                                chat with the bundled model
  llama-bolts -m ~/Llama3.1-8B-Instruct      chat with your own
  llama-bolts -p "Why is the sky blue?"      answer once
  cat letter | llama-bolts -s "Summarize."   answer what standard input holds
  llama-bolts --completion -p "Once upon"    continue raw text

exit codes:
  0 done   2 usage   3 bad model, tokenizer or config   4 not enough memory
  5 not-a-number in the logits   130 interrupted"""


@dataclass(frozen=True)
class Example:
    """One predefined prompt of the source engine.

    Attributes:
        prompt: The user's message, or the text to continue when `completion` is set.
        system: The system prompt; None for a completion.
        completion: Whether to continue raw text instead of answering a message.
    """

    prompt: str
    system: str | None = None
    completion: bool = False

    @property
    def description(self) -> str:
        """Return the example on one line: its kind, its prompt and its system prompt."""
        kind = "completion" if self.completion else "chat"
        system = f" (system: {self.system})" if self.system else ""
        return f"[{kind}] {self.prompt}{system}"


# Source: adalkiran/llama-nuts-and-bolts, `predefinedPrompts` in cmd/main.go (shown in its chapter
# docs/11-ASKING-FOR-USER-INPUT.md at 3aef2be).
EXAMPLES = (
    Example("Hello, my name is", completion=True),
    Example("Describe your theory.", system="You are Einstein"),
    Example(
        "Can you explain what is Theory of relativity?",
        system="Answer in 20 words, directly, and without an introduction",
    ),
    Example("Explain what is quantum computer in 20 words.", system="You are a pirate"),
    Example("How to go from Beijing to NY?", system="Always answer with emojis"),
    Example("What is the flag of Turkey?", system="Answer with only one emoji"),
)


def example_lines() -> list[str]:
    """Return the numbered list of the examples, a line each, counted from 1."""
    return [f"{number}. {example.description}" for number, example in enumerate(EXAMPLES, 1)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for: a field for each flag of `--help`, of the same name.

    None where the default depends on the model or the machine. `standard_input` is `-`, and
    `statistics` is false after `--no-stats`.
    """

    prompt: str | None
    file: Path | None
    standard_input: bool
    example: int | None
    examples: bool
    metadata: bool
    check_weights: bool
    verify: bool
    info: bool
    bench: bool
    explain: int | None
    system: str | None
    completion: bool
    chat_format: str | None
    stop: tuple[str, ...]
    model: Path | None
    rope_scaling_factor: float | None
    quantize: str | None
    save_quantized: Path | None
    draft_model: Path | None
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
    trace_steps: tuple[range, ...] | None
    trace_statistics: bool
    json: bool
    jsonl: Path | None
    logprobs: int | None
    diagrams: Path | None
    statistics: bool
    quiet: bool
    verbose: bool


def _stop_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must be a text: got nothing")
    return replace_surrogates(text)


def _system_text(text: str) -> str:
    if text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a text, --seed sets a seed: got {text}")
    return replace_surrogates(text)


def _trace_path(text: str) -> Path:
    if text in ("", "-"):
        raise argparse.ArgumentTypeError(f"must be a file: got {text or 'nothing'}")
    return Path(text)


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a directory: got nothing")
    return Path(text)


def _stage_ranges(text: str) -> tuple[range, ...]:
    stages = ranges(text)
    if not all(numbers.start >= 1 and numbers.stop <= LAST_STAGE + 1 for numbers in stages):
        raise argparse.ArgumentTypeError(f"must be stages from 1 to {LAST_STAGE}: got {text}")
    return stages


_TEXT, _PATH, _NUMBER, _WHOLE = (
    {"type": parse, "metavar": name}
    for parse, name in ((replace_surrogates, "TEXT"), (Path, "PATH"), (number, "X"), (integer, "N"))
)
_POSITIVE = {"type": positive_integer, "metavar": "N"}
_SWITCH = {"action": "store_true"}
# The groups of `--help`: for each flag its names, how argparse reads it, and what is said of it.
_GROUPS: dict[str, tuple[tuple[str, Mapping[str, Any], str], ...]] = {
    "prompt": (
        ("-p --prompt", _TEXT, "the prompt"),
        ("-f --file", _PATH | {"metavar": "FILE"}, "the prompt is in FILE"),
        ("--jsonl", _PATH | {"metavar": "FILE"},
         "answer each line of FILE (-: standard input) with a record"),
        ("standard_input", {"nargs": "?", "metavar": "-"},
         "the prompt is on standard input; implied in a pipe"),
        ("--example", _WHOLE | {"type": integer_in(1, len(EXAMPLES))},
         f"run predefined prompt N of {len(EXAMPLES)} (see --examples)"),
        ("-s --system", _TEXT | {"type": _system_text}, "system prompt"),
        ("--completion", _SWITCH, "continue raw text instead of chatting"),
        ("--chat-format", {"choices": CHAT_FORMAT_NAMES, "metavar": "NAME"},
         f"the model's own by default, or: {', '.join(CHAT_FORMAT_NAMES)}"),
    ),
    "model": (
        ("-m --model", _PATH, "model directory (default: the bundled model)"),
        ("-c --context-length", _POSITIVE,
         f"context in tokens (default: {DEFAULT_CONTEXT_LENGTH}, or the model's)"),
        ("-t --threads", _POSITIVE, "threads (default: the processors it may use)"),
        ("--rope-scaling-factor", _NUMBER | {"type": positive_number},
         "of the rotary embedding, if the files are wrong"),
        ("--quantize", {"choices": QUANTIZATION_NAMES, "metavar": "TYPE"},
         "quantize the weights on loading: nf4 (4 bits) or int8 (8 bits)"),
        ("--save-quantized", {"type": _directory, "metavar": "DIR"},
         "write what --quantize makes to DIR, a new model directory; exit"),
        ("--draft-model", {"type": _directory, "metavar": "DIR"},
         "a smaller model with the same tokens that guesses the next ones"),
    ),
    "answer": (
        ("-n --max-tokens", _POSITIVE,
         "most new tokens (default: until a stop); in Python: max_new_tokens"),
        ("--temperature", _NUMBER, "0: always the most likely token (default: 0.6)"),
        ("--top-k", _WHOLE, "sample from the N most likely; 0: all (default: 50)"),
        ("--top-p", _NUMBER, "sample from the top X of probability (default: 0.9)"),
        ("--min-p", _NUMBER, "leave out below X times the likeliest (default: 0)"),
        ("--repeat-penalty", _NUMBER, "make what occurred less likely (default: 1, off)"),
        ("--seed", _WHOLE, "repeat an answer (default: a new one, and shown)"),
        ("--stop", _TEXT | {"type": _stop_text, "action": "append", "default": []},
         "end before TEXT; may be given several times"),
    ),
    "output": (
        ("--json", _SWITCH, "one JSON record per answer instead of its text"),
        ("--logprobs", _WHOLE | {"type": integer_in(0, MOST_CANDIDATES)},
         "in records: log-probabilities of each token and the top N"),
        ("--no-stats", {"dest": "statistics", "action": "store_false"},
         "no statistics after an answer"),
        ("-q --quiet", _SWITCH, "only answers, warnings and errors"),
        ("-v --verbose", _SWITCH, "details, and tracebacks"),
    ),
    "trace": (
        ("--debug-log", _PATH | {"nargs": "?", "const": DEFAULT_DEBUG_LOG, "type": _trace_path},
         f"a log for people (without PATH: {DEFAULT_DEBUG_LOG})"),
        ("--trace-json", _PATH | {"type": _trace_path}, "JSON lines for programs"),
        ("--trace-layers", {"type": ranges, "metavar": "RANGES"},
         "such as 0,3-5 (default: 0 in the log, all in JSON)"),
        ("--trace-stages", {"type": _stage_ranges, "metavar": "RANGES"},
         f"such as 8-13 (default: all, 1-{LAST_STAGE})"),
        ("--trace-steps", {"type": ranges, "metavar": "RANGES"},
         "such as 0-5; step 0 runs the prompt (default: 0-1 in the log, all in JSON)"),
        ("--trace-statistics", _SWITCH, "min, max, mean, rms, first and last values"),
        ("--diagrams", {"type": _trace_path, "metavar": "DIR"},
         "draw the stages of this run and the whole model into DIR, as SVG"),
    ),
    "reports": (
        ("--examples", _SWITCH, "predefined prompts; choose one in a terminal"),
        ("--metadata", _SWITCH, "hyperparameters, tensors, counts and bytes"),
        ("--check-weights", _SWITCH,
         "compare all weights with the checksums of their files (.pth)"),
        ("--verify", _SWITCH, "compare each stage with transformers (oracle extra)"),
        ("--info", _SWITCH, "versions, instruction set, threads, memory"),
        ("--bench", _SWITCH, "tokens per second beside this machine's limits"),
        ("--explain", _WHOLE | {"type": integer_in(1, LAST_STAGE, "a stage from ")},
         f"what happens in stage N of {LAST_STAGE}, as the trace numbers them"),
        ("--version", {"action": "version", "version": f"%(prog)s {__version__}"}, "version"),
        ("-h --help", {"action": "help"}, "this text"),
    ),
}  # fmt: skip
_BELOW = {
    "prompt": "one prompt, its answer, exit; without one, a chat",
    "trace": "the shape of every tensor, stage by stage",
    "reports": "print and exit",
}


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line.

    Args:
        arguments: The arguments after the program's name; those of the process when None.

    Raises:
        SystemExit: With 0 after `--help` or `--version`; with 2 after one line on standard error.
    """
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    values = vars(parsed)
    flags = [argument for argument in unknown if argument.startswith("-")]
    if flags:
        parser.error(f"unrecognized arguments: {' '.join(flags)}{parser.near(flags[0])}")
    for text in (values["standard_input"], *unknown):
        if text not in (None, "-"):
            parser.error(f"a prompt is given with -p TEXT: got {text}")
    values["standard_input"] = values["standard_input"] == "-"
    values["stop"] = tuple(values["stop"])
    _refuse_contradictions(parser, values)
    return Options(**values)


def build_parser() -> FlagParser:
    """Return the parser of all flags, in the groups that `--help` shows."""
    parser = FlagParser(
        prog="llama-bolts",
        usage="%(prog)s [options] [-p TEXT | -f FILE | -]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=FlagFormatter,
        allow_abbrev=False,  # an abbreviation would change its meaning when a flag is added
        add_help=False,
    )
    for title, flags in _GROUPS.items():
        group = parser.add_argument_group(title, _BELOW.get(title))
        for names, reading, help_text in flags:
            group.add_argument(*names.split(), help=help_text, **reading)
    parser.add_foreign_flags()
    return parser


def _refuse_contradictions(parser: argparse.ArgumentParser, values: Mapping[str, object]) -> None:
    """Refuse two of the flags that each say what this run is to do."""
    actions = {
        "--prompt": values["prompt"] is not None,
        "--file": values["file"] is not None,
        "--jsonl": values["jsonl"] is not None,
        "-": values["standard_input"],
        "--example": values["example"] is not None,
        "--examples": values["examples"],
        "--metadata": values["metadata"],
        "--check-weights": values["check_weights"],
        "--verify": values["verify"] and values["prompt"] is None,  # -p is what it runs
        "--info": values["info"],
        "--bench": values["bench"],
        "--explain": values["explain"] is not None,
        "--save-quantized": values["save_quantized"] is not None,
    }
    given = [flag for flag, is_given in actions.items() if is_given]
    if len(given) > 1:
        parser.error(f"argument {given[1]}: not allowed with {given[0]}")
    action = given[0] if given else ""
    is_example = action in ("--example", "--examples")
    is_record = values["json"] or values["jsonl"] is not None
    logs = [values[name] for name in ("debug_log", "trace_json") if values[name] is not None]
    has_system, has_diagrams = values["system"] is not None, values["diagrams"] is not None
    for is_wrong, flag, why in (
        (values["logprobs"] is not None and not is_record, "--logprobs", "needs --json or --jsonl"),
        (values["json"] and action in _REPORTS, "--json", f"not allowed with {action}"),
        (is_example and (has_system or values["completion"]), action,
         "not allowed with --system or --completion"),
        (values["completion"] and values["chat_format"] is not None, "--completion",
         "not allowed with --chat-format"),
        (values["completion"] and has_system, "--completion", "not allowed with --system"),
        (action == "--save-quantized" and values["quantize"] is None, action, "needs --quantize"),
        (values["verify"] and values["quantize"] is not None, "--verify",
         "not allowed with --quantize"),
        (values["quiet"] and values["verbose"], "--quiet", "not allowed with --verbose"),
        (len(logs) == 2 and logs[0] == logs[1], "--trace-json",
         "must be another file than --debug-log"),
        (has_diagrams and action == "--jsonl", "--diagrams", "not allowed with --jsonl"),
        *((values[flag[2:].replace("-", "_")] and not logs, flag,
           "needs --debug-log or --trace-json")
          for flag in ("--trace-layers", "--trace-stages", "--trace-steps", "--trace-statistics")),
    ):  # fmt: skip
        if is_wrong:
            parser.error(f"argument {flag}: {why}")
