"""Extensions of argparse: one-line errors, checked values, other programs' flags."""

import argparse
import contextlib
import difflib
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ..sampling_steps import STEPS
from ..untrusted import escape_line

T = TypeVar("T")

# Names of the flags in llama.cpp, ollama, mlx_lm and transformers.
_SAME = {
    "--completion": "-no-cnv --no-conversation --ignore-chat-template",
    "--context-length": "--ctx-size --num-ctx",
    "--max-tokens": "--predict --n-predict --num-predict --max-new-tokens",
    "--temperature": "--temp",
    "--repeat-penalty": "--repetition-penalty",
    "--stop": "-r --reverse-prompt",
    "--system": "-sys --system-prompt",
    "--chat-template": "--chat-template-file",
    "--rope-scaling-factor": "--rope-scale",
    "--draft-model": "-md --model-draft",
    "--lora": "--lora-scaled --adapter-path --adapter",
    "--json-schema": "-j -jf --json-schema-file",
    "--grammar": "--grammar-file",
    "--slots": "-np --parallel",
    "--hf-repo": "-hfr",
    "--help": "-help --usage",
}
# Flags of those programs that have no effect on answers here, by reason. "=" marks a flag
# with a value, which is also skipped.
_IGNORED = {
    "a prompt of -p is answered once, without it there is a chat": (
        "-st --single-turn -cnv --conversation -i --interactive -if --interactive-first "
        "-mli --multiline-input"
    ),
    "the model runs on the processor, in memory that the system manages": (
        "-ngl= --gpu-layers= --n-gpu-layers= -sm= --split-mode= -mg= --main-gpu= -ts= "
        "--tensor-split= -dev= --device= -ot= --override-tensor= -cmoe --cpu-moe -ncmoe= "
        "--n-cpu-moe= -nkvo --no-kv-offload --no-op-offload --mlock --no-mmap --numa= "
        "--keepalive="
    ),
    "the kernels choose it themselves": (
        "-fa= --flash-attn= -b= --batch-size= -ub= --ubatch-size= -tb= --threads-batch= "
        "--prio= --poll= --no-warmup --warmup -td= --threads-draft= --repack -nr "
        "--no-repack"
    ),
    "a full context ends the answer": "--no-context-shift --keep=",
    "it is always so": (
        "--jinja --no-display-prompt --no-escape --no-perf --simple-io -co --color= "
        "--log-disable --log-colors= --nowordwrap --use-default-chat-template"
    ),
}
_STEP_NAMES = [step.label for step in STEPS.values()]
# Flags of those programs without an equivalent here, by suggested alternative.
_REFUSED = {
    "-m takes a path or a name such as org/repo of Hugging Face's hub": (
        "-mu= --model-url= -dr="
    ),
    "the environment variable HF_TOKEN contains the token": "-hft= --hf-token=",
    '-s "$(cat FILE)" reads the text of a file': "-sysf= --system-prompt-file=",
    "the shell reads escapes: $'two\\nlines'": "-e --escape",
    "--cache-type sets the type of keys and values": (
        "-ctk= --cache-type-k= -ctv= --cache-type-v= --kv-bits= --kv-group-size= "
        "--quantized-kv-start="
    ),
    "the engine chooses the length of a draft": (
        "--draft= --draft-max= --draft-min= --num-draft-tokens="
    ),
    "--json-schema FILE or --grammar FILE constrains an answer": "--format=",
    "-v shows details": "-lv= --verbosity= --verbose-prompt",
    f"the sampling has {', '.join(_STEP_NAMES[:-1])} and {_STEP_NAMES[-1]}": (
        "--samplers= --sampler-seq= --mirostat= --mirostat-lr= --mirostat-ent= "
        "--typical= --top-nsigma= --repeat-last-n= -l= --logit-bias= --dynatemp-range= "
        "--dynatemp-exp= --xtc-probability= --xtc-threshold= --dry-multiplier= "
        "--dry-base= --dry-allowed-length= --dry-penalty-last-n= --ignore-eos "
        "--extra-eos-token="
    ),
    "--kl-divergence MODEL runs the reference model": "--kl-divergence-base=",
    "chunks do not overlap": "--ppl-stride=",
    "--overflow drop drops the oldest turns of a full chat": "--context-shift",
    "--vector adds a steering vector of a safetensors file": "--control-vector=",
}
OTHER_NAMES = {theirs: ours for ours, names in _SAME.items() for theirs in names.split()}
_LONGEST_MESSAGE = 400
_SIMILARITY = 0.7  # minimum similarity of a suggested flag


def rejection_of(flag: str) -> str | None:
    """Return why another program's flag is not available, or None if unknown."""
    for reason, names in _REFUSED.items():
        if flag in names.replace("=", "").split():
            return f"not available: {reason}"
    return None


class FlagParser(argparse.ArgumentParser):
    """A parser with one-line errors. argparse's own errors also print the usage."""

    def error(self, message: str) -> NoReturn:
        """Print one line on standard error and exit with code 2."""
        line = escape_line(message, _LONGEST_MESSAGE)
        self.exit(2, f"error: {line} (--help lists the options)\n")

    def add_foreign_flags(self) -> None:
        """Accept flags of other programs, ignore them with a warning, or reject them."""
        for theirs, ours in OTHER_NAMES.items():
            self._option_string_actions[theirs] = self._option_string_actions[ours]
        for is_refused, table in enumerate((_IGNORED, _REFUSED)):
            for reason, names in table.items():
                for name in names.split():
                    self.add_argument(
                        name.rstrip("="),
                        action=_ForeignFlag,
                        const=(is_refused, reason),
                        nargs="?" if name.endswith("=") else 0,
                        dest=argparse.SUPPRESS,
                        help=argparse.SUPPRESS,
                    )

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Parse `-n5` as `-n 5`, as argparse does, but do not parse `-st` as `-s t`."""
        if not option_string[2:].lstrip("=").isdecimal():
            return []
        return super()._get_option_tuples(option_string)

    def suggestion(self, unknown: str) -> str:
        """Return `; did you mean ...?` with similar flags, or an empty string."""
        name = unknown.partition("=")[0].replace("_", "-")
        actions = self._option_string_actions
        flags = [flag for flag in actions if flag.startswith("--")]
        beginnings = [
            flag for flag in flags if name.startswith("--") and flag.startswith(name)
        ]
        similar = beginnings or difflib.get_close_matches(name, flags, cutoff=_SIMILARITY)
        names = dict.fromkeys(actions[flag].option_strings[-1] for flag in similar)
        return f"; did you mean {' or '.join(names)}?" if names else ""


class _ForeignFlag(argparse.Action):
    """A flag of another program that is rejected, or ignored together with its value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _names: Any,
        _value: Any,
        name: str | None = None,
    ) -> None:
        is_refused, reason = self.const
        if is_refused:
            parser.error(f"argument {name}: not available: {reason}")
        parser._print_message(f"warning: {name} is ignored: {reason}\n", sys.stderr)


class FlagFormatter(argparse.RawDescriptionHelpFormatter):
    """Formats flags as `-p, --prompt TEXT`, in lines of 79 characters."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27, width=79)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)
        return f"{', '.join(action.option_strings)} {metavar}"


def checked(
    parse: Callable[[str], T], rule: str, is_right: Callable[[T], bool] = lambda _: True
) -> Callable[[str], T]:
    """Return a parser that raises ArgumentTypeError for values out of range."""

    def read(text: str) -> T:
        with contextlib.suppress(ValueError):
            value = parse(text)
            if is_right(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {rule}: got {text or 'nothing'}")

    return read


def _ranges(text: str) -> tuple[range, ...]:
    if not re.fullmatch(
        r"\d+(-\d+)?(,\d+(-\d+)?)*", text
    ):  # int() also accepts +3 and 1_0
        raise ValueError
    parts = [part.partition("-") for part in text.split(",")]
    return tuple(
        range(int(first), int(last if dash else first) + 1) for first, dash, last in parts
    )


def _row_choice(text: str) -> tuple[int | None, int]:
    """Parse `26`, `26:2` or `last:2`: a position or None, and a query head."""
    if not re.fullmatch(r"(\d+|last)(:\d+)?", text):
        raise ValueError
    position, _, head = text.partition(":")
    return None if position == "last" else int(position), int(head or 0)


integer = checked(int, "a whole number")
positive_integer = checked(integer, "at least 1", lambda value: value >= 1)
not_negative_integer = checked(integer, "0 or more", lambda value: value >= 0)
number = checked(float, "a number")
positive_number = checked(
    number, "a finite number above 0", lambda value: 0 < value < math.inf
)
ranges = checked(_ranges, "numbers and ascending ranges like 0,3-5", all)
row_choice = checked(_row_choice, "a position or last, and a head as in 26:2")
