"""The producers of generated blocks, keyed by the first word of the block's name."""

import ast
import dataclasses
import io
import json
import math
import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pexpect

from src.checkpoint.names import EMBEDDINGS, OUTPUT
from src.choices import ACTIVATIONS
from src.cli.flag_parser import ranges
from src.exercises import Exercise, list_exercises
from src.memory import readable_bytes
from src.model import MemoryForecast, ModelArgs
from src.model.quantization import quantization_of, quantized_model_bytes
from src.trace.code import symbols_of
from src.trace.events import STAGES, size_of
from src.trace.logger import TraceLog, row_text
from src.trace.records import Event, TensorInfo

from .generated import Producer, line_in, with_blocks, with_lines
from .listings import stage_code
from .pages import ROOT, PageError, name_of, table
from .paths import files_on_the_way
from .runs import (
    LLAMA_3_1_8B,
    LLAMAS,
    PAGE,
    ROW,
    SIZES_8B,
    bundled_events,
    bundled_model,
    events_8b,
)
from .touched import CHANGES, checked_places

_POSITIONS = 4096
# Published models, their sizes, whether the output is the embeddings, and how they are
# quantized.
_ROWS = (
    ("Llama 3.2 1B", LLAMAS["1B"], True, None),
    ("Llama 3.2 3B", LLAMAS["3B"], True, None),
    ("Llama 3.1 8B", LLAMAS["8B"], False, None),
    ("Llama 3.1 8B", LLAMAS["8B"], False, "int8"),
    ("Llama 3.1 8B", LLAMAS["8B"], False, "nf4"),
    ("Llama 3.3 70B", LLAMAS["70B"], False, "nf4"),
)
# Of a chat that is typed into a terminal.
_COMMAND = "python -m src.main --temperature 0 --seed 1 --context-length 512"
_KEYS = {"Ctrl-C": "\x03", "Ctrl-D": "\x04"}
_PROMPTS = [r"\r\n>>> ", r"\r\n\.\.\. ", pexpect.EOF]  # what the chat shows when it waits
_EXERCISES_OF = re.compile(r"^<!-- generated: exercises (\d+) -->$", re.MULTILINE)
_REPEATED = re.compile(r"(\d+)\*(.+)")
# Figures of `tests.bench.bench_real`, and the rows of the tables that are made of them.
_REAL_FIGURES = ROOT / "tools" / "real_model.json"
_REAL_FORMATS = {
    "bfloat16": "bfloat16, dequantized from Q4_1", "in the file": "q4_1, as in the file",
    "q8_0": "q8_0", "int8": "int8", "nf4": "nf4", "q4_0": "q4_0",
}  # fmt: skip
_REAL_SPEEDS = {
    "prompt 128": ("prompt of 128 tokens, tokens/s", False),
    "prompt 512": ("prompt of 512 tokens, tokens/s", False),
    "decode": ("one token after the other, tokens/s", False),
    "ready": ("loading, seconds", False),
    "peak": ("memory, at most", True),
}
# Stages of a layer, stages in which each head has a part, and stages of the drawn token.
_LAYER_STAGES = range(5, 19)
_HEAD_STAGES = range(9, 15)
_ANSWER_STAGES = (20, 21)
# The explorer's views of single stages, and the texts of the links to them.
_EXPLORER_VIEWS = {
    1: ("tokens", "the tokens"),
    10: ("attention", "the angles"),
    11: ("cache", "the cache"),
    13: ("attention", "the weights of the head"),
    18: ("residual", "the stream after each layer"),
    19: ("residual", "the logits after each layer"),
    20: ("sampling", "the candidates"),
    21: ("tokens", "the tokens"),
}
# What differs from run to run, and what is too long to show.
_VARIES = (
    (re.compile(r"\b[\d.]+/s\b"), "N/s"),
    (re.compile(re.escape(f"{ROOT}{os.sep}")), ""),
    (re.compile(r"(?:la ){500,}"), "la la la [600 times] "),
    (re.compile(r"(?:la ){20,}"), "la la la [450 times] "),
)


def code(page: Path, argument: str) -> str:
    """Return the source of a symbol: `code src/ml/ops/elementwise.py silu`."""
    name, _, symbol = argument.partition(" ")
    file = ROOT / name
    found = None
    if file.suffix == ".py":
        found = symbols_of(file).get(symbol)
    elif file.is_file() and (number := line_in(file, symbol)) is not None:
        lines = file.read_text(encoding="utf-8").split("\n")
        end = number
        if not lines[number - 1].endswith("}"):
            end += next(
                i for i, line in enumerate(lines[number:], 1) if line in ("}", "};")
            )
        found = number, "\n".join(lines[number - 1 : end])
    if found is None:
        raise PageError(
            f"generated: code: expected a file and its symbol, got {argument!r}"
        )
    language = "py" if file.suffix == ".py" else "c"
    shown = textwrap.dedent(found[1])
    return f"[`{symbol}`]({_from(page, name)}#L{found[0]})\n\n```{language}\n{shown}\n```"


def excerpt(_page: Path, argument: str) -> str:
    """Return some statements in a Python function, each identified by its beginning.

    `excerpt src/model/llama.py LlamaAttention.forward "xq, xk, xv =" "xq = xq.reshape"`
    """
    name, symbol, *beginnings = shlex.split(argument)
    source = symbols_of(ROOT / name).get(symbol)
    if source is None or not beginnings:
        expected = "expected a file, its symbol and beginnings of statements"
        raise PageError(f"generated: excerpt: {expected}, got {argument!r}")
    text = textwrap.dedent(source[1])
    lines = text.split("\n")
    statements = [
        "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
    ]
    quoted = []
    for beginning in beginnings:
        matches = [x for x in statements if x.lstrip().startswith(beginning)]
        if len(matches) != 1:
            expected = (
                f"expected one statement of {symbol} that begins with {beginning!r}"
            )
            raise PageError(f"generated: excerpt: {expected}, got {len(matches)}")
        quoted.append(textwrap.dedent(matches[0]))
    return "```py\n" + "\n".join(quoted) + "\n```"


def stages(page: Path, _argument: str) -> str:
    """Return a table of all stages with their chapters, diagrams and code."""
    rows = []
    for stage in STAGES.values():
        links = (
            (stage.name, stage.chapter),
            (Path(stage.diagram).name, stage.diagram),
            (f"`{stage.function}`", stage.code.replace(":", "#L")),
        )
        rows.append(
            [stage.number, *(f"[{text}]({_from(page, place)})" for text, place in links)]
        )
    return table("| stage | chapter | diagram | code |\n|---:|---|---|---|", rows)


def shapes(_page: Path, argument: str) -> str:
    """Return the ops of some stages with the shapes for two models: `shapes 8-10`."""
    wanted = _stages(argument)
    events = _first_pass([event for event in bundled_events() if event.stage in wanted])
    T = next(event.details["T"] for event in bundled_events() if event.stage == 3)
    rows = [
        (
            "" if event.op == "mark" else f"`{event.op}`",
            f"`{x.name}`",
            f"`[{', '.join(x.letters)}]`",
            list(x.shape),
            [size_of(letter, SIZES_8B) for letter in x.letters],
            x.dtype,
        )
        for event in events
        for x in event.outputs
    ]
    heading = (
        f"| op | result | letters | bundled, T = {T} | 8B, T = {SIZES_8B['T']} | dtype |"
    )
    return table(f"{heading}\n|---|---|---|---|---|---|", rows)


def stage_part(page: Path, argument: str) -> str:
    """Return a stage's code, log lines and values for one token: `stage 13`.

    `stage 11 only "cache =" "LlamaAttention.eager: keys, values =" without "assert"`
    selects statements by their beginnings: statements of the stage's function or of
    another function to show, and statements inside them to leave out.
    """
    words = shlex.split(argument)
    (number,) = _stages(words[0])
    stage = STAGES[number]
    name, _, first = stage.code.partition(":")
    mark = f"{stage.function}: mark({number})"
    symbol = stage.function if line_in(ROOT / name, mark) is None else mark
    link = f'[`{name}`]({_from(page, name)}#L{first} "{symbol}")'
    only, without = _choices(words[1:])
    start = int(first) - 1
    code, is_whole = stage_code(ROOT / name, stage.function, start, only, without)
    intro = "The code" if is_whole else "The code in short"
    parts = [
        f"{intro}, {link}:\n\n```py\n{code}\n```",
        f"Its lines in the log of the run of this chapter:\n\n{log(page, words[0])}",
    ]
    numbers = _token_numbers(number)
    if numbers:
        said = "The last token of the prompt, before and after each op:"
        parts.append(f"{said}\n\n```text\n{numbers}\n```")
    parts.append(_explorer_links(page, number, has_values=bool(numbers)))
    return "\n\n".join(parts)


def _explorer_links(page: Path, stage: int, *, has_values: bool) -> str:
    """Return a line with links to the places of a stage in the explorer's example."""
    T = next(event.details["T"] for event in bundled_events() if event.stage == 3)
    place = {"stage": stage}
    if stage in _LAYER_STAGES:
        place["layer"] = 0
    if stage in _HEAD_STAGES:
        place["head"] = ROW.head
    place["token"] = T if stage in _ANSWER_STAGES else T - 1
    views = [("map", "the stage")]
    if has_values:
        views.append(("values", "its values"))
    if stage in _EXPLORER_VIEWS:
        views.append(_EXPLORER_VIEWS[stage])
    links = []
    for view, text in views:
        fragment = "&".join(f"{key}={value}" for key, value in place.items())
        target = f"{_from(page, name_of(PAGE))}#view={view}&{fragment}"
        links.append(f"[{text}]({target})")
    return f"In the explorer: {', '.join(links)}."


def _choices(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the beginnings of statements after `only`, and those after `without`."""
    choices: dict[str, list[str]] = {"only": [], "without": []}
    for word in words:
        if word in choices:
            chosen = choices[word]
        else:
            chosen.append(word)
    return choices["only"], choices["without"]


def _token_numbers(stage: int) -> str:
    """Return rows with the last token's values in the inputs and results of a stage."""
    known: dict[int, TensorInfo] = {}
    rows: list[tuple[str, TensorInfo]] = []
    shown: set[int] = set()
    for event in _first_pass(list(bundled_events())):
        if event.stage == stage and event.op not in ("layer", "mark"):
            read = [known[x.id] for x in event.inputs if x.id in known]
            for said, tensors in (("before", read), (event.op, event.outputs)):
                for x in tensors:
                    if x.id not in shown and x.row is not None:
                        shown.add(x.id)
                        rows.append((said, x))
        known |= {x.id: x for x in event.outputs}
    if not rows:
        return ""
    width = max(len(said) for said, _ in rows)
    names = [row_text(x).partition("]")[0] for _, x in rows]
    name_width = max(map(len, names)) + 1
    return "\n".join(f"{said:<{width}} {row_text(x, name_width)}" for said, x in rows)


def log(_page: Path, argument: str) -> str:
    """Return lines of `debug.log` without times and links: `log 13` or `log 13 8b`."""
    numbers, _, model = argument.partition(" ")
    wanted = _stages(numbers)
    if model not in ("", "8b"):
        raise PageError(f"generated: log: expected a model, 8b or none, got {model!r}")
    events = events_8b() if model else bundled_events()
    sizes = LLAMA_3_1_8B.sizes if model else bundled_model().args.sizes
    capacity = next(
        x.shape[0] for event in events if event.stage == 11 for x in event.outputs
    )
    written = io.StringIO()
    view = TraceLog(sizes | {"C": capacity}, debug_log=written)
    text = ""
    for event in _first_pass(
        list(events), layer=None
    ):  # a heading may name an earlier stage's T
        start = written.tell()
        outputs = tuple(dataclasses.replace(x, row=None) for x in event.outputs)
        view.write(dataclasses.replace(event, seconds=None, outputs=outputs))
        if event.stage in wanted:
            text += written.getvalue()[start:]
    lines = text.strip("\n").splitlines()
    shown = "\n".join(line for line in lines if not line.startswith("#   "))
    return f"```text\n{shown}\n```"


def _from(page: Path, place: str) -> str:
    """Return the path of a file in the repository, relative to a page."""
    return os.path.relpath(ROOT / place, page.parent)


def _stages(argument: str) -> set[int]:
    numbers = {number for part in ranges(argument) for number in part}
    if not numbers <= set(STAGES):
        raise PageError(
            f"generated: expected stages from 1 to {len(STAGES)}, got {argument!r}"
        )
    return numbers


def _first_pass(events: list[Event], layer: int | None = 0) -> list[Event]:
    """Return the events of the first pass through the network, for one or all layers."""
    first: list[Event] = []
    marks: set[tuple[int, int | None]] = set()
    for event in events:
        if event.op == "mark":
            if (event.stage, event.layer) in marks:
                break
            marks.add((event.stage, event.layer))
        if layer is None or event.layer in (None, layer):
            first.append(event)
    return first


def weight_bytes(args: ModelArgs, is_tied: bool, quantize: str | None) -> int:
    """Return the size of a model's weights in bytes, as saved if they are quantized."""
    counts = {name: math.prod(shape) for name, shape in args.tensor_shapes.items()}
    if quantize is not None:
        embeddings = counts[EMBEDDINGS] * args.dtype.itemsize
        return embeddings + quantized_model_bytes(args, quantization_of(quantize))
    return args.dtype.itemsize * (
        sum(counts.values()) - (counts[OUTPUT] if is_tied else 0)
    )


def memory(_page: Path, _argument: str) -> str:
    """Return a table of models with the sizes of their files and allocated memory."""
    bundled = bundled_model()
    rows = []
    for name, args, nbytes, quantize in (
        ("bundled", bundled.args, bundled.checkpoint.mapped_bytes, None),
        *(
            (name, args, weight_bytes(args, tied, to), to)
            for name, args, tied, to in _ROWS
        ),
    ):
        needed = MemoryForecast(args, _POSITIONS, mapped=nbytes).needed
        sizes = map(readable_bytes, (nbytes, needed, nbytes + needed))
        rows.append([name, quantize or "bfloat16", *sizes])
    together = f"allocated for {_POSITIONS} positions | together"
    return table(
        f"| model | weights | weight files | {together} |\n|---|---|---|---|---|", rows
    )


def chat(page: Path, argument: str) -> str:
    """Return a part of a page's chat: `chat "Hello!" /help Ctrl-C "600*la "`.

    All blocks of a page form one chat, and no two blocks have the same lines. `600*la `
    repeats a text.
    """
    text = page.read_text(encoding="utf-8")
    parts = re.findall(r"^<!-- generated: chat (.*) -->$", text, flags=re.MULTILINE)
    return f"```text\n{_transcript(tuple(parts))[parts.index(argument)]}\n```"


@cache
def _transcript(parts: tuple[str, ...]) -> list[str]:
    """Run a chat in a directory with a file `maria.txt`; return each part's output."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    transcript = []
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "maria.txt").write_text("My name is Maria.\n", encoding="utf-8")
        child = pexpect.spawn(
            sys.executable,
            _COMMAND.split()[1:],
            cwd=directory,
            env=environment | {"TERM": "dumb", "PYTHONPATH": str(ROOT)},
            timeout=60,
            encoding="utf-8",
        )
        try:
            child.expect(_PROMPTS)
            shown = f"$ {_COMMAND}\n{child.before}\n"
            for part in parts:
                for line in shlex.split(part):
                    repeated = _REPEATED.fullmatch(line)
                    typed = int(repeated[1]) * repeated[2] if repeated else line
                    child.send(_KEYS.get(line, f"{typed}\n"))
                    shown += child.after.lstrip("\r\n")
                    child.expect(_PROMPTS)
                    shown += f"{child.before}\n"
                for pattern, replacement in _VARIES:
                    shown = pattern.sub(replacement, shown)
                transcript.append(
                    "\n".join(map(str.rstrip, shown.splitlines())).strip("\n")
                )
                shown = ""
        finally:
            child.close(force=True)
    return transcript


def real(_page: Path, argument: str) -> str:
    """Return results of SmolLM2: `formats`, `perplexity`, `speed`, `answer` or `log`."""
    parts = {
        "formats": _real_formats,
        "perplexity": _real_perplexity,
        "speed": _real_speed,
        "answer": _real_answer,
        "log": _real_log,
    }
    if argument not in parts:
        raise PageError(
            f"generated: real: expected one of {', '.join(parts)}, got {argument!r}"
        )
    figures = json.loads(_REAL_FIGURES.read_text(encoding="utf-8"))
    return parts[argument](figures["answer" if argument == "log" else argument])


def _real_formats(figures: Mapping[str, Any]) -> str:
    heading = (
        "| weights | size | activations | perplexity | KL divergence "
        "| same most probable token |\n|---|---|---|---|---|---|"
    )
    rows = []
    for name, label in _REAL_FORMATS.items():
        row = figures[name]
        for activations in ACTIVATIONS:
            if activations not in row:
                continue
            found = row[activations]
            is_first = activations == ACTIVATIONS[0]
            is_plain = ACTIVATIONS[1] not in row
            rows.append(
                [
                    label if is_first else "",
                    readable_bytes(row["bytes"]) if is_first else "",
                    "not rounded" if is_plain else activations,
                    f"{found['perplexity']:.3f}",
                    f"{found['divergence']:.5f} ± {found['divergence_error']:.5f}",
                    f"{100 * found['same_top']:.1f} %",
                ]
            )
    return f"{table(heading, rows)}\n\n{_run_of(figures)}"


def _real_perplexity(figures: Mapping[str, Any]) -> str:
    ours = figures["llama-bolts"]
    theirs = figures["llama.cpp"]
    rows = [["llama-bolts", f"{ours:.4f}"], ["llama.cpp", f"{theirs:.4f}"]]
    difference = (
        f"{100 * abs(ours / theirs - 1):.2f} % apart, over {figures['tokens']} tokens"
    )
    shown = table("| program | perplexity |\n|---|---|", rows)
    return f"{shown}\n\nBoth are {difference}. {_run_of(figures)}"


def _real_speed(figures: Mapping[str, Any]) -> str:
    rows = []
    for name, (label, is_bytes) in _REAL_SPEEDS.items():
        row = figures[name]
        show = _rounded_bytes if is_bytes else _three_digits
        span = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['greatest']:.2f})"
        rows.append([label, show(row["llama-bolts"]), show(row["llama.cpp"]), span])
    heading = "| | llama-bolts | llama.cpp | ratio |\n|---|---|---|---|"
    count = f"Medians of {figures['rounds']} rounds."
    return f"{table(heading, rows)}\n\n{count} {_run_of(figures)}"


def _real_answer(figures: Mapping[str, Any]) -> str:
    text = textwrap.fill(figures["answer"], 100)
    return f"```text\n>>> {figures['question']}\n{text}\n```"


def _real_log(figures: Mapping[str, Any]) -> str:
    return "\n".join(["```text", *figures["log"], "```"])


def _rounded_bytes(count: float) -> str:
    return readable_bytes(round(count))


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _run_of(figures: Mapping[str, Any]) -> str:
    """Return a sentence with the date and the machine of a measurement."""
    run = figures["run"]
    machine = (
        f"{run['processor']}, {run['processors']} processors, `{run['instruction_set']}`"
    )
    return f"Measured on {run['date']}: {machine}."


_WAYS: Mapping[str, Sequence[tuple[str, Sequence[str]]]] = {
    "prompt": [("Of a completion", ("--completion",)), ("Of a chat", ())],
    "weight": [
        ("Of a GGUF file (q8_0)", ("gguf",)),
        ("Of a safetensors file (int8)", ("safetensors",)),
        ("Of a PyTorch file (bfloat16)", ("pth",)),
    ],
    "request": [
        ("Of `/v1/completions`", ("/v1/completions",)),
        ("Of `/v1/chat/completions`", ("/v1/chat/completions",)),
    ],
}


def path(_page: Path, argument: str) -> str:
    """Return the files that run in the first case, and the files that others add."""
    parts = list[str]()
    known = set[str]()
    for title, arguments in _WAYS[argument]:
        files = files_on_the_way(argument, *arguments)
        added = [name for name in files if name not in known]
        count = f"{len(files)} files{', of which these are new' if known else ''}"
        lines = textwrap.wrap(" ".join(added), 100, break_on_hyphens=False)
        parts += [f"{title}, {count}:", "\n".join(["```text", *lines, "```"])]
        known.update(files)
    return "\n\n".join(parts)


def touched(page: Path, _argument: str) -> str:
    """Return a table of the files that each kind of change affects."""
    rows = []
    for change in CHANGES:
        checked_places(change)
        cells = [
            ", ".join(f"[`{name}`]({_from(page, name)})" for name in names)
            for names in (change.code, change.others)
        ]
        count = len(change.code)
        rows.append([change.kind, change.example, count, *cells])
    heading = (
        "| addition | example | files of `src` and `csrc` | these | tests and pages |\n"
        "|---|---|---|---|---|"
    )
    return table(heading, rows)


def exercises(page: Path, argument: str) -> str:
    """Return the exercises of a chapter, or a table of all without an argument."""
    if not argument:
        return _exercise_table(page)
    own = [each for each in list_exercises() if str(each.chapter) == argument]
    if not own:
        raise PageError(f"generated: exercises: expected a chapter, got {argument!r}")
    return "\n\n".join(map(_exercise_text, own))


def _exercise_table(page: Path) -> str:
    """Return a table of all exercises, with links to their chapters."""
    pages = {
        int(chapter): place
        for place in sorted((ROOT / "docs").glob("*.md"))
        for chapter in _EXERCISES_OF.findall(place.read_text(encoding="utf-8"))
    }
    rows = []
    for each in list_exercises():
        place = _from(page, name_of(pages[each.chapter]))
        chapter = f"[{_title_of(pages[each.chapter])}]({place}#exercises)"
        time = f"{each.minutes} min"
        rows.append([each.number, each.title, each.kind, time, each.difficulty, chapter])
    heading = (
        "| number | exercise | kind | time | difficulty | chapter |\n"
        "|---|---|---|--:|---|---|"
    )
    return table(heading, rows)


def _title_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _exercise_text(exercise: Exercise) -> str:
    """Return a task, the command that marks an answer, and a folded solution."""
    facts = f"{exercise.kind}, {exercise.minutes} minutes, {exercise.difficulty}"
    command = f"python -m src.main --exercise {exercise.number} {exercise.answer_file}"
    return (
        f"### {exercise.number} {exercise.title}\n\n*{facts}*\n\n{exercise.task}\n"
        f"```sh\n{command}\n```\n\n"
        "<details>\n<summary>A solution</summary>\n\n"
        f"```python\n{exercise.solution}```\n\n</details>"
    )


PRODUCERS: dict[str, Producer] = {
    "chat": chat,
    "code": code,
    "excerpt": excerpt,
    "exercises": exercises,
    "log": log,
    "memory": memory,
    "path": path,
    "real": real,
    "shapes": shapes,
    "stage": stage_part,
    "stages": stages,
    "touched": touched,
}


def current_text(page: Path) -> str:
    """Return a page with current links to code and current generated blocks."""
    text = with_lines(page, page.read_text(encoding="utf-8"))
    return with_blocks(page, text, PRODUCERS)
