from src import __version__, ml
from tests.cli.conftest import Run


def test_info_names_versions_kernels_threads_and_memory(run: Run) -> None:
    done = run("--info")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.decode().splitlines())
    assert lines["llama-bolts"].strip() == __version__
    assert lines["isa"].strip() == ml.build_info()["isa"]
    for name in ("Python", "numpy", "openmp", "compiler", "threads"):
        assert lines[name]
    assert "free memory" in done.stdout.decode()
