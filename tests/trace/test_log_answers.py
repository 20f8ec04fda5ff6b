"""The questions of a reader, stage by stage: debug.log alone gives the answers of the run."""

import io
import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from src.cli.answer import piece
from src.inference import InferenceEngine, Message, SamplingArgs, encode_chat
from src.inference.sampling import Sampler
from src.model import InferenceContext, load_model
from src.trace.logger import TraceLog
from tests.trace.recording import joined, recorded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "14-forward-pass.md"
TEXT = "What is the capital of Massachusetts? Answer in one word."
# In the order of the stages: what finds the answers in the lines of a stage.
PATTERNS = {
    1: r"user: '(.*?)' |(\d+) (?:'[^']*'|<\|\w+\|>)",
    2: r"tokens \[T\] = \[(\d+)\]",
    3: r"T = (\d+), S = (\d+), positions? (\d+)(?: to (\d+))?",
    4: r"start = (\d+), stop = (\d+)|(mask) \[T, S\] = ",
    5: r"^ 5 layer (\d+)",
    6: r"(\S+)\.weight \[D\]",
    7: r"H = (\d+) query heads, K = (\d+) key/value heads G = H/K = (\d+) ",
    8: r"(x.) \[T, .\*h\] = \[\d+, (\d+)\].* \S+\.(w.)\.weight",
    9: r"(x.) \[T, ., h\] = \[\d+, (\d+), (\d+)\]",
    10: r"rotary_embedding .* (x.) \[T, ., h\] = .* <- x. \[T, ., h\], (\w+) ",
    11: r"(cache_.) \[C, K, h\] = \[(\d+), .* written = (\S+), filled = (\S+)",
    12: r"(\w+) \[S, H, h\] = .* <- \w+ \[S, K, h\], repeats = (\d+)",
    13: r"b = (\S+)|, (mask) \[T, S\]",
    14: r"^14 linear_transformation .* (\S+)\.weight",
    15: r"<- (\w+) \[T, D\], (\w+) \[T, D\]",
    16: r"(\S+)\.weight \[D\]",
    17: r"(\w+) \[T, F\] = \[\d+, (\d+)\] .* \S+\.(w.)\.weight",
    18: r"<- (\w+) \[T, D\], (\w+) \[T, D\]",
    19: r"start = (\d+), stop = (\d+)|logits \[1, V\] = \[1, (\d+)\]",
    20: r"random number (\S+)|(\d+) \S+ +([\d.]+) [ \d.]*?([\d.]+) <-|are left .* (\d+)$",
    21: r"token (\d+) (\S+), text '(.*?)'(?:, stop: (\w+))?",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """A log, and what is known of its run without it."""

    text: str
    truth: dict[tuple[int, int], list[str]]

    def of(self, stage: int, step: int) -> list[str]:
        """Return what the lines of a stage in a step say."""
        head, *passes = self.text.split("# 3 loop over the sequence: ")
        if stage == 7:
            lines = [re.sub(r"[#\s]+", " ", head.partition("\n\n")[0])]
        else:
            body = f"{head}# 3 {passes[step]}" if step == 0 else f"# 3 {passes[step]}"
            start = (f"{stage:2} ", f"# {stage} step" if stage == 3 else "##")
            lines = [line for line in joined(["", *body.splitlines()]) if line.startswith(start)]
        return [
            answer
            for line in lines
            for found in re.finditer(PATTERNS[stage], line)
            for answer in found.groups()
            if answer is not None
        ]


@pytest.fixture(scope="module")
def answer() -> Answer:
    """The log of two steps of the bundled model, and the answers computed beside it."""
    model, written = load_model(), io.StringIO()
    engine, sampling = InferenceEngine(model, 4096), SamplingArgs(seed=1)
    log = TraceLog(model.args.sizes, debug_log=written)
    text_of = partial(piece, model.tokenizer)
    with recorded(model.args, write=log.write, wants=log.wants, text_of=text_of):
        list(engine.chat([Message("user", TEXT)], 2, sampling))
    a, ids = model.args, encode_chat(model.tokenizer, [Message("user", TEXT)])
    H, K, h = a.n_heads, a.n_kv_heads, a.head_dim
    context = InferenceContext(a, 4096, attention="eager")
    sampler, new, truth = Sampler(sampling), ids, {}
    for step in range(2):
        start, end = context.length, context.length + len(new)
        logits = model.transformer.forward(context, new, start).numpy()[0]
        sampler.observe(new)
        token = sampler.sample(logits, end)
        text = "" if token in model.tokenizer.stop_ids else model.tokenizer.decode([token])
        stop = ["eot"] if token in model.tokenizer.stop_ids else []
        last = [str(end - 1)] if len(new) > 1 else []
        slots = ["4096", f"{start}:{end}", f"0:{end}"]
        of_step = {
            3: [str(len(new)), str(end), str(start), *last],
            4: [str(start), str(end), *(["mask", "mask"] if step == 0 else [])],
            5: [str(layer) for layer in range(a.n_layers)],
            6: ["layers.0.attention_norm"],
            7: [str(H), str(K), str(H // K)],
            8: ["xq", str(H * h), "wq", "xk", str(K * h), "wk", "xv", str(K * h), "wv"],
            9: ["xq", str(H), str(h), "xk", str(K), str(h), "xv", str(K), str(h)],
            10: ["xq", "frequencies", "xk", "frequencies"],
            11: ["cache_k", *slots, "cache_v", *slots],
            12: ["keys", str(H // K), "values", str(H // K)],
            13: [f"{math.sqrt(h):.6g}", *(["mask"] if step == 0 else [])],
            14: ["layers.0.attention.wo"],
            15: ["x", "attention"],
            16: ["layers.0.ffn_norm"],
            17: ["gate", str(a.ffn_dim), "w1", "up", str(a.ffn_dim), "w3"],
            18: ["x", "feed_forward"],
            19: [str(len(new) - 1), str(len(new)), str(a.vocab_size)],
            20: [f"{sampler.last_random:.6g}", str(token), f"{logits[token]:.3f}", "1.0000", "1"],
            21: [str(token), piece(model.tokenizer, token), text, *stop],
        }
        truth |= {(stage, step): answers for stage, answers in of_step.items()}
        new = [token]
    truth[1, 0], truth[2, 0] = [TEXT, *map(str, ids)], [str(len(ids))]
    return Answer(written.getvalue(), truth)


@pytest.mark.parametrize(("stage", "step"), [(n, s) for s in (0, 1) for n in PATTERNS if n > 2 * s])
def test_the_log_alone_answers_what_a_reader_asks(answer, stage, step):
    assert answer.of(stage, step) == answer.truth[stage, step]


def test_the_chapter_quotes_the_line_that_answers_for_each_stage(answer):
    section = PAGE.read_text("utf-8").partition("## What the log alone answers")[2]
    rows = re.findall(r"^\| (\d+) \| (.+\?) \| (.+) \|$", section, flags=re.M)
    assert [int(stage) for stage, _question, _lines in rows] == list(PATTERNS)
    flat = re.sub(r"\s+", " ", answer.text.replace("\n#", ""))
    for _stage, _question, lines in rows:
        quoted = re.findall(r"`([^`]+)`", lines.replace("\\|", "|"))
        assert quoted
        assert [part for part in quoted if part not in flat] == []
