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
DEFAULT_EXPLORER = Path("explore.html")
DEFAULT_ADDRESS = ("127.0.0.1", 8080)
DEFAULT_SLOTS = 16
# The keys of `CHAT_FORMATS`, in its order; a test compares them.
CHAT_FORMAT_NAMES = (
    "llama3", "llama2", "chatml", "chatml-bos", "smollm2", "qwen2", "qwen2.5", "qwen3", "smollm3",
    "granite", "granite-3.0", "olmo2", "zephyr", "mistral-v1", "mistral-v3", "mistral-v0.1-2023",
    "mistral-v0.2-2023", "deepseek-r1", "deepseek-r1-2025-01",
)  # fmt: skip
THINK = ("on", "off", "hide")
# The keys of `QUANTIZATIONS`; a test compares them.
QUANTIZATION_NAMES = ("nf4", "int8", "q8_0", "q4_0")
GGUF_NAMES = QUANTIZATION_NAMES[2:]
# How many `STAGES` there are; a test compares them.
LAST_STAGE = 21
_REPORTS = (
    "--examples", "--metadata", "--check-weights", "--verify", "--info", "--bench", "--explain",
)  # fmt: skip

# What requests say themselves, or what is of one run alone.
_NOT_SERVED = (
    "--system", "--completion", "--think", "--draft-model", "--max-tokens", "--temperature",
    "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--frequency-penalty",
    "--presence-penalty", "--seed", "--stop", "--json-schema", "--grammar", "--debug-log",
    "--trace-json", "--json", "--logprobs", "--diagrams", "--explore",
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
  llama-bolts --serve                        answer HTTP at 127.0.0.1:8080

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
    think: str | None
    stop: tuple[str, ...]
    model: Path | None
    rope_scaling_factor: float | None
    quantize: str | None
    save_quantized: Path | None
    save_gguf: Path | None
    draft_model: Path | None
    prompt_cache: Path | None
    serve: tuple[str, int] | None
    slots: int | None
    api_key: str | None
    api_key_file: Path | None
    no_api_key: bool
    context_length: int | None
    threads: int | None
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    seed: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    json_schema: Path | None
    grammar: Path | None
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
    explore: Path | None
    explore_with: str | None
    explore_prompt: str | None
    explore_limit: float | None
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


def _new_file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a file: got nothing")
    return Path(text)


def _address(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`, `:PORT`, `PORT` or `HOST`."""
    host, colon, port = text.rpartition(":")
    if (not colon and not text.isdecimal()) or text.endswith("]"):
        host, port = text, str(DEFAULT_ADDRESS[1])
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, PORT from 0 to 65535: got {text}")
    return host.strip("[]") or DEFAULT_ADDRESS[0], int(port)


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
        ("--think", {"choices": THINK, "metavar": "WHAT"},
         "thoughts of a model that thinks: on, off or hide"),
    ),
    "model": (
        ("-m --model", _PATH, "model directory or GGUF file (default: the bundled one)"),
        ("-c --context-length", _POSITIVE,
         f"context in tokens (default: {DEFAULT_CONTEXT_LENGTH}, or the model's)"),
        ("-t --threads", _POSITIVE, "threads (default: the processors it may use)"),
        ("--rope-scaling-factor", _NUMBER | {"type": positive_number},
         "of the rotary embedding, if the files are wrong"),
        ("--quantize", {"choices": QUANTIZATION_NAMES, "metavar": "TYPE"},
         "quantize on loading: nf4 or q4_0 (4 bits), int8 or q8_0 (8 bits)"),
        ("--save-quantized", {"type": _directory, "metavar": "DIR"},
         "write what --quantize nf4 or int8 makes to DIR, a new directory; exit"),
        ("--save-gguf", {"type": _new_file, "metavar": "FILE"},
         "write the model, or what --quantize q8_0 or q4_0 makes, to FILE; exit"),
        ("--draft-model", {"type": _directory, "metavar": "DIR"},
         "a smaller model with the same tokens that guesses the next ones"),
        ("--prompt-cache", _PATH | {"type": _trace_path, "metavar": "FILE"},
         "begin with what FILE has of the prompt, and keep there what is read"),
    ),
    "answer": (
        ("-n --max-tokens", _POSITIVE,
         "most new tokens (default: until a stop); in Python: max_new_tokens"),
        ("--temperature", _NUMBER, "0: always the most likely token (default: 0.6)"),
        ("--top-k", _WHOLE, "sample from the N most likely; 0: all (default: 50)"),
        ("--top-p", _NUMBER, "sample from the top X of probability (default: 0.9)"),
        ("--min-p", _NUMBER, "leave out below X times the likeliest (default: 0)"),
        ("--repeat-penalty", _NUMBER, "make what occurred less likely (default: 1, off)"),
        ("--frequency-penalty", _NUMBER, "less likely each time it was drawn (default: 0)"),
        ("--presence-penalty", _NUMBER, "less likely once it was drawn (default: 0)"),
        ("--seed", _WHOLE, "repeat an answer (default: a new one, and shown)"),
        ("--stop", _TEXT | {"type": _stop_text, "action": "append", "default": []},
         "end before TEXT; may be given several times"),
        ("--json-schema", _PATH | {"metavar": "FILE"},
         "answers are JSON by the schema in FILE (serve extra)"),
        ("--grammar", _PATH | {"metavar": "FILE"},
         "answers follow the Lark grammar in FILE (serve extra)"),
    ),
    "server": (
        ("--serve", {"nargs": "?", "const": DEFAULT_ADDRESS, "type": _address,
                     "metavar": "HOST:PORT"},
         f"answer HTTP as OpenAI's API does (default: {DEFAULT_ADDRESS[0]}:{DEFAULT_ADDRESS[1]})"),
        ("--slots", _POSITIVE, f"requests that run at once (default: {DEFAULT_SLOTS})"),
        ("--api-key", _TEXT, "what clients have to send"),
        ("--api-key-file", _PATH | {"metavar": "FILE"}, "it is in FILE"),
        ("--no-api-key", _SWITCH, "none is needed, at any address"),
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
        ("--explore", _PATH | {"nargs": "?", "const": DEFAULT_EXPLORER, "type": _trace_path},
         f"show this run from the inside, in one HTML file (without PATH: {DEFAULT_EXPLORER})"),
        ("--explore-with", {"metavar": "MODEL_OR_FORMAT"},
         "beside it the same tokens by another model, or quantized: nf4 or int8"),
        ("--explore-prompt", _TEXT, "beside it the run of another prompt"),
        ("--explore-limit", {"type": positive_number, "metavar": "MB"},
         "the largest file, in megabytes (default: 12)"),
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
    "server": "other programs ask over HTTP (serve extra)",
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
        "--save-gguf": values["save_gguf"] is not None,
        "--serve": values["serve"] is not None,
    }
    given = [flag for flag, is_given in actions.items() if is_given]
    if len(given) > 1:
        parser.error(f"argument {given[1]}: not allowed with {given[0]}")
    action = given[0] if given else ""
    is_example = action in ("--example", "--examples")
    is_record = values["json"] or values["jsonl"] is not None
    logs = [values[name] for name in ("debug_log", "trace_json") if values[name] is not None]
    has_system, has_diagrams = values["system"] is not None, values["diagrams"] is not None
    keeps = values["prompt_cache"] is not None
    is_traced = logs or has_diagrams or values["explore"] is not None
    for is_wrong, flag, why in (
        (values["logprobs"] is not None and not is_record, "--logprobs", "needs --json or --jsonl"),
        (values["json"] and action in _REPORTS, "--json", f"not allowed with {action}"),
        (is_example and (has_system or values["completion"]), action,
         "not allowed with --system or --completion"),
        (values["completion"] and values["chat_format"] is not None, "--completion",
         "not allowed with --chat-format"),
        (values["completion"] and values["think"] is not None, "--completion",
         "not allowed with --think"),
        (values["completion"] and has_system, "--completion", "not allowed with --system"),
        (action == "--save-quantized" and values["quantize"] is None, action, "needs --quantize"),
        (action == "--save-quantized" and values["quantize"] in GGUF_NAMES, action,
         f"directories do not have {values['quantize']}, --save-gguf writes it"),
        (action == "--save-gguf" and values["quantize"] not in (None, *GGUF_NAMES), action,
         f"GGUF files do not have {values['quantize']}, but q8_0 and q4_0"),
        (values["verify"] and values["quantize"] is not None, "--verify",
         "not allowed with --quantize"),
        (values["quiet"] and values["verbose"], "--quiet", "not allowed with --verbose"),
        (len(logs) == 2 and logs[0] == logs[1], "--trace-json",
         "must be another file than --debug-log"),
        (has_diagrams and action == "--jsonl", "--diagrams", "not allowed with --jsonl"),
        (keeps and (is_traced or action == "--jsonl"), "--prompt-cache",
         "not allowed with --jsonl or a trace, which runs attention stage by stage"),
        (values["explore"] is not None and action == "--jsonl", "--explore",
         "not allowed with --jsonl"),
        (values["json_schema"] is not None and values["grammar"] is not None, "--grammar",
         "not allowed with --json-schema"),
        (sum((values["api_key"] is not None, values["api_key_file"] is not None,
              bool(values["no_api_key"]))) > 1, "--api-key",
         "only one of --api-key, --api-key-file and --no-api-key is allowed"),
        *((action != "--serve" and values[flag[2:].replace("-", "_")] not in (None, False), flag,
           "needs --serve") for flag in ("--slots", "--api-key", "--api-key-file", "--no-api-key")),
        *((action == "--serve" and values[flag[2:].replace("-", "_")] not in (None, False, ()),
           flag, "not allowed with --serve") for flag in _NOT_SERVED),
        *((values["explore"] is None and values[f"explore_{name}"] is not None,
           f"--explore-{name}", "needs --explore") for name in ("with", "prompt", "limit")),
        *((values[flag[2:].replace("-", "_")] and not logs, flag,
           "needs --debug-log or --trace-json")
          for flag in ("--trace-layers", "--trace-stages", "--trace-steps", "--trace-statistics")),
    ):  # fmt: skip
        if is_wrong:
            parser.error(f"argument {flag}: {why}")
