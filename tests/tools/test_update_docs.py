"""The command that keeps pages and diagrams current, and what it writes."""

import re
from pathlib import Path

import numpy as np
import pytest

from src.inference import Message, encode_chat
from src.tokenizer import load_tokenizer
from src.trace import STAGES
from tests.support.shared_data import shared_data
from tools.generated import regenerated
from tools.pages import ROOT, PageError
from tools.producers import PRODUCERS
from tools.runs import LLAMA_3_IDS, PROMPT
from tools.update_docs import current_pictures, main

STALE = """[`bundled_model`](runs.py#L1)

<!-- generated: log 13 -->
old
<!-- end -->

```python
print(6 * 7)
```

```text
43
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(STALE)
    (tmp_path / "runs.py").write_text("\ndef bundled_model():\n    pass\n")
    return path


def produced(name: str) -> str:
    kind, _, argument = name.partition(" ")
    return PRODUCERS[kind](ROOT / "docs" / "page.md", argument)


def test_the_committed_diagrams_and_plots_are_current_and_there_are_no_others() -> None:
    pictures = current_pictures()
    for path, text in pictures.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: python -m tools.update_docs"
    folders = {path.parent for path in pictures}
    assert {path for folder in folders for path in folder.iterdir()} == set(pictures)


def test_a_page_becomes_current_and_stays_so(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(page)]) == 1
    assert page.read_text() == STALE
    assert "+[`bundled_model`](runs.py#L2)" in capsys.readouterr().out
    assert main([str(page)]) == 0
    text = page.read_text()
    assert "[`bundled_model`](runs.py#L2)" in text
    assert "softmax" in text
    assert "```text\n42\n```" in text
    assert main(["--check", str(page)]) == 0


def test_a_page_that_breaks_a_convention_is_named_and_left(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = STALE.replace("43", "41").replace("```text\n41\n```\n", "")
    page.write_text(broken)
    assert main([str(page)]) == 1
    assert "example: expected a ```text block after it" in capsys.readouterr().err
    assert page.read_text() == broken


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: log 1 -->\nx\n", "expected pairs of markers, got 1 markers and 0 pairs"),
        ("<!-- end -->\n", "expected pairs of markers"),
        ("<!-- generated: lgo 1 -->\nx\n<!-- end -->\n", "expected one of code, help, index, log"),
    ],
)
def test_markers_that_are_wrong_are_refused(page: Path, text: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        regenerated(page, text, PRODUCERS)


def test_markers_in_a_block_that_shows_them_are_left_alone(page: Path) -> None:
    text = "```text\n  <!-- generated: NAME -->\n  <!-- end -->\n```\n"
    assert regenerated(page, text, PRODUCERS) == text


@pytest.mark.parametrize("model", ["", " 8b"])
def test_a_log_shows_the_lines_of_its_stages_without_times(model: str) -> None:
    fence, *lines, end = produced(f"log 8-9{model}").split("\n")
    assert (fence, end) == ("```text", "```")
    assert [line for line in lines if line.startswith("#")] == [
        "# 8 xq, xk, xv, layer 0", "# 9 reshape to heads, layer 0",
    ]  # fmt: skip
    assert all(line[40:49].isspace() for line in lines if line.startswith((" 8", " 9")))
    shape = "[22, 32, 128]" if model else "[27, 6, 32]"
    assert any(f"  xq [T, H, h] = {shape} bfloat16" in line for line in lines)


def test_a_stage_shows_its_code_its_log_and_the_numbers_of_a_token() -> None:
    text = produced("stage 15")
    code, log, numbers = re.findall(r"```\w+\n(.*?)\n```", text, flags=re.DOTALL)
    assert code.split("\n")[1] == "x = ml.add(x, attention)"
    assert len(code.split("\n")) == 2
    assert log.startswith("# 15 attention residual, layer 0\n15 add ")
    rows = [line.split() for line in numbers.split("\n")]
    assert [row[:3] for row in rows] == [
        ["before", "x[26,", ":]"], ["before", "attention[26,", ":]"], ["after", "x[26,", ":]"],
    ]  # fmt: skip
    x, attention, total = (np.array(row[3:-1], float) for row in rows)
    np.testing.assert_allclose(x + attention, total, rtol=0.01, atol=0.01)
    assert '"LlamaTransformerBlock.forward: mark(15)"' in text


def test_shapes_have_letters_and_the_numbers_of_two_models() -> None:
    lines = produced("shapes 13").split("\n")
    assert lines[0] == "| op | result | letters | bundled, T = 27 | 8B, T = 22 | dtype |"
    assert "| `matmul` | `scores` | `[H, T, S]` | [6, 27, 27] | [32, 22, 22] | float32 |" in lines


def test_the_table_of_stages_links_chapter_diagram_and_code() -> None:
    lines = produced("stages").split("\n")[2:]
    for stage, line in zip(STAGES.values(), lines, strict=True):
        assert line.startswith(f"| {stage.number} | [{stage.name}]({stage.chapter[5:]}) ")
        assert f"](../{stage.diagram}) " in line
        assert f"](../{stage.code.replace(':', '#L')}) " in line


def test_the_index_has_every_page_of_the_docs() -> None:
    text = produced("index")
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in pages if f"]({name})" not in text] == []
    assert "1. [The journey](01-journey.md)" in text


def test_code_is_the_source_of_a_symbol() -> None:
    text = produced("code src/model/llama.py LlamaFeedForward.forward")
    assert text.startswith("[`LlamaFeedForward.forward`](../src/model/llama.py#L")
    assert "\ndef forward(self, x: ml.Tensor) -> ml.Tensor:\n" in text
    assert text.endswith("bias=self.w2_bias)\n```")


def test_help_is_the_program_s_own() -> None:
    assert "usage: llama-bolts" in produced("help")
    trace = produced("help trace")
    assert trace.startswith("```text\ntrace:\n")
    assert "--debug-log" in trace
    assert "--metadata" not in trace


@pytest.mark.parametrize("folder", ["src/model", "csrc"])
def test_a_tree_has_every_file_and_what_it_says_of_itself(folder: str) -> None:
    lines = produced(f"tree {folder}").split("\n")[2:-1]
    files = {path.name for path in (ROOT / folder).iterdir() if path.suffix in (".py", ".c", ".h")}
    assert {line.split()[0] for line in lines} >= files - {"_kernels.c"}
    assert all(len(line.split()) > 2 for line in lines if "__init__" not in line), lines


def test_a_run_is_what_the_program_prints() -> None:
    answer = produced('run -p "What is the capital of Turkey?" --temperature 0')
    assert "Ankara" in answer
    with pytest.raises(PageError, match="it ends with 2: error: "):
        produced("run -p x -f y")


@pytest.mark.parametrize(
    "name", ["log 22", "log 1 9b", "shapes 0", "help trcae", "tree src/none", "code src/main.py no"]
)
def test_what_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(PageError, match="generated: "):
        produced(name)


def test_the_ids_of_the_prompt_are_those_of_llama_3() -> None:
    tokenizer = load_tokenizer(shared_data("llama3/tokenizer.model").parent)
    assert tuple(encode_chat(tokenizer, [Message("user", PROMPT)])) == LLAMA_3_IDS
