"""Runs to draw that are not the bundled model's."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from src import ml, trace
from src.cli.answer import token_text
from src.drawing import Recorder, TracedRun
from src.inference import InferenceEngine, Message, SamplingArgs, Step
from src.model import load_model
from src.trace.events import size_of
from src.trace.records import TensorInfo
from tests.model.families import write_family
from tests.model.tiny import BYTES_VOCAB, write_meta_directory
from tests.tokenizer.json_files import byte_level_file, write_json
from tools.runs import recorded

SEEDED = SamplingArgs(seed=2)


def byte_run(directory: Path, prompt: str, tokens: int) -> TracedRun:
    """Returns a run of a random model with one token per byte."""
    made = write_meta_directory(directory, BYTES_VOCAB, ml.bfloat16, tokenizer=True)
    return _recorded(
        made, lambda engine: engine.chat([Message("user", prompt)], tokens, SEEDED)
    )


def family_run(directory: Path, family: str, text: str = "Hi") -> TracedRun:
    """Returns a run of a random model of another family than Llama."""
    write_json(directory, byte_level_file())
    made = write_family(directory, family, vocab_size=300)

    def start(engine: InferenceEngine) -> Iterator[Step]:
        ids = list(text.encode())
        trace.mark(1, details={"text": text, "ids": ids})
        return engine.generate(ids, 2, SEEDED)

    return _recorded(made, start)


def _recorded(
    made: Path, start: Callable[[InferenceEngine], Iterator[Step]]
) -> TracedRun:
    model = load_model(made)
    recorder = Recorder()
    text_of = functools.partial(token_text, model.tokenizer)
    wants = {"wants": recorder.wants, "values": recorder.wants_values}
    with recorded(model.args, write=recorder.write, text_of=text_of, **wants):
        list(start(InferenceEngine(model, 64)))
    return TracedRun("a random model", model.args.sizes, recorder.events)


def resized(run: TracedRun, sizes: Mapping[str, int]) -> TracedRun:
    """Returns a run with the shapes that another model's sizes give its letters."""

    def tensors(given: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        shapes = (
            tuple(size_of(letter, sizes) or 0 for letter in x.letters) for x in given
        )
        pairs = zip(given, shapes, strict=True)
        return tuple(replace(x, shape=shape) if x.letters else x for x, shape in pairs)

    events = [
        replace(e, inputs=tensors(e.inputs), outputs=tensors(e.outputs))
        for e in run.events
    ]
    return replace(run, events=events, sizes=sizes)
