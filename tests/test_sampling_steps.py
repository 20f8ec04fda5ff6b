"""The steps of the sampling occur wherever people meet them, because one table lists
them.
"""

import base64
import dataclasses
import io
import json
import re
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from src import trace
from src.cli.answer import Settings
from src.cli.arguments import FLAGS, build_parser
from src.cli.saved_chat import SavedChat, chat_as_json
from src.drawing import Recorder, TracedRun, draw_all
from src.explorer import Store, run_traced, write_html
from src.inference import InferenceEngine, SamplingArgs
from src.inference.sampling import STEPS_OFF, Sampler
from src.sampling_steps import STEPS, STEPS_IN_ORDER, SamplingStep
from src.trace.logger import TraceLog
from tools.runs import bundled_model, recorded

ROOT = Path(__file__).parents[1]
IDS = [72, 101, 108, 108, 111]
each_step = pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))


def value_on(step: SamplingStep) -> float:
    """Return a value of the range with which a step changes something."""
    return next(value for value in (2, 0.5) if value != step.off and value <= step.high)


ALL_ON = SamplingArgs(**{name: value_on(step) for name, step in STEPS.items()}, seed=1)


@cache
def page_of_a_run() -> dict:
    """Return the document of the explorer's page that shows a token drawn by all
    steps.
    """
    store = Store()
    run = run_traced(bundled_model(), IDS, 1, ALL_ON, store)
    html = "".join(write_html([run], store))
    data = re.search(r'id="document">([^<]*)<', html)
    assert data is not None
    return json.loads(zlib.decompress(base64.b64decode(data[1])))


@cache
def log_and_diagram(sampling: SamplingArgs) -> tuple[str, str]:
    """Return the log of a token that was drawn by all steps,
    and the diagram of stage 20.
    """
    model = bundled_model()
    file = io.StringIO()
    recorder = Recorder()
    log = TraceLog(model.args.sizes, debug_log=file, stages=(range(20, 21),))

    def write(event):
        recorder.write(event)
        if log.wants(event.stage, event.layer, event.step):
            log.write(event)

    with recorded(model.args, write=write, values=recorder.wants_values):
        trace.mark(1, details={"text": "Hello", "ids": IDS})
        list(InferenceEngine(model, 16).generate(IDS, 1, sampling))
    events = TracedRun("m", model.args.sizes, recorder.events)
    return file.getvalue(), draw_all(events)["stage-20.svg"]


def test_the_arguments_of_a_sampler_are_the_steps_a_seed_and_a_bias():
    fields = {field.name: field.default for field in dataclasses.fields(SamplingArgs)}
    assert fields.keys() == STEPS.keys() | {"seed", "logit_bias"}
    assert [*STEPS] == [name for name in fields if name in STEPS]
    for name, step in STEPS.items():
        assert fields[name] == step.default
        assert getattr(STEPS_OFF, name) == step.off
        assert type(step.off) is type(step.default)
    assert sorted(STEPS) == sorted(step.name for step in STEPS_IN_ORDER)


def test_penalties_come_before_the_other_steps():
    kinds = [step.is_penalty for step in STEPS_IN_ORDER]
    assert kinds == sorted(kinds, reverse=True)


@each_step
def test_a_step_changes_the_distribution(step):
    logits = np.array([3.0, 2.5, 2.0, 0.0, -4.0], np.float32)
    values = {"top_k": 2, "top_p": 0.5, "min_p": 0.9}
    value = values.get(step.name, value_on(step))
    samplers = [
        Sampler(args) for args in (STEPS_OFF, replace(STEPS_OFF, **{step.name: value}))
    ]
    for sampler in samplers:
        sampler.observe([0], is_drawn=True)
    (ids, off), (ids_on, on) = (sampler.distribution(logits) for sampler in samplers)
    assert ids.tolist() != ids_on.tolist() or not np.allclose(off, on)


@each_step
def test_a_step_is_a_flag_whose_help_has_its_default(step):
    help_text = " ".join(build_parser().format_help().split())
    assert re.search(rf"{step.flag} [NX] {re.escape(step.help_with_default)}", help_text)
    assert f"(default: {step.default:g}" in FLAGS[step.name][2]


@each_step
def test_a_step_is_a_setting_of_a_chat_which_a_file_keeps(step):
    settings = Settings().changed(step.label, str(value_on(step)))
    assert getattr(settings, step.name) == value_on(step)
    chat = json.loads(chat_as_json(SavedChat("m", False, settings, None, ())))
    assert chat["settings"][step.name] == value_on(step)


@each_step
def test_a_step_is_a_field_of_a_request(step):
    bodies = pytest.importorskip(
        "src.server.bodies", reason="the serve extra is not installed"
    )
    body = {"prompt": "", step.name: value_on(step)}
    parsed = bodies.parse_body(json.dumps(body).encode(), bodies.CompletionBody)
    (sampling,) = parsed.sampling({})
    assert getattr(sampling, step.name) == value_on(step)


@each_step
def test_a_step_is_in_the_log_and_in_the_diagram_of_a_choice(step):
    log, diagram = log_and_diagram(ALL_ON)
    assert f"{step.name} {value_on(step)}" in log
    assert f"{step.name} = {value_on(step):g}" in diagram
    assert step.effect in diagram


def test_a_penalty_of_0_is_not_shown_and_one_of_1_is():
    log, diagram = log_and_diagram(SamplingArgs(seed=1))
    for text in (log, diagram):
        assert [name for name in STEPS if name not in text] == [
            "frequency_penalty", "presence_penalty",
        ]  # fmt: skip


def test_the_page_of_the_explorer_has_the_steps_in_their_order():
    document = page_of_a_run()
    assert [row["name"] for row in document["steps"]] == [
        step.name for step in STEPS_IN_ORDER
    ]
    assert [row["off"] for row in document["steps"]] == [
        step.off for step in STEPS_IN_ORDER
    ]
    (drawn,) = [one for one in document["runs"][0]["passes"] if "token" in one]
    stages = [stage["name"] for stage in drawn["choice"]["stages"]]
    assert stages == ["model", *(step.name for step in STEPS_IN_ORDER)]


@each_step
def test_the_docs_have_a_step_and_its_default(step):
    server = (ROOT / "docs" / "SERVER.md").read_text(encoding="utf-8")
    (row,) = [
        line
        for line in server.splitlines()
        if line.startswith("|") and f"`{step.name}`" in line
    ]
    first, _, default = [cell.strip() for cell in row.strip("|").split(" | ")]
    names = re.findall(r"`(\w+)`", first)
    defaults = re.findall(r"[\d.]+", re.sub(r"\(.*?\)", "", default))
    assert defaults in (
        [f"{step.default:g}"],
        [f"{STEPS[name].default:g}" for name in names],
    )

    chapter = (ROOT / "docs" / "16-sampling.md").read_text(encoding="utf-8")
    off = " (off)" if step.default == step.off else ""
    assert f"| `{step.flag}` | {step.default:g}{off} |" in chapter
