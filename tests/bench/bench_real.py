"""Measures SmolLM2: what each format costs, speed and memory next to llama.cpp, and an
answer.

    python -m tests.bench.bench_real formats [FORMAT ...]
    python -m tests.bench.bench_real perplexity [--chunks A B]
    python -m tests.bench.bench_real speed [--rounds 4] [--threads 2]
    python -m tests.bench.bench_real answer

Each step adds its figures to `tools/real_model.json`, of which `python -m
tools.update_docs` makes the tables of `docs/REAL-MODEL.md`. llama.cpp is the library in
the package xllamacpp. Both programs have a process for each round, in the order A B B A,
and a ratio is taken within one round.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from src import ml
from src.catalog import find_model
from src.choices import ACTIVATIONS
from src.inference import (
    InferenceEngine,
    Message,
    SamplingArgs,
    mean_estimate,
    perplexity_of,
    score_chunks,
    text_chunks,
)
from src.model import InferenceContext, Model, load_model
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from tests.support import llama_cpp
from tests.support.llama_perplexity import chunk_losses

from .processes import machine

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "tools" / "real_model.json"
TEXT = ROOT / "tests" / "golden" / "long.txt"
CHUNK = 512
FORMAT_CHUNKS = 2
PROMPTS = (128, 512)
STEPS = 32
OURS = "llama-bolts"
THEIRS = "llama.cpp"
FORMATS = ("in the file", "bfloat16", "q8_0", "int8", "nf4", "q4_0")
BEGINNING = "The capital of Massachusetts is"
QUESTION = "What does a computer program do? Answer in two sentences."


def update_figures(step: str, found: dict[str, Any]) -> None:
    """Replace the figures of a step, with the machine, the versions and the day."""
    figures = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    run = {
        "date": date.today().isoformat(),
        **machine(),
        "instruction_set": ml.build_info()["isa"],
        "threads": ml.get_num_threads(),
        "xllamacpp": metadata.version("xllamacpp"),
    }
    figures[step] = figures.get(step, {}) | found | {"run": run}
    FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(json.dumps(found, indent=1, ensure_ascii=False))


def text() -> str:
    """Return the frozen text as `--perplexity` reads it."""
    return TEXT.read_text("utf-8").removesuffix("\n")


# ---- what each format costs ----


def saved(source: Path, directory: Path, name: str) -> Path:
    """Write the model in a format, made of its dequantized weights,
    and return its path.
    """
    if name == "in the file":
        return source
    if name in ("q8_0", "q4_0"):
        save_gguf(source, directory / "a.gguf", name, dequantize=True)
        return directory / "a.gguf"
    kind = None if name == "bfloat16" else name
    save_quantized(source, directory / "a", kind, dequantize=True)
    return directory / "a"


def weight_bytes(model: Model) -> int:
    return sum(weight.nbytes for weight in model.tensors.values())


def measure_formats(names: list[str]) -> None:
    """Compare formats, with activations of 16 and of 8 bits, with the dequantized weights
    of the file in bfloat16.
    """
    source = find_model("smollm2")
    reference = load_model(source, dequantize=True)
    assert reference.tokenizer is not None
    chunks = text_chunks(reference.tokenizer, text(), CHUNK)[:FORMAT_CHUNKS]
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            path = saved(source, Path(directory), name)
            figures: dict[str, dict[str, float]] = {}
            for activations in ACTIVATIONS:
                model = load_model(path, activations=activations)
                if activations == (model.activations or ACTIVATIONS[0]):
                    figures[activations] = compared(model, reference, chunks)
            found[name] = {"bytes": weight_bytes(model), **figures}
    update_figures("formats", {"tokens": FORMAT_CHUNKS * CHUNK, **found})


def compared(model: Model, reference: Model, chunks: list[Any]) -> dict[str, float]:
    """Return a model's perplexity on chunks of a text, and how far it is from another."""
    scores = list(score_chunks(model.transformer, chunks, reference.transformer))
    against = [score.against for score in scores if score.against is not None]
    value = perplexity_of(np.concatenate([score.losses for score in scores]))
    divergence = mean_estimate(np.concatenate([part.divergences for part in against]))
    return {
        "perplexity": value.value,
        "perplexity_error": value.error,
        "divergence": divergence.value,
        "divergence_error": divergence.error,
        "same_top": float(np.concatenate([part.same_top for part in against]).mean()),
    }


# ---- perplexity next to llama.cpp ----


def measure_perplexity(first: int, last: int) -> None:
    """Score chunks from the first to before the last by both programs, and add them to
    the rest.
    """
    source = find_model("smollm2")
    model = load_model(source)
    assert model.tokenizer is not None
    chunks = text_chunks(model.tokenizer, text(), CHUNK)[first:last]
    ours = [score.losses.sum() for score in score_chunks(model.transformer, chunks)]
    with llama_cpp.LlamaCpp(source, CHUNK, threads=2) as other:
        theirs = [sum(chunk_losses(other, chunk)) for chunk in chunks]
    figures = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    sums = figures.get("perplexity", {}).get("sums", {})
    for place, pair in enumerate(zip(ours, theirs, strict=True), first):
        sums[str(place)] = list(pair)
    counted = len(sums) * (CHUNK - CHUNK // 2 - 1)
    totals = [sum(pair[column] for pair in sums.values()) / counted for column in (0, 1)]
    found = {"sums": sums, "tokens": len(sums) * CHUNK, "counted": counted}
    found |= dict(zip((OURS, THEIRS), map(float, np.exp(totals)), strict=True))
    update_figures("perplexity", found)


# ---- speed and memory ----


def peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def measure_round(engine: str, threads: int) -> None:
    """Time one program in this process; print its figures as JSON."""
    source = find_model("smollm2")
    positions = max(PROMPTS) + STEPS
    ids = np.random.default_rng(7).integers(100, 40000, positions).tolist()
    started = time.perf_counter()
    if engine == OURS:
        ml.set_num_threads(threads)
        model = load_model(source)
        context = InferenceContext(model.args, positions)

        def run(part: list[int], is_first: bool) -> None:
            if is_first:
                context.clear()
            model.transformer.forward(context, part, context.length).numpy()
    else:
        other = llama_cpp.LlamaCpp(source, positions, threads)

        def run(part: list[int], is_first: bool) -> None:
            if is_first:
                other.clear()
            other.run(part)

    ready = time.perf_counter() - started
    run(ids[:16], True)
    found = {"ready": ready}
    for length in PROMPTS:
        started = time.perf_counter()
        run(ids[:length], True)
        found[f"prompt {length}"] = length / (time.perf_counter() - started)
    seconds = []
    for token in ids[max(PROMPTS) :]:
        started = time.perf_counter()
        run([token], False)
        seconds.append(time.perf_counter() - started)
    found["decode"] = 1 / statistics.median(seconds)
    found["peak"] = peak_memory()
    print(json.dumps(found))


def measure_speed(rounds: int, threads: int) -> None:
    """Time both programs in turn, each in a separate process for each round."""
    found: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}
    for number in range(rounds):
        order = (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS)
        for engine in order:
            command = [sys.executable, "-m", __spec__.name, "round", engine, str(threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[engine].append(json.loads(done.stdout))
    result: dict[str, Any] = {"rounds": rounds}
    for name in found[OURS][0]:
        ours, theirs = (
            [each[name] for each in found[engine]] for engine in (OURS, THEIRS)
        )
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        result[name] = {
            OURS: statistics.median(ours),
            THEIRS: statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
        }
    update_figures("speed", result)


# ---- an answer ----


def measure_answer() -> None:
    """Answer a question with the most probable tokens, which are the same on every
    machine.
    """
    engine = InferenceEngine(load_model("smollm2"), 512)
    greedy = SamplingArgs(temperature=0.0)
    steps = list(engine.chat([Message("user", QUESTION)], 200, greedy))
    answer = "".join(step.text for step in steps)
    found = {"question": QUESTION, "answer": answer, "tokens": len(steps)}
    found |= {
        "stop_reason": steps[-1].stop_reason,
        "text": BEGINNING,
        "log": logged_choice(),
    }
    update_figures("answer", found)


def logged_choice() -> list[str]:
    """Return the lines of `debug.log` about the first token after a text."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "debug.log")
        flags = [
            "--completion",
            "-p",
            BEGINNING,
            "-n",
            "1",
            "--temperature",
            "0",
            "--seed",
            "1",
        ]
        command = [sys.executable, "-m", "src.main", "-m", "smollm2", *flags]
        command += ["--debug-log", str(path)]
        subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=True)
        log = path.read_text("utf-8")
    stage = log[log.index("# 20 sampling") :]
    lines = stage[: stage.index("# 21 ")].strip().splitlines()
    # The places in the code and the links move with every change.
    return [line for line in lines if not line.startswith("#  ") and ".py:" not in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    formats = steps.add_parser("formats")
    formats.add_argument("formats", nargs="*", default=FORMATS)
    perplexity = steps.add_parser("perplexity")
    perplexity.add_argument(
        "--chunks", nargs=2, type=int, default=(0, 40), metavar=("A", "B")
    )
    speed = steps.add_parser("speed")
    speed.add_argument("--rounds", type=int, default=4)
    speed.add_argument("--threads", type=int, default=2)
    steps.add_parser("answer")
    one = steps.add_parser("round")
    one.add_argument("engine", choices=(OURS, THEIRS))
    one.add_argument("threads", type=int)
    options = parser.parse_args()
    if options.step == "formats":
        measure_formats(list(options.formats))
    elif options.step == "perplexity":
        measure_perplexity(*options.chunks)
    elif options.step == "speed":
        measure_speed(options.rounds, options.threads)
    elif options.step == "answer":
        measure_answer()
    else:
        measure_round(options.engine, options.threads)


if __name__ == "__main__":
    main()
