"""The table of mutants: every reader of files is in it, with tests that exist."""

from pathlib import Path

from tests.hardening.mutation.run import ALSO, files_of_tests


def test_each_module_of_checkpoint_has_mutants_and_tests_that_notice_them() -> None:
    modules = {f"checkpoint/{path.stem}" for path in Path("src/checkpoint").glob("*.py")}
    # Nothing in them decides anything.
    without = {
        "checkpoint/__init__",
        "checkpoint/errors",
    }
    assert {name for name in ALSO if name.startswith("checkpoint/")} == modules - without
    assert all(Path(f"src/{name}.py").exists() for name in ALSO)
    assert all(Path(file).exists() for name in ALSO for file in files_of_tests(name))
