import shutil
from pathlib import Path

import pytest

from src.cli import explain
from src.cli.errors import UsageError
from src.trace import STAGES
from tests.cli.conftest import REPOSITORY, Run, Spawn

every_stage = pytest.mark.parametrize("number", list(STAGES))


@every_stage
def test_a_stage_is_explained_by_its_section_its_diagram_and_its_line_of_code(
    run: Run, number: int
) -> None:
    done = run("--explain", str(number))
    assert (done.returncode, done.stderr) == (0, b"")
    *text, chapter, diagram, code = done.stdout.decode().splitlines()
    stage = STAGES[number]
    assert text[0].lstrip("#").strip() == stage.heading
    assert len([line for line in text if line.strip()]) > 2
    assert not [line for line in text if line.startswith("<!--")]
    assert chapter == f"chapter: {REPOSITORY / stage.chapter}"
    assert diagram == f"diagram: {REPOSITORY / stage.diagram}"
    assert code == f"code:    {REPOSITORY / stage.code} {stage.function}"


def test_a_section_ends_at_the_next_heading_of_its_level(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n### Stage 8: xq, xk, xv\na\n```sh\n### no heading\n```\n<!-- run: slow -->\n"
        "#### Below\nb\n## Above\nc\n"
    )
    assert explain.section(page, STAGES[8]) == (
        "### Stage 8: xq, xk, xv\na\n```sh\n### no heading\n```\n#### Below\nb"
    )
    with pytest.raises(UsageError, match=r"page\.md: --explain: expected a heading 'Stage 9: resh"):
        explain.section(page, STAGES[9])


def test_a_terminal_shows_it_rendered(spawn: Spawn) -> None:
    child = spawn("--explain", "13", dimensions=(60, 100))
    child.expect("Stage 13: scores, mask, softmax")
    child.expect("code: +/.*llama.py:")
    assert "## Stage" not in (child.before or "")


def test_the_chapters_of_an_installed_package_lie_inside_of_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llama_bolts"
    for folder in ("docs", "diagrams"):
        shutil.copytree(REPOSITORY / folder, package / folder)
    monkeypatch.setattr(explain, "PACKAGE", package)
    done = run("--explain", "13")
    assert f"chapter: {package}/docs/14b-attention.md#stage-13".encode() in done.stdout
    assert f"diagram: {package}/diagrams/stage-13.svg".encode() in done.stdout


def test_a_chapter_that_is_not_installed_is_an_error_with_both_places(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "PACKAGE", tmp_path / "llama_bolts")
    done = run("--explain", "13")
    name = "docs/14b-attention.md"
    places = f"{tmp_path}/llama_bolts/{name} or {tmp_path}/{name}"
    text = f"error: --explain: expected {places}, got neither\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", text.encode())


@pytest.mark.parametrize("number", ["0", "22", "x", ""])
def test_a_number_that_is_no_stage_is_refused(run_process: Run, number: str) -> None:
    done = run_process("--explain", number)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: argument --explain: ")
    assert done.stderr.count(b"\n") == 1
