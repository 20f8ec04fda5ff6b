"""`--check-weights`: what mapping does not look at is read and compared."""

import shutil
from pathlib import Path

import pytest

from src import ml
from src.cli import progress
from src.model.files import BUNDLED_MODEL
from tests.cli.conftest import Run
from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import GROUPED


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The weights of a copy of the bundled model."""
    return Path(shutil.copytree(BUNDLED_MODEL, tmp_path / "model")) / "consolidated.00.pth"


def test_whole_weights_agree_with_their_checksums(run: Run, weights: Path) -> None:
    done = run("-m", weights.parent, "--check-weights")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{weights}: 6.2 MiB agree with their CRC-32\n"


def test_a_flipped_bit_of_a_weight_loads_and_is_found(run: Run, weights: Path) -> None:
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert run("-m", weights.parent, "--metadata").returncode == 0  # nothing looks at it
    done = run("-m", weights.parent, "--check-weights")
    assert (done.returncode, done.stdout) == (3, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(f"error: {weights}: record ")
    assert line.endswith("(damaged)")


def test_weights_without_checksums_are_not_called_whole(run: Run, weights: Path) -> None:
    """PyTorch can be told to write 0 in their place."""
    content = weights.read_bytes()
    at = content.index(b"PK\x01\x02")
    while at >= 0:
        crc = content[at + 16 : at + 20]
        content = content.replace(b"PK\x07\x08" + crc, b"PK\x07\x08" + bytes(4))
        content = content[: at + 16] + bytes(4) + content[at + 20 :]
        at = content.find(b"PK\x01\x02", at + 4)
    weights.write_bytes(content)
    assert run("-m", weights.parent, "--metadata").returncode == 0
    done = run("-m", weights.parent, "--check-weights")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"expected a CRC-32 of every record, got 64" in done.stderr


def test_safetensors_files_hold_no_checksums_which_is_said(run: Run, tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "model", GROUPED, ml.bfloat16)
    done = run("-m", directory, "--check-weights")
    assert (done.returncode, done.stdout) == (2, b"")
    size = (directory / "model.safetensors").stat().st_size
    assert f"got {size} bytes without one (safetensors files have none)" in done.stderr.decode()


def test_the_check_shows_how_far_it_is(
    run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(progress, "_timed", lambda *_: lambda *done: seen.append(done))
    assert run("-m", weights.parent, "--check-weights").returncode == 0
    size = weights.stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)
