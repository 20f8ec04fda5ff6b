"""The examples of docs/SERVER.md, as they are written there, but for the port."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.server.running import ROOT
from tools.pages import blocks

PAGE = ROOT / "docs" / "SERVER.md"
EXAMPLES = [
    (block, shown)
    for block, shown in pairwise(blocks(PAGE.read_text("utf-8")))
    if block.language in ("sh", "py") and shown.language == "text"
]
UNSTREAMED = [
    (replace(block, text=f"{block.text.rstrip()} --no-stream"), shown)
    for block, shown in EXAMPLES
    if block.text.startswith("llm ")
]


def test_there_are_examples_of_each_client():
    assert len(EXAMPLES) == 5
    for name in ("curl", "openai", "llm"):
        assert any(name in block.text for block, _ in EXAMPLES)


@pytest.mark.parametrize(
    ("block", "shown"), EXAMPLES + UNSTREAMED, ids=lambda b: f"line {b.line}"
)
def test_an_example_prints_what_is_shown(server, tmp_path, block, shown):
    text = block.text.replace("http://127.0.0.1:8080", server.url)
    if block.language == "py":
        pytest.importorskip("openai", reason="the clients extra is not installed")
        command = [sys.executable, "-c", text]
    else:
        program = text.split()[0]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        if shutil.which(program, path=path) is None:
            pytest.skip(f"{program} is not installed")
        command = ["sh", "-c", f"PATH={path}\n{text}"]
        (found,) = re.findall(
            r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S
        )
        models = found.replace("http://127.0.0.1:8080", server.url)
        (tmp_path / "extra-openai-models.yaml").write_text(models)
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout.rstrip("\n")) == (0, shown.text.rstrip("\n")), (
        done.stderr
    )
