"""Imports run one way: ml <- checkpoint, tokenizer <- model <- inference <- cli <- main."""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

# What each package or module of `src` may import besides itself. `untrusted`, `memory` and `trace`
# may be imported by all and import none of them.
SHARED = {"untrusted", "memory", "trace"}
ALLOWED = {
    "untrusted": set(),
    "memory": set(),
    "trace": set(),
    "ml": SHARED,
    "drawing": SHARED,
    "checkpoint": {"ml", *SHARED},
    "tokenizer": {"ml", *SHARED},
    "model": {"ml", "checkpoint", "tokenizer", "nano", *SHARED},
    "inference": {"ml", "checkpoint", "tokenizer", "model", *SHARED},
    "explorer": {"ml", "tokenizer", "model", "inference", *SHARED},
    "server": {"ml", "tokenizer", "model", "inference", "explorer", *SHARED},
    "cli": {
        "ml", "checkpoint", "tokenizer", "model", "inference", "drawing", "explorer", "server",
        *SHARED,
    },
    # `tests/test_public_names.py` checks that they are imported on demand only.
    "__init__": {"inference", "ml", "model", "tokenizer"},
    "main": {"cli", "memory"},
    "__main__": {"main"},
    "nano": {"ml", "checkpoint", "tokenizer", "model", "inference"},
}  # fmt: skip
RUN_TIME_PACKAGES = {
    "cffi", "ml_dtypes", "numpy", "prompt_toolkit", "psutil", "regex", "rich", "structlog",
}  # fmt: skip
# Of the serve extra, and where they may be imported.
SERVE_PACKAGES = {"h11", "llguidance", "msgspec", "prometheus_client", "starlette", "uvicorn"}
NEEDS_SERVE = {"inference/grammar_server.py", *(f"server/{p.name}" for p in SRC.glob("server/*"))}
# Programs of their own, which no other module imports: training, and the process of `--verify`.
NEEDS_ORACLE = {
    "nano/batches.py", "nano/torch_llama.py", "nano/train.py", "nano/train_tokenizer.py",
    "cli/reference.py",
}  # fmt: skip

# What mpirun starts; nothing of it is imported in one process.
NEEDS_MPI = {"cli/ranks.py", "model/ranks.py"}

SOURCES = sorted(SRC.rglob("*.py"))


def part_of_src(path: Path) -> str:
    """Returns the first part of a module's path below src, without its ending."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def imported(path: Path) -> list[tuple[int, tuple[str, ...] | str]]:
    """Lists (line, target): the parts below src when relative, a top-level name otherwise.

    The last part may be a module, or a name in one.
    """
    found: list[tuple[int, tuple[str, ...] | str]] = []
    package = path.relative_to(SRC).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.lineno, (node.module or "").split(".")[0]))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - (node.level - 1)]
            inner = tuple(node.module.split(".")) if node.module else ()
            found += [(node.lineno, (*base, *inner, alias.name)) for alias in node.names]
    return found


def wrong_ways(path: Path) -> list[str]:
    """Lists the imports of a module that are not from packages below its own."""
    own = part_of_src(path)
    is_apart = path.relative_to(SRC).as_posix() in NEEDS_ORACLE
    allowed = ALLOWED[own] | {own, "__version__"} | ({"nano"} if is_apart else set())
    return [
        f"{path}:{line}: {own} imports {target[0]}"
        for line, target in imported(path)
        if isinstance(target, tuple) and target[0] not in allowed
    ]


def test_a_module_imports_only_packages_below_its_own():
    assert [text for path in SOURCES for text in wrong_ways(path)] == []


def test_imports_inside_the_package_are_relative_and_the_rest_is_declared():
    for path in SOURCES:
        relative = path.relative_to(SRC).as_posix()
        declared = RUN_TIME_PACKAGES | sys.stdlib_module_names
        if relative in NEEDS_SERVE:
            declared |= SERVE_PACKAGES
        if relative in NEEDS_MPI:
            declared |= {"mpi4py"}
        for line, target in imported(path):
            if isinstance(target, str):
                at = f"{path}:{line}"
                assert target not in ("src", "llama_bolts"), f"{at}: absolute import of {target}"
                known = target in declared or relative in NEEDS_ORACLE
                assert known, f"{at}: {target} is not a run-time dependency"


@cache
def modules_imported(path: Path) -> frozenset[str]:
    """Lists the modules of src that a module imports, inside functions too, by dotted names."""
    found = set()
    for _, target in imported(path):
        if isinstance(target, tuple):
            place = SRC.joinpath(*target)
            is_module = place.is_dir() or place.with_name(f"{place.name}.py").exists()
            found.add(".".join(target if is_module else target[:-1]))
    return frozenset(found)


def test_what_needs_the_oracle_extra_is_imported_by_nothing_else():
    needing = {file.removesuffix(".py").replace("/", ".") for file in NEEDS_ORACLE}
    others = [p for p in SOURCES if p.relative_to(SRC).as_posix() not in NEEDS_ORACLE]
    assert len(others) == len(SOURCES) - len(NEEDS_ORACLE)
    for path in others:
        assert not modules_imported(path) & needing, path


def test_no_modules_import_one_another_in_a_circle():
    names = {
        ".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): p
        for p in SOURCES
    }
    imports = {name: modules_imported(path) & names.keys() - {name} for name, path in names.items()}
    TopologicalSorter(imports).prepare()  # CycleError names the modules of a circle


def test_the_check_sees_an_import_that_runs_the_wrong_way(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SRC", tmp_path)
    wrong = tmp_path / "ml" / "wrong.py"
    wrong.parent.mkdir()
    wrong.write_text("from ..model import load_model\nfrom .. import cli\n")
    assert imported(wrong) == [(1, ("model", "load_model")), (2, ("cli",))]
    assert wrong_ways(wrong) == [f"{wrong}:1: ml imports model", f"{wrong}:2: ml imports cli"]


# Tests of modules that have no file of tests of their own name: those of a package as a whole, ...
OF_PACKAGES = {
    "drawing": "drawing/test_diagrams", "explorer": "explorer/test_explorer",
    "nano": "nano/test_corpus", "server": "server/test_app",
}  # fmt: skip
# ... and those of what a module is a part of.
OF_MODULES = {
    "checkpoint/gguf_writer": "model/test_saving_gguf", "cli/flag_parser": "cli/test_arguments",
    "cli/reference": "cli/test_verify", "cli/serve": "server/test_limits",
    "inference/blocks": "inference/test_batch",
    "inference/grammar_server": "inference/test_grammars", "ml/checks": "ml/test_refusals",
    "model/files": "model/test_families", "trace/code": "trace/test_logger",
    "trace/records": "trace/test_logger",
    "tokenizer/json_pipeline": "tokenizer/test_tokenizer_json",
}  # fmt: skip


def test_each_module_has_its_tests():
    for path in SOURCES:
        name = path.relative_to(SRC).with_suffix("").as_posix()
        package, _, module = name.rpartition("/")
        own = OF_MODULES.get(name, f"{package}/test_{module}".lstrip("/"))
        files = [ROOT / "tests" / f"{tests}.py" for tests in (own, OF_PACKAGES.get(package, own))]
        exempt = path.name in ("__init__.py", "__main__.py", "errors.py")
        assert exempt or any(file.exists() for file in files), name
