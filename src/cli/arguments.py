"""The command-line arguments and the predefined prompts.

Only modules needed by argparse are imported, so that `--help` responds immediately. The
ranges of the sampling settings are defined in `SamplingArgs`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .. import __version__
from ..chat_formats import CHAT_FORMATS
from ..choices import ACTIVATIONS, ATTENTIONS, CACHE_TYPES, QUANTIZED_TYPES
from ..sampling_steps import STEPS
from ..trace.events import STAGES
from ..untrusted import parse_strict_json, replace_surrogates
from . import mpi_place
from .flag_parser import (
    FlagFormatter,
    FlagParser,
    checked,
    integer,
    not_negative_integer,
    number,
    positive_integer,
    positive_number,
    ranges,
    row_choice,
)

DEFAULT_CONTEXT_LENGTH = 4096
# The length of the model's longest training documents. Its answers to longer contexts are
# meaningless.
BUNDLED_CHAT_LENGTH = 1024
MOST_SCALE = 1000  # maximum magnitude of the scale of an adapter
MOST_CANDIDATES = 100  # maximum number of candidates reported for a step
DEFAULT_DEBUG_LOG = Path("debug.log")
DEFAULT_EXPLORER = Path("explore.html")
DEFAULT_ADDRESS = ("127.0.0.1", 8080)
DEFAULT_SLOTS = 16
THINK = ("on", "off", "hide")
OVERFLOW = ("refuse", "drop")
SAMPLING_DEFAULTS = ("model", "engine")
_LAST_STAGE = max(STAGES)
_REPORTS = (
    "--examples",
    "--list-models",
    "--metadata",
    "--verify",
    "--info",
    "--bench",
    "--explain",
    "--exercise",
    "--perplexity",
    "--make-vector",
    "--patch-scan",
    "--ablate-scan",
)
# The flags that select an action. Only one of them is allowed.
_ACTIONS = (
    "--prompt",
    "--file",
    "--jsonl",
    "-",
    "--example",
    *_REPORTS,
    "--save-quantized",
    "--save-gguf",
    "--merge-lora",
    "--serve",
)
# Pairs of action flags that are allowed together: a text can be followed by a question,
# and `--verify` accepts a prompt.
_TOGETHER = (
    ("--prompt", "--file"),
    ("--prompt", "-"),
    ("--prompt", "--verify"),
    ("--prompt", "--patch-scan"),
)
_TRACES = ("--debug-log", "--trace-json", "--diagrams", "--explore")
# Flags that are not allowed with several processes under mpirun.
_OF_ONE_PROCESS = (
    *_REPORTS[1:],
    "--save-quantized",
    "--save-gguf",
    "--merge-lora",
    "--prompt-cache",
    "--save-activation",
    *_TRACES,
)
# Flags that change or record tensors of answers.
_CHANGES = ("--set-activation", "--vector", "--save-activation")
# Flags that require at least one of the listed flags.
_NEEDS = {
    "--logprobs": ("--json", "--jsonl"),
    "--hf-file": ("--hf-repo",),
    "--save-quantized": ("--quantize", "--dequantize"),
    "--merge-lora": ("--lora",),
    **dict.fromkeys(
        ("--slots", "--api-key", "--api-key-file", "--no-api-key", "--share-prefixes"),
        ("--serve",),
    ),
    "--solution": ("--exercise",),
    "--kl-divergence": ("--perplexity",),
    "--chunks": ("--perplexity", "--ablate-scan"),
    **dict.fromkeys(("--vector-texts", "--vector-layer"), ("--make-vector",)),
    "--make-vector": ("--vector-texts",),
    "--patch-at": ("--patch-scan",),
    "--patch-scan": ("--prompt",),
    **dict.fromkeys(("--scan-json", "--scan-plot"), ("--patch-scan", "--ablate-scan")),
    **dict.fromkeys(
        ("--explore-with", "--explore-prompt", "--explore-limit"), ("--explore",)
    ),
    "--explore-patches": ("--explore-prompt",),
    **dict.fromkeys(
        (
            "--trace-layers",
            "--trace-stages",
            "--trace-steps",
            "--trace-row",
            "--trace-statistics",
        ),
        ("--debug-log", "--trace-json"),
    ),
}
# Flags that exclude the listed flags.
_NOT_WITH = (
    *(
        (later, (earlier,))
        for earlier, later in combinations(_ACTIONS, 2)
        if (earlier, later) not in _TOGETHER
    ),
    ("--verify", ("--dequantize", "--quantize", "--cache-type")),
    *(
        (flag, ("--save-quantized", "--save-gguf", "--merge-lora"))
        for flag in ("--activations", "--cache-type")
    ),
    ("--json", _REPORTS),
    (
        "--lora",
        (
            *(flag for flag in _REPORTS if flag not in ("--perplexity", "--examples")),
            "--save-quantized",
            "--save-gguf",
        ),
    ),
    *(
        (
            flag,
            (
                *(each for each in _REPORTS if each != "--examples"),
                "--save-quantized",
                "--save-gguf",
                "--merge-lora",
            ),
        )
        for flag in _CHANGES
    ),
    *((flag, ("--system", "--completion")) for flag in ("--example", "--examples")),
    (
        "--completion",
        ("--chat-format", "--chat-template", "--template-arg", "--think", "--system"),
    ),
    ("--chat-template", ("--chat-format",)),
    ("--quiet", ("--verbose",)),
    ("--hf-repo", ("--model",)),
    ("--exercise", ("--model", "--hf-repo", "--quantize", "--dequantize")),
    ("--jsonl", ("--diagrams", "--explore", "--prompt-cache", "--branch")),
    ("--branch", (*_TRACES, *(flag for flag in _REPORTS if flag != "--examples"))),
    ("--explore-patches", ("--explore-with",)),
    ("--grammar", ("--json-schema",)),
    ("--api-key-file", ("--api-key",)),
    ("--no-api-key", ("--api-key", "--api-key-file")),
    # These settings are part of each request, or apply only to a single run.
    (
        "--serve",
        (
            "--system",
            "--completion",
            "--think",
            "--draft-model",
            "--attention",
            "--max-tokens",
            *(step.flag for step in STEPS.values()),
            "--seed",
            "--stop",
            "--json-schema",
            "--grammar",
            "--json",
            "--logprobs",
            "--overflow",
            "--branch",
            *_CHANGES,
            *_TRACES,
        ),
    ),
)

_DESCRIPTION = """\
Chat with a Llama in the terminal; with a prompt, answer once and exit.
The answer goes to standard output, everything else to standard error."""

_EPILOG = """\
examples:
  llama-bolts                                chat with the bundled model
  llama-bolts -m ~/Llama3.1-8B-Instruct      chat with your own
  llama-bolts -p "Why is the sky blue?"      answer once
  cat letter | llama-bolts -p "Summarize."   ask about standard input
  llama-bolts --completion -p "Once upon"    continue raw text
  llama-bolts --serve                        answer HTTP at 127.0.0.1:8080

exit codes:
  0 done   2 usage   3 bad model, tokenizer or config   4 not enough memory
  5 not-a-number in the logits   130 interrupted"""


@dataclass(frozen=True)
class Example:
    """A predefined prompt from the source engine, with field names as in `Options`."""

    prompt: str
    system: str | None = None
    completion: bool = False

    @property
    def description(self) -> str:
        """A one-line description of the example."""
        kind = "completion" if self.completion else "chat"
        system = f" (system: {self.system})" if self.system else ""
        return f"[{kind}] {self.prompt}{system}"


# Source: adalkiran/llama-nuts-and-bolts, `predefinedPrompts` in cmd/main.go (printed in
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
    """Return the examples as numbered lines, starting at 1."""
    return [
        f"{number}. {example.description}" for number, example in enumerate(EXAMPLES, 1)
    ]


def _host_and_port(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, `:PORT`, `PORT` or `HOST` and return the host and the port."""
    host, colon, port = text.rpartition(":")
    if (not colon and not text.isdecimal()) or text.endswith("]"):
        host = text
        port = str(DEFAULT_ADDRESS[1])
    if not port.isdecimal():  # int() would also accept +80
        raise ValueError
    return host.strip("[]") or DEFAULT_ADDRESS[0], int(port)


def _schema(text: str) -> Path | str:
    """Return a JSON schema as a string, or the path of a file."""
    return text if text.lstrip().startswith("{") else Path(text)


def _adapter(text: str) -> tuple[Path, float]:
    """Parse `PATH` or `PATH:SCALE` and return the path and the scale, 1 by default."""
    path, _, end = text.rpartition(":")
    try:
        scale = number(end) if path else 1.0
    except argparse.ArgumentTypeError:  # the colon is part of the path
        scale = 1.0
        path = ""
    if not text or not -MOST_SCALE <= scale <= MOST_SCALE:
        raise ValueError
    return Path(path or text), scale


def _template_argument(text: str) -> tuple[str, object]:
    """Parse `NAME=JSON` and return the name and the value."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError
    return name, parse_strict_json(value.encode("utf-8", "surrogatepass"))


def _whole(low: int, high: int, noun: str = "") -> dict[str, Any]:
    in_range = checked(
        integer, f"{noun}{low} to {high}", lambda value: low <= value <= high
    )
    return {"type": in_range, "metavar": "N"}


_stop_text = checked(replace_surrogates, "a text", bool)
_system_text = checked(
    replace_surrogates, "a text, --seed sets a seed", lambda text: not text.isdecimal()
)
_TEMPLATE_ARGUMENT = {
    "type": checked(_template_argument, "NAME=JSON, as in enable_thinking=false"),
    "metavar": "NAME=JSON",
    "action": "append",
    "default": [],
}
adapter_of = checked(
    _adapter, f"PATH or PATH:SCALE, SCALE from -{MOST_SCALE} to {MOST_SCALE}"
)
_ADAPTER = {
    "type": adapter_of,
    "metavar": "PATH[:SCALE]",
    "action": "append",
    "default": [],
}


def _activation_file(text: str) -> tuple[str, Path]:
    """Parse `ADDRESS=FILE` and return the address and the path."""
    address, equals, path = text.partition("=")
    if not address or not equals or not path:
        raise ValueError
    return address.strip(), Path(path)


def _branch(text: str) -> tuple[int, str]:
    """Parse `N:TOKEN` and return the number and the token."""
    number, colon, token = text.partition(":")
    if not number.isdecimal() or not int(number) or not colon or not token:
        raise ValueError
    return int(number), token


_BRANCH = {
    "type": checked(_branch, "N:TOKEN, as in '3: Paris', N from 1"),
    "metavar": "N:TOKEN",
}
_CHANGE = {
    "type": checked(
        replace_surrogates, "ADDRESS=VALUE, ADDRESS*=X, ADDRESS+=VALUE", bool
    ),
    "metavar": "ADDRESS=VALUE",
    "action": "append",
    "default": [],
}
_VECTOR = _ADAPTER | {
    "type": checked(
        _adapter, f"FILE or FILE:SCALE, SCALE from -{MOST_SCALE} to {MOST_SCALE}"
    ),
    "metavar": "FILE[:SCALE]",
}
_ACTIVATION_FILE = _CHANGE | {
    "type": checked(_activation_file, "ADDRESS=FILE, as in x[layer 6]=x.safetensors"),
    "metavar": "ADDRESS=FILE",
}
_target = checked(lambda text: text not in ("", "-") and Path(text), "a path", bool)
_address = checked(
    _host_and_port, "HOST:PORT, PORT from 0 to 65535", lambda at: at[1] <= 65535
)
_stages = checked(
    ranges,
    f"stages from 1 to {_LAST_STAGE}",
    lambda parts: all(part.start >= 1 and part.stop <= _LAST_STAGE + 1 for part in parts),
)
_TEXT, _PATH, _NUMBER, _WHOLE = (
    {"type": parse, "metavar": name}
    for parse, name in (
        (replace_surrogates, "TEXT"),
        (Path, "PATH"),
        (number, "X"),
        (integer, "N"),
    )
)
_POSITIVE = {"type": positive_integer, "metavar": "N"}
_CONTEXT_LENGTH = {"type": not_negative_integer, "metavar": "N"}
_POSITIVE_NUMBER = {"type": positive_number, "metavar": "X"}
_SWITCH = {"action": "store_true"}
_FILE = _PATH | {"metavar": "FILE"}
_NAME = {"metavar": "PATH_OR_NAME"}
_TO_PATH, _TO_FILE, _DIRECTORY = (
    {"type": _target, "metavar": name} for name in ("PATH", "FILE", "DIR")
)


# One field and flag for each sampling step.
_STEP_FIELDS = {
    name: Annotated[
        float | None, _WHOLE if step.is_whole else _NUMBER, step.help_with_default
    ]
    for name, step in STEPS.items()
}
if TYPE_CHECKING:
    _StepOptions = object
else:
    _StepOptions = make_dataclass(
        "_StepOptions", _STEP_FIELDS.items(), frozen=True, kw_only=True
    )


@dataclass(frozen=True, kw_only=True)
class Options(_StepOptions):
    """The command-line arguments in the order of `--help`, which also define the flags.

    A flag is named after its field unless `_NAMES` contains other names. A default of
    None means that the value depends on the model or the machine. The flags of the
    sampling steps (`STEPS`) come after `sampling_defaults`.
    """

    prompt: Annotated[
        str | None, _TEXT, "the prompt, or the question after FILE or standard input"
    ]
    file: Annotated[Path | None, _FILE, "read the prompt from FILE"]
    jsonl: Annotated[
        Path | None, _FILE, "answer each line of FILE (-: standard input) with a record"
    ]
    standard_input: Annotated[
        bool,
        {"nargs": "?", "metavar": "-"},
        "read the prompt from standard input; implied in a pipe",
    ]
    example: Annotated[
        int | None,
        _whole(1, len(EXAMPLES)),
        f"run predefined prompt N of {len(EXAMPLES)} (see --examples)",
    ]
    system: Annotated[str | None, _TEXT | {"type": _system_text}, "system prompt"]
    completion: Annotated[bool, _SWITCH, "continue raw text instead of chatting"]
    chat_format: Annotated[
        str | None,
        {"choices": tuple(CHAT_FORMATS), "metavar": "NAME"},
        f"the model's own by default, or: {', '.join(CHAT_FORMATS)}",
    ]
    chat_template: Annotated[
        str | None,
        {"metavar": "NAME|FILE"},
        "a chat template: the name of a format, or a Jinja file",
    ]
    template_arg: Annotated[
        tuple[tuple[str, object], ...],
        _TEMPLATE_ARGUMENT,
        "a variable of the chat template, in JSON; may be repeated",
    ]
    think: Annotated[
        str | None,
        {"choices": THINK, "metavar": "WHAT"},
        "thoughts of a reasoning model: on, off or hide",
    ]

    model: Annotated[
        Path | str | None,
        _NAME,
        "model directory, GGUF file, or name (default: the bundled model)",
    ]
    hf_repo: Annotated[
        str | None,
        {"metavar": "ORG/REPO[:QUANT]"},
        "a model of Hugging Face's hub (hub extra)",
    ]
    hf_file: Annotated[str | None, _FILE | {"type": str}, "a GGUF file of ORG/REPO"]
    yes: Annotated[bool, _SWITCH, "download more than 1 GB without a question"]
    context_length: Annotated[
        int | None,
        _CONTEXT_LENGTH,
        "context in tokens; 0: all that the model has (default: "
        f"{DEFAULT_CONTEXT_LENGTH}, or the model's; {BUNDLED_CHAT_LENGTH} in a chat with "
        "the bundled model)",
    ]
    threads: Annotated[
        int | None, _POSITIVE, "threads (default: the processors it may use)"
    ]
    rope_scaling_factor: Annotated[
        float | None, _POSITIVE_NUMBER, "override the RoPE scaling factor of the files"
    ]
    dequantize: Annotated[
        bool,
        _SWITCH,
        "dequantize quantized weights on loading, before --quantize",
    ]
    quantize: Annotated[
        str | None,
        {"choices": [*QUANTIZED_TYPES], "metavar": "TYPE"},
        "quantize on loading: nf4 or q4_0 (4 bits), int8 or q8_0 (8 bits)",
    ]
    activations: Annotated[
        str | None,
        {"choices": ACTIVATIONS, "metavar": "TYPE"},
        "round activations to int16, or to int8, which is faster and less accurate, in "
        "products with quantized weights (default: int16)",
    ]
    cache_type: Annotated[
        str | None,
        {"choices": CACHE_TYPES, "metavar": "TYPE"},
        "store keys and values in the dtype of the activations (plain), or with 8 bits "
        "per element (q8_0) (default: plain)",
    ]
    lora: Annotated[
        tuple[tuple[Path, float], ...],
        _ADAPTER,
        "add a LoRA adapter: a directory of peft or mlx, or a GGUF file; may be repeated",
    ]
    save_quantized: Annotated[
        Path | None,
        _DIRECTORY,
        (
            "write the weights of --quantize nf4 or int8, or of --dequantize, to "
            "DIR, a new directory; exit"
        ),
    ]
    save_gguf: Annotated[
        Path | None,
        _TO_FILE,
        "write the model, with --quantize q8_0 or q4_0 if given, to FILE; exit",
    ]
    merge_lora: Annotated[
        Path | None,
        _TO_PATH | {"metavar": "DIR|FILE.gguf"},
        "write the model with the adapters of --lora merged into its weights; exit",
    ]
    draft_model: Annotated[
        Path | str | None,
        _NAME,
        "a smaller model with the same vocabulary, for speculative decoding",
    ]
    attention: Annotated[
        str | None,
        {"choices": ATTENTIONS, "metavar": "FORM"},
        "fused: one op; eager: an op per stage, with the same bits (default: fused)",
    ]
    set_activation: Annotated[
        tuple[str, ...],
        _CHANGE,
        "change a tensor of the run, as in layers.3.attention.heads[5]=0, "
        "x[layer 6]*=0.5 or x[layer 6]@12+=FILE:KEY; may be repeated",
    ]
    vector: Annotated[
        tuple[tuple[Path, float], ...],
        _VECTOR,
        "add a steering vector of --make-vector to the residual stream; may be repeated",
    ]
    save_activation: Annotated[
        tuple[tuple[str, Path], ...],
        _ACTIVATION_FILE,
        "write a tensor of the run to a safetensors FILE; may be repeated",
    ]
    prompt_cache: Annotated[
        Path | None,
        _TO_FILE,
        "load the KV cache of the prompt from FILE and save it there",
    ]

    max_tokens: Annotated[
        int | None,
        _POSITIVE,
        "most new tokens (default: until a stop); in Python: max_new_tokens",
    ]
    sampling_defaults: Annotated[
        str | None,
        {"choices": SAMPLING_DEFAULTS, "metavar": "WHOSE"},
        (
            "model: the settings that the model recommends; engine: the defaults "
            "below (default: model)"
        ),
    ]
    overflow: Annotated[
        str | None,
        {"choices": OVERFLOW, "metavar": "WHAT"},
        "a full chat: refuse the message, or drop the oldest turns (default: refuse)",
    ]
    seed: Annotated[
        int | None, _WHOLE, "repeat an answer (default: a new seed, which is printed)"
    ]
    stop: Annotated[
        tuple[str, ...],
        _TEXT | {"type": _stop_text, "action": "append", "default": []},
        "end the answer before TEXT; may be repeated",
    ]
    branch: Annotated[
        tuple[int, str] | None,
        _BRANCH,
        "show, next to the answer, how it goes on with TOKEN as its token N",
    ]
    json_schema: Annotated[
        Path | str | None,
        {"type": _schema, "metavar": "FILE_OR_JSON"},
        "answers are JSON that follows a schema: a file, or {...} (serve extra)",
    ]
    grammar: Annotated[
        Path | None,
        _FILE,
        (
            "answers follow the grammar in FILE, in Lark's or llama.cpp's notation "
            "(serve extra)"
        ),
    ]

    serve: Annotated[
        tuple[str, int] | None,
        {
            "nargs": "?",
            "const": DEFAULT_ADDRESS,
            "type": _address,
            "metavar": "HOST:PORT",
        },
        (
            "answer HTTP as OpenAI's API does (default: "
            f"{DEFAULT_ADDRESS[0]}:{DEFAULT_ADDRESS[1]})"
        ),
    ]
    slots: Annotated[
        int | None, _POSITIVE, f"requests that run at once (default: {DEFAULT_SLOTS})"
    ]
    api_key: Annotated[str | None, _TEXT, "the key that clients must send"]
    api_key_file: Annotated[
        Path | None, _FILE, "read the API keys from FILE, one per line"
    ]
    no_api_key: Annotated[bool, _SWITCH, "allow requests without a key at any address"]
    share_prefixes: Annotated[bool, _SWITCH, "share cached prompts among all clients"]

    json: Annotated[bool, _SWITCH, "one JSON record per answer instead of its text"]
    logprobs: Annotated[
        int | None,
        _whole(0, MOST_CANDIDATES),
        "in records: log-probabilities of each token and the top N",
    ]
    statistics: Annotated[
        bool,
        {"dest": "statistics", "action": "store_false"},
        "print no statistics after an answer",
    ]
    quiet: Annotated[bool, _SWITCH, "print only answers, warnings and errors"]
    verbose: Annotated[bool, _SWITCH, "print details and tracebacks"]

    debug_log: Annotated[
        Path | None,
        _TO_PATH | {"nargs": "?", "const": DEFAULT_DEBUG_LOG},
        f"write a readable log (without PATH: {DEFAULT_DEBUG_LOG})",
    ]
    trace_json: Annotated[Path | None, _TO_PATH, "write JSON lines for programs"]
    trace_layers: Annotated[
        tuple[range, ...] | None,
        {"type": ranges, "metavar": "RANGES"},
        "layers such as 0,3-5 (default: 0 in the log, all in JSON)",
    ]
    trace_stages: Annotated[
        tuple[range, ...] | None,
        {"type": _stages, "metavar": "RANGES"},
        f"stages such as 8-13 (default: all, 1-{_LAST_STAGE})",
    ]
    trace_steps: Annotated[
        tuple[range, ...] | None,
        {"type": ranges, "metavar": "RANGES"},
        "steps such as 0-5; step 0 is the prompt (default: 0-1 in the log, all in JSON)",
    ]
    trace_row: Annotated[
        tuple[int | None, int] | None,
        {"type": row_choice, "metavar": "N[:HEAD]"},
        "add one row of each result: of position N or last, in a query head (0)",
    ]
    trace_statistics: Annotated[
        bool, _SWITCH, "add min, max, mean, rms, first and last values"
    ]
    diagrams: Annotated[
        Path | None,
        _DIRECTORY,
        "draw the stages of this run and the whole model into DIR, as SVG",
    ]
    explore: Annotated[
        Path | None,
        _TO_PATH | {"nargs": "?", "const": DEFAULT_EXPLORER},
        (
            "write the inner state of this run to one HTML file (without PATH: "
            f"{DEFAULT_EXPLORER})"
        ),
    ]
    explore_with: Annotated[
        str | None,
        {"metavar": "MODEL_OR_FORMAT"},
        "add the same tokens by another model, quantized (nf4 or int8), or without the "
        "adapters of --lora and changes of --set-activation (base)",
    ]
    explore_prompt: Annotated[str | None, _TEXT, "add the run of another prompt"]
    explore_patches: Annotated[
        bool,
        _SWITCH,
        "add the effect of each place of the run when it has the tensor of the other "
        "prompt's run",
    ]
    explore_limit: Annotated[
        float | None,
        _POSITIVE_NUMBER | {"metavar": "MB"},
        "the largest file, in megabytes (default: 12)",
    ]

    examples: Annotated[
        bool, _SWITCH, "list predefined prompts; choose one in a terminal"
    ]
    list_models: Annotated[
        bool, _SWITCH, "list the models on this machine, by their names for -m"
    ]
    metadata: Annotated[bool, _SWITCH, "print hyperparameters, tensors, counts and bytes"]
    verify: Annotated[
        bool, _SWITCH, "compare each stage with transformers (oracle extra)"
    ]
    info: Annotated[bool, _SWITCH, "print versions, instruction set, threads, memory"]
    bench: Annotated[bool, _SWITCH, "measure tokens per second and this machine's limits"]
    perplexity: Annotated[
        Path | None,
        _FILE,
        (
            "measure how well the model predicts the text of FILE, in chunks of -c "
            "tokens (default: 512)"
        ),
    ]
    kl_divergence: Annotated[
        Path | None,
        _PATH,
        (
            "with --perplexity: the divergence from the model at PATH, such as the "
            "unquantized weights"
        ),
    ]
    chunks: Annotated[
        int | None, _POSITIVE, "with --perplexity or --ablate-scan: the first N chunks"
    ]
    make_vector: Annotated[
        Path | None,
        _TO_FILE,
        "write a steering vector of each layer, for --vector, to a safetensors FILE",
    ]
    vector_texts: Annotated[
        tuple[str, ...],
        {"nargs": 2, "metavar": ("TOWARDS", "AWAY"), "default": []},
        "with --make-vector: two files with a text per line; the vector is the "
        "difference of their mean residual streams",
    ]
    vector_layer: Annotated[
        int | None,
        {"type": not_negative_integer, "metavar": "N"},
        "with --make-vector: the layer of --vector (default: the middle)",
    ]
    patch_scan: Annotated[
        str | None,
        _TEXT,
        "show which layer, head and position make -p predict another token than the "
        "prompt TEXT, which has as many tokens",
    ]
    patch_at: Annotated[
        int | None, _POSITIVE, "with --patch-scan: the token of the answer (default: 1)"
    ]
    ablate_scan: Annotated[
        Path | None,
        _FILE,
        "measure the loss of the text of FILE without each head and each feed-forward",
    ]
    scan_json: Annotated[Path | None, _TO_FILE, "write the numbers of a scan to FILE"]
    scan_plot: Annotated[Path | None, _TO_FILE, "draw the heat map of a scan, as SVG"]
    explain: Annotated[
        int | None,
        _whole(1, _LAST_STAGE, "a stage from "),
        f"explain stage N of the {_LAST_STAGE} stages of the trace",
    ]
    exercise: Annotated[
        tuple[str, ...],
        {"nargs": "+", "metavar": "N.M [FILE]", "default": []},
        "list: all exercises; N.M: a task; N.M FILE: mark the Python program in FILE",
    ]
    solution: Annotated[bool, _SWITCH, "with --exercise N.M: show a solution"]


_NAMES = {
    "prompt": "-p --prompt",
    "file": "-f --file",
    "standard_input": "standard_input",
    "system": "-s --system",
    "model": "-m --model",
    "context_length": "-c --context-length",
    "hf_repo": "-hf --hf-repo",
    "hf_file": "-hff --hf-file",
    "threads": "-t --threads",
    "max_tokens": "-n --max-tokens",
    "statistics": "--no-stats",
    "quiet": "-q --quiet",
    "verbose": "-v --verbose",
}
# The names, argparse arguments and help text of each field's flag.
_FIELDS: dict[str, Any] = {}
for _name, _field in Options.__annotations__.items():
    _FIELDS[_name] = _field
    if _name == "sampling_defaults":
        _FIELDS |= _STEP_FIELDS
FLAGS: dict[str, tuple[str, dict[str, Any], str]] = {
    name: (_NAMES.get(name, f"--{name.replace('_', '-')}"), *field.__metadata__)
    for name, field in _FIELDS.items()
}

# The titles of the groups in `--help`, by their first field, and a line below each title.
_GROUPS = {
    "prompt": ("prompt", "one prompt, its answer, exit; without one, a chat"),
    "model": ("model", None),
    "max_tokens": ("answer", None),
    "serve": ("server", "answer other programs over HTTP (serve extra)"),
    "json": ("output", None),
    "debug_log": ("trace", "the shape of every tensor, stage by stage"),
    "examples": ("reports", "print and exit"),
}


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    """Parse the given arguments, or the process's arguments, and return the options.

    Raises:
        SystemExit: With code 0 after `--help`, or with code 2 after a one-line error.
    """
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    values = vars(parsed)
    _read_exercise(parser, values)
    flags = [argument for argument in unknown if argument.startswith("-")]
    if flags:
        parser.error(
            f"unrecognized arguments: {' '.join(flags)}{parser.suggestion(flags[0])}"
        )
    for text in (values["standard_input"], *unknown):
        if text not in (None, "-"):
            parser.error(f"argument: expected -p TEXT for a prompt, got {text}")
    values["standard_input"] = values["standard_input"] == "-"
    values["stop"] = tuple(values["stop"])
    values["template_arg"] = tuple(values["template_arg"])
    for name in ("lora", "set_activation", "vector", "save_activation", "vector_texts"):
        values[name] = tuple(values[name])
    _check_combinations(parser, values)
    if values["hf_repo"] is not None:
        parts = (f"hf.co/{values['hf_repo']}", values["hf_file"])
        values["model"] = "/".join(part for part in parts if part)
    return Options(**values)


def build_parser() -> FlagParser:
    """Return a parser for all flags, grouped as in `--help`."""
    parser = FlagParser(
        prog="llama-bolts",
        usage="%(prog)s [options] [-p TEXT] [-f FILE | -]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=FlagFormatter,
        # Otherwise, a new flag could change the meaning of an abbreviation.
        allow_abbrev=False,
        add_help=False,
    )
    for field, (names, reading, text) in FLAGS.items():
        if field in _GROUPS:
            group = parser.add_argument_group(*_GROUPS[field])
        group.add_argument(*names.split(), help=text, **reading)
    version = f"%(prog)s {__version__}"
    group.add_argument("--version", action="version", version=version, help="version")
    group.add_argument("-h", "--help", action="help", help="this text")
    parser.add_foreign_flags()
    return parser


def _read_exercise(parser: argparse.ArgumentParser, values: dict[str, Any]) -> None:
    """Convert the words after `--exercise`, which takes all words that follow it."""
    words: list[str] = values["exercise"]
    if "-" in words:
        words.remove("-")
        values["standard_input"] = "-"
    if len(words) > 2:
        got = " ".join(words[2:])
        parser.error(f"argument --exercise: expected N.M and at most one FILE, got {got}")
    values["exercise"] = tuple(words)


def _check_combinations(
    parser: argparse.ArgumentParser, values: Mapping[str, Any]
) -> None:
    """Exit with an error if flags contradict each other."""
    given = {
        "-" if name == "standard_input" else names.split()[-1]
        for name, (names, *_) in FLAGS.items()
        if values[name] not in (None, ()) and values[name] is not False  # 0 is valid
    }
    for flag, others in _NOT_WITH:
        if flag in given and (excluded := [other for other in others if other in given]):
            parser.error(f"argument {flag}: not allowed with {excluded[0]}")
    for flag, needed in _NEEDS.items():
        if flag in given and not given.intersection(needed):
            parser.error(f"argument {flag}: needs {' or '.join(needed)}")
    if mpi_place()[1] > 1 and (alone := given.intersection(_OF_ONE_PROCESS)):
        parser.error(f"argument {min(alone)}: expected one process, got several (mpirun)")
    if "--debug-log" in given and values["debug_log"] == values["trace_json"]:
        parser.error("argument --trace-json: must be another file than --debug-log")
