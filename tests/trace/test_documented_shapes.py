"""What documents say of a run is in its log: shapes in the source engine's, answers in
chapter 14.

Source: adalkiran/llama-nuts-and-bolts, docs/14-MAKING-PREDICTION-WITH-LLAMA-MODEL-1.md
and the two chapters after it.
"""

import io
import re
from collections.abc import Iterable, Mapping

from src.trace.logger import TraceLog
from src.trace.records import Event
from tests.trace.recording import event_lines
from tools.pages import ROOT
from tools.runs import LLAMA_3_1_8B, bundled_events, bundled_model, events_8b

# Words that a line must hold, line by line in order: the op, the result, what it was made
# of.
BLOCK = (
    ("rms_norm", "normed [T, D] = [22, 4096] bfloat16", "attention_norm.weight [D]"),
    ("xq [T, H*h] = [22, 4096] bfloat16", "wq.weight [H*h, D]"),
    ("xk [T, K*h] = [22, 1024] bfloat16", "wk.weight [K*h, D]"),
    ("xv [T, K*h] = [22, 1024] bfloat16", "wv.weight [K*h, D]"),
    ("reshape", "xq [T, H, h] = [22, 32, 128] bfloat16", "<- xq [T, H*h]"),
    ("reshape", "xk [T, K, h] = [22, 8, 128] bfloat16", "<- xk [T, K*h]"),
    ("reshape", "xv [T, K, h] = [22, 8, 128] bfloat16", "<- xv [T, K*h]"),
    ("rotary_embedding", "xq [T, H, h] = [22, 32, 128]", "rotations [T, h/2]"),
    ("rotary_embedding", "xk [T, K, h] = [22, 8, 128]", "rotations [T, h/2]"),
    ("write_cache", "cache_k [C, K, h] = [64, 8, 128]", "filled = 0:22"),
    ("write_cache", "cache_v [C, K, h] = [64, 8, 128]", "filled = 0:22"),
    ("read_cache", "keys [S, K, h] = [22, 8, 128] bfloat16", "start = 0, stop = 22"),
    ("read_cache", "values [S, K, h] = [22, 8, 128]", "start = 0, stop = 22"),
    ("repeat_heads", "keys [S, H, h] = [22, 32, 128]", "repeats = 4"),
    ("repeat_heads", "values [S, H, h] = [22, 32, 128]", "repeats = 4"),
    ("transpose", "xq [H, T, h] = [32, 22, 128]"),
    ("transpose", "keys [H, S, h] = [32, 22, 128]"),
    ("transpose", "keys [H, h, S] = [32, 128, 22]"),
    ("transpose", "values [H, S, h] = [32, 22, 128]"),
    ("matmul", "scores [H, T, S] = [32, 22, 22] float32"),
    ("multiply", "scores [H, T, S] = [32, 22, 22] float32", "b = 0.0883883"),
    ("add", "scores [H, T, S] = [32, 22, 22] float32", "mask [T, S]"),
    ("softmax", "weights [H, T, S] = [32, 22, 22] float32", "dim = -1"),
    ("matmul", "output [H, T, h] = [32, 22, 128]", "values [H, S, h]"),
    ("transpose", "output [T, H, h] = [22, 32, 128]"),
    ("reshape", "output [T, H*h] = [22, 4096]"),
    ("attention [T, D] = [22, 4096] float32", "attention.wo.weight [D, H*h]"),
    ("add", "x [T, D] = [22, 4096] float32", "attention [T, D]"),
    ("rms_norm", "normed [T, D] = [22, 4096] bfloat16", "ffn_norm.weight [D]"),
    ("gate [T, F] = [22, 14336]", "w1.weight [F, D]"),
    ("up [T, F] = [22, 14336]", "w3.weight [F, D]"),
    ("swiglu", "hidden [T, F] = [22, 14336] bfloat16"),
    ("feed_forward [T, D] = [22, 4096]", "w2.weight [D, F]"),
    ("add", "x [T, D] = [22, 4096] float32", "feed_forward [T, D]"),
)
WHOLE = (
    ("get_rows", "x [T, D] = [22, 4096]", "tok_embeddings.weight [V, D]"),
    ("to", "x [T, D] = [22, 4096] float32"),
    ("slice", "rotations [T, h/2] = [22, 64] complex64"),
    ("full", "mask [T, S] = [22, 22] float32"),
    ("triu", "mask [T, S] = [22, 22] float32"),
    *BLOCK,
    *(("layer", "x [T, D] = [22, 4096] float32"),) * 2,
    ("slice", "x [1, D] = [1, 4096]"),
    ("rms_norm", "x [1, D] = [1, 4096]", "norm.weight [D]"),
    ("logits [1, V] = [1, 128256] float32", "output.weight [V, D]"),
)


def log_of(sizes: Mapping[str, int], events: Iterable[Event]) -> str:
    written = io.StringIO()
    log = TraceLog(sizes, debug_log=written)
    for event in events:
        log.write(event)
    return written.getvalue()


def test_the_log_of_the_8b_shape_holds_the_documented_shapes_in_order():
    shown = log_of(LLAMA_3_1_8B.sizes, events_8b()).splitlines()
    lines = event_lines(shown)
    assert len(lines) == len(WHOLE)
    for line, words in zip(lines, WHOLE, strict=True):
        assert [word for word in words if word not in line] == [], line
    stages = [
        line.split()[1] for line in shown if line.startswith("# ") and line[2].isdigit()
    ]
    assert stages == [str(number) for number in (*range(4, 19), 5, 19)]


def test_the_chapter_quotes_the_line_of_the_log_that_answers_for_each_stage():
    page = (ROOT / "docs" / "14-forward-pass.md").read_text("utf-8")
    section = page.partition("## What the log alone answers")[2]
    rows = re.findall(r"^\| (\d+) \| (.+\?) \| (.+) \|$", section, flags=re.M)
    assert [int(stage) for stage, _question, _lines in rows] == list(range(1, 22))
    log = log_of(bundled_model().args.sizes, bundled_events())
    flat = re.sub(r"\s+", " ", log.replace("\n#", ""))
    for _stage, _question, lines in rows:
        quoted = re.findall(r"`([^`]+)`", lines.replace("\\|", "|"))
        assert quoted
        assert [part for part in quoted if part not in flat] == []
