"""Imports run one way: ml <- checkpoint, tokenizer <- model <- inference <- cli <-
main.
"""

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

# What each package or module of `src` may import besides itself. Those in `SHARED` may be
# imported by all and import none of them, except that `trace` observes the ops of `ml`,
# which does not know it, and writes with the help of the others.
SHARED = {
    "installation",
    "untrusted",
    "memory",
    "chat_formats",
    "choices",
    "sampling_steps",
    "trace",
}
ALLOWED = {
    "installation": set(),
    "untrusted": set(),
    "memory": set(),
    "chat_formats": set(),
    "choices": set(),
    "sampling_steps": set(),
    "trace": {"untrusted", "ml", "sampling_steps"},
    "ml": SHARED - {"trace"},
    "drawing": SHARED,
    "checkpoint": {"ml", *SHARED},
    "tokenizer": {"ml", *SHARED},
    "catalog": {"ml", "checkpoint", *SHARED},
    "model": {"ml", "checkpoint", "tokenizer", "catalog", *SHARED},
    "inference": {"ml", "checkpoint", "tokenizer", "model", *SHARED},
    "explorer": {"ml", "tokenizer", "model", "inference", *SHARED},
    "exercises": {"ml", "checkpoint", "tokenizer", "model", "inference", *SHARED},
    "server": {
        "ml",
        "checkpoint",
        "tokenizer",
        "model",
        "inference",
        "explorer",
        *SHARED,
    },
    "cli": {
        "ml",
        "checkpoint",
        "tokenizer",
        "catalog",
        "model",
        "inference",
        "drawing",
        "explorer",
        "exercises",
        "server",
        *SHARED,
    },
    # `tests/test_public_names.py` checks that they are imported on demand only.
    "__init__": {"inference", "ml", "model", "tokenizer"},
    "main": {"cli", "installation", "memory"},
    "__main__": {"main"},
    "nano": set(),
}
RUN_TIME_PACKAGES = {
    "cffi",
    "jinja2",
    "ml_dtypes",
    "numpy",
    "platformdirs",
    "prompt_toolkit",
    "psutil",
    "regex",
    "rich",
    "structlog",
}
# Of the serve extra, and where they may be imported.
SERVE_PACKAGES = {
    "h11",
    "llguidance",
    "msgspec",
    "prometheus_client",
    "starlette",
    "uvicorn",
}
NEEDS_SERVE = {
    "inference/grammar_server.py",
    *(f"server/{p.name}" for p in SRC.glob("server/*")),
}
# The process of `--verify`, a program of its own, which no other module imports.
NEEDS_ORACLE = {"cli/reference.py", "cli/reference_encoding.py"}

# Of the hub extra.
NEEDS_HUB = {"catalog/hub.py"}
# What mpirun starts; nothing of it is imported in one process.
NEEDS_MPI = {"cli/ranks.py", "model/ranks.py"}

SOURCES = sorted(SRC.rglob("*.py"))

# The packages of this repository, by their absolute names.
OWN_PACKAGES = {"src", "llama_bolts", "tools", "tests"}
TOOLS = sorted((ROOT / "tools").rglob("*.py"))


def part_of_src(path: Path) -> str:
    """Returns the first part of a module's path below src, without its ending."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def imported(path: Path) -> list[tuple[int, tuple[str, ...] | str]]:
    """Lists (line, target): the parts below src when relative, a top-level name
    otherwise.

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
    allowed = ALLOWED[own] | {own, "__version__"}
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
        if relative in NEEDS_HUB:
            declared |= {"huggingface_hub"}
        if relative in NEEDS_MPI:
            declared |= {"mpi4py"}
        for line, target in imported(path):
            if isinstance(target, str):
                at = f"{path}:{line}"
                assert target not in OWN_PACKAGES, f"{at}: absolute import of {target}"
                known = target in declared or relative in NEEDS_ORACLE
                assert known, f"{at}: {target} is not a run-time dependency"


def absolute_imports(path: Path) -> set[str]:
    """Return the top-level names that a module outside of src imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def test_tools_import_src_and_no_tests():
    assert len(TOOLS) >= 30
    own = {path: absolute_imports(path) & OWN_PACKAGES for path in TOOLS}
    assert {path: names for path, names in own.items() if names - {"src", "tools"}} == {}
    assert any("src" in names for names in own.values())


@cache
def modules_imported(path: Path) -> frozenset[str]:
    """Lists the modules of src that a module imports, inside functions too, by dotted
    names.
    """
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


def test_loading_a_model_knows_no_session_and_no_chat_template():
    """The application opens a session, which loads a model; nothing calls back."""
    imports = modules_imported(SRC / "cli" / "loading.py")
    assert {name for name in imports if name.startswith("cli.")} == {
        "cli.answer", "cli.arguments", "cli.console", "cli.downloading",
    }  # fmt: skip


def test_no_modules_import_one_another_in_a_circle():
    names = {
        ".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): p
        for p in SOURCES
    }
    imports = {
        name: modules_imported(path) & names.keys() - {name}
        for name, path in names.items()
    }
    TopologicalSorter(imports).prepare()  # CycleError names the modules of a circle


def test_the_check_sees_an_import_that_runs_the_wrong_way(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SRC", tmp_path)
    wrong = tmp_path / "ml" / "wrong.py"
    wrong.parent.mkdir()
    wrong.write_text("from ..model import load_model\nfrom .. import cli\n")
    assert imported(wrong) == [(1, ("model", "load_model")), (2, ("cli",))]
    assert wrong_ways(wrong) == [
        f"{wrong}:1: ml imports model",
        f"{wrong}:2: ml imports cli",
    ]


# The modules with the root of a package's errors, and the only one outside of all roots.
ERROR_MODULES = {"errors.py", "console.py"}
OUTSIDE_THE_ROOTS = {"OutputError"}


def error_classes(package: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the file and the bases of each class of errors that a package defines, by
    its name.
    """
    classes = {}
    for path in sorted(package.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                classes[node.name] = (
                    path.name,
                    [ast.unparse(base) for base in node.bases],
                )
    return classes


def error_roots(classes: dict[str, tuple[str, list[str]]]) -> list[str]:
    """Return the classes of errors of a package that no other one of its classes is a
    base of.
    """
    own = classes.keys() - {"LlamaBoltsError"}
    return [name for name in sorted(own) if not own & set(classes[name][1])]


def test_each_package_has_one_root_class_of_errors():
    packages = [path.parent for path in sorted(SRC.glob("*/__init__.py"))]
    with_errors = 0
    for package in packages:
        classes = error_classes(package)
        roots = set(error_roots(classes)) - OUTSIDE_THE_ROOTS
        assert len(roots) == bool(classes), (package.name, roots)
        for root in roots:
            module, bases = classes[root]
            assert bases == ["LlamaBoltsError"], (package.name, root)
            assert module in ERROR_MODULES, (package.name, root, module)
            with_errors += 1
    assert with_errors >= 8


def test_a_second_root_of_errors_is_found(tmp_path):
    (tmp_path / "errors.py").write_text(
        "class RootError(LlamaBoltsError): ...\nclass LeafError(RootError, OSError): "
        "...\n"
    )
    assert error_roots(error_classes(tmp_path)) == ["RootError"]
    (tmp_path / "other.py").write_text("class OtherError(LlamaBoltsError): ...\n")
    assert error_roots(error_classes(tmp_path)) == ["OtherError", "RootError"]


# Tests of modules that have no file of tests of their own name: those of a package as a
# whole, ...
OF_PACKAGES = {
    "drawing": "drawing/test_diagrams", "explorer": "explorer/test_explorer",
    "server": "server/test_app", "exercises": "exercises/test_exercises",
    "exercises/tasks": "exercises/test_exercises",
}  # fmt: skip
# ... and those of what a module is a part of.
OF_MODULES = {
    "chat_formats": "inference/test_chat_formats",
    "choices": "model/test_quantization",
    "checkpoint/gguf_writer": "model/test_saving_gguf",
    "cli/flag_parser": "cli/test_arguments",
    "cli/reference": "cli/test_verify",
    "cli/serve": "server/test_limits",
    "cli/reference_encoding": "cli/test_verify",
    "cli/new_session": "cli/test_loading",
    "catalog/downloads": "catalog/test_pip_package",
    "ml/ops/low_rank": "ml/test_adapted",
    "inference/call_grammars": "inference/test_answer_forms",
    "inference/marked_text": "inference/test_template_marks",
    "inference/template_sandbox": "inference/test_template_limits",
    "inference/template_budget": "inference/test_template_bombs",
    "inference/template_code": "inference/test_template_bombs",
    "inference/passes": "inference/test_batch",
    "inference/blocks": "inference/test_batch",
    "inference/grammar_server": "inference/test_grammars",
    "ml/checks": "ml/test_refusals",
    "ml/hints": "ml/test_typed_cells",
    "ml/html": "ml/test_notebook_view",
    "model/intervened": "model/test_interventions",
    "model/places": "model/test_interventions",
    "trace/result_names": "trace/test_tracer",
    "model/recording": "tools/test_notebooks",
    "model/saved_config": "model/test_saving",
    "model/windows": "model/test_attention_forms",
    "model/families/llama": "model/test_args",
    "model/families/mistral": "model/test_args",
    "model/families/phi3": "model/test_phi3",
    "model/families/gpt_oss": "model/test_gpt_oss",
    **{
        f"model/families/{name}": "model/test_families"
        for name in (
            "granitemoe",
            "mixtral",
            "olmoe",
            "qwen3_moe",
            "gemma2",
            "gemma3_text",
            "granite",
            "granite_swa",
            "ministral",
            "ministral3",
            "olmo2",
            "olmo3",
            "qwen2",
            "qwen3",
            "smollm3",
        )
    },
    "model/sources/meta": "model/test_args",
    "model/sources/gguf": "model/test_gguf",
    "model/sources/hugging_face": "model/test_hugging_face",
    "trace/code": "trace/test_logger",
    "trace/records": "trace/test_logger",
    "tokenizer/json_pipeline": "tokenizer/test_tokenizer_json",
}


def test_each_module_has_its_tests():
    for path in SOURCES:
        name = path.relative_to(SRC).with_suffix("").as_posix()
        package, _, module = name.rpartition("/")
        own = OF_MODULES.get(name, f"{package}/test_{module}".lstrip("/"))
        files = [
            ROOT / "tests" / f"{tests}.py"
            for tests in (own, OF_PACKAGES.get(package, own))
        ]
        exempt = path.name in ("__init__.py", "__main__.py", "errors.py")
        assert exempt or any(file.exists() for file in files), name


# Tests of modules of tools that have no file of tests of their own name.
OF_TOOLS = {
    "plots": "test_update_docs",
    "write_dtypes": "../csrc/test_build",
    "site/conf": "test_site",
    "nano/torch_llama": "nano/test_train",
    "nano/train_tokenizer": "nano/test_batches",
    "nano/mixtures": "nano/test_documents",
}


def test_each_module_of_tools_has_its_tests():
    tests = ROOT / "tests" / "tools"
    for path in TOOLS:
        name = path.relative_to(ROOT / "tools").with_suffix("").as_posix()
        package, _, module = name.rpartition("/")
        own = OF_TOOLS.get(name, f"{package}/test_{module}".lstrip("/"))
        is_corpus = module.startswith("facts_") or module.endswith("_pairs")
        own = "nano/test_corpus" if is_corpus and package == "nano" else own
        assert path.name == "__init__.py" or (tests / f"{own}.py").exists(), name


# ---- layouts and families --------------------------------------------------------------

LAYOUTS = {"Meta", "Hugging Face", "GGUF", "meta", "hugging_face", "gguf"}
FAMILIES = {path.stem for path in (SRC / "model" / "families").glob("*.py")} - {
    "__init__",
    "llama",
}


def compared_layouts(path: Path) -> list[str]:
    """List the comparisons with the name of a layout in a module, of `==`, `in` and
    `match`.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        inner = [each for part in parts for each in ast.walk(part)]
        found += [
            f"{path}:{each.lineno}: {each.value}"
            for each in inner
            if isinstance(each, ast.Constant) and each.value in LAYOUTS
        ]
    return found


def named_families(path: Path) -> set[str]:
    """Return the families that identifiers, texts and imports of a module name; not
    docstrings.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in prose
        ):
            words.add(node.value.casefold())
        elif isinstance(
            node, ast.Name | ast.Attribute | ast.ClassDef | ast.FunctionDef | ast.alias
        ):
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "name", "")))
            words.add(name.casefold())
    return {
        family
        for family in FAMILIES
        for word in words
        if re.search(rf"(?<![a-z0-9]){family}(?![0-9]|_?moe)", word)
    }


def test_only_the_sources_compare_layouts():
    others = [path for path in SOURCES if path.parent.name != "sources"]
    assert [text for path in others for text in compared_layouts(path)] == []


def test_a_family_is_named_in_its_own_module_alone():
    assert len(FAMILIES) >= 7
    for package in ("model", "checkpoint", "cli"):
        for path in SRC.joinpath(package).rglob("*.py"):
            allowed = set()
            if path.parent.name == "families":
                # A family may build on another one, which it imports.
                allowed = {
                    path.stem,
                    *(part for _, target in imported(path) for part in target),
                }
            assert named_families(path) <= allowed, path


def test_the_checks_see_a_layout_and_a_family(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        'def f(x):\n    """qwen2"""\n    return x.layout == "GGUF" or x.kind in '
        '("Meta",)\n'
    )
    assert len(compared_layouts(path)) == 2
    assert named_families(path) == set()
    path.write_text(
        'KINDS = {"qwen3": Granite}\nimport olmo2\nx.mistral_window = 1\n"qwen3_moe"\n'
    )
    assert named_families(path) == {"qwen3", "granite", "olmo2", "mistral"}


def test_the_network_of_llama_is_short():
    """Without its docstrings and blank lines it is a listing of less than 300 lines."""
    text = (SRC / "model" / "llama.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    prose = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [
        n
        for n, line in enumerate(text.splitlines(), 1)
        if line.strip() and n not in prose
    ]
    assert len(lines) < 300
