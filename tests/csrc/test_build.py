"""What the sources and the compiled extension hold, and where Python calls it."""

import ast
import importlib
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from src import ml
from tools.write_dtypes import write_header

from . import calls
from .conftest import ON_ARM
from .surface import HEADER, functions, without_comments

_kernels: Any = importlib.import_module("src.ml._kernels")  # what cffi has compiled
ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
SOURCES = sorted(CSRC.rglob("*.[ch]"))
WRITE_UNITS = runpy.run_path(str(CSRC / "write_units.py"))["write_units"]
SURFACE = (
    HEADER.read_text(encoding="utf-8").partition("/* cffi: end */")[0] + write_header()
)

# What takes or gives back memory, speaks, ends the program, leaves a function sideways,
# or reaches the system.
NEVER_CALLED = (
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "aligned_alloc",
    "posix_memalign",
    "memalign",
    "valloc",
    "alloca",
    "strdup",
    "free",
    "mmap",
    "munmap",
    "mprotect",
    "brk",
    "sbrk",
    "printf",
    "fprintf",
    "vprintf",
    "vfprintf",
    "dprintf",
    "puts",
    "fputs",
    "putchar",
    "perror",
    "exit",
    "_exit",
    "_Exit",
    "quick_exit",
    "atexit",
    "abort",
    "assert",
    "raise",
    "kill",
    "signal",
    "setjmp",
    "longjmp",
    "open",
    "fopen",
    "read",
    "write",
    "close",
    "system",
    "fork",
    "execve",
    "getenv",
    "setenv",
    "pthread_create",
    "__assert_fail",
    "__printf_chk",
    "__fprintf_chk",
    "__builtin_trap",
    "__builtin_alloca",
    "__builtin_unreachable",
)
# The handler of a bus error alone speaks and ends the program: nothing else can be done
# there.
OF_THE_HANDLER = {"write", "_exit", "raise"}
# The pool of a build without OpenMP makes its threads, and keeps signals from them.
OF_THREADS = {"pthread_create"}
# The integers of the surface that are no sizes: choices among a few, and how many
# threads.
CHOICES = {
    "isa",
    "threads",
    "type",
    "x_type",
    "out_type",
    "weight_type",
    "bias_type",
    "cache_type",
    "op",
    "halves",
    "streams",
    "waiting",
    "activations",
}
ENUMS = {"Activations", "ElementType", "ElementwiseOp", "InstructionSet", "Waiting"}
NUMBERS = {"eps", "scale", "nested_offset", "cap", "soft_cap"}
# Tools run without the sanitizer that a test build has loaded before everything.
PLAIN_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "LD_PRELOAD"
}
# Beyond what the extension is compiled with.
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Wvla",
    "-Wpointer-arith",
    "-Wundef",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wdouble-promotion",
    "-Wswitch-enum",
    "-Werror",
)


def code_of(path: Path) -> str:
    return without_comments(path.read_text(encoding="utf-8"))


def compiled(compiler: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Let a compiler check C11; skip the test where it is missing."""
    found = shutil.which(compiler) or pytest.skip(f"needs {compiler}")
    command = [found, "-std=c11", "-fsyntax-only", f"-I{CSRC}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=PLAIN_ENVIRONMENT)


def test_the_header_of_dtypes_is_what_the_table_says() -> None:
    assert (HEADER.parent / "dtypes.h").read_text(encoding="utf-8") == write_header()


ROWS: tuple[Any, ...] = (*ml.DTYPES, *ml.BLOCK_DTYPES, *ml.GGML_DTYPES.values())


def test_every_type_of_the_header_has_the_number_of_its_row() -> None:
    rows = {f"TYPE_{row.name.upper()}": row.code for row in ROWS}
    rows["TYPE_NF4_DOUBLE"] = ml.nf4.double_code
    known = {name: number for name, number in rows.items() if number >= 0}
    assert sorted(known.values()) == list(range(_kernels.lib.TYPE_COUNT))
    assert all(getattr(_kernels.lib, name) == number for name, number in known.items())


# Those of an instruction set compile for it; the largest has all.
TARGETS = [
    "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
    "-mavx512bf16",
]  # fmt: skip
ARM_TARGETS = ["-march=armv8.2-a+bf16"]
# Beside headers with their names, those that are written for their vectors.
OF_ARM = re.compile("neon|fours")
OF_X86 = re.compile("amx|avx|few_tokens|many_tokens|matrix_tiles|transposed")


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.suffix == ".h"], ids=lambda path: path.stem
)
def test_every_header_compiles_alone(path: Path, tmp_path: Path) -> None:
    if (OF_X86 if ON_ARM else OF_ARM).search(path.name):
        pytest.skip("of another processor")
    targets = ARM_TARGETS if ON_ARM else TARGETS
    alone = tmp_path / "alone.c"
    alone.write_text(f'#include "{path}"\n')
    run = compiled("gcc", *targets, str(alone))
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("row", "elements", "compiles"),
    [
        ("int8_block", 64, True), ("int8_block", 48, False), ("int8_block", 16, False),
        ("nf4", 32, True), ("nf4", 48, False), ("nf4", 512, False),
    ],
)  # fmt: skip
def test_a_block_that_does_not_fit_into_k_blocks_and_vectors_does_not_compile(
    tmp_path: Path, row: str, elements: int, compiles: bool
) -> None:
    shutil.copytree(CSRC, tmp_path / "csrc")
    header = tmp_path / "csrc" / "dtypes.h"
    changed = re.sub(
        rf"({row}_elements) = \d+", rf"\1 = {elements}", header.read_text("utf-8")
    )
    header.write_text(changed, encoding="utf-8")
    WRITE_UNITS(tmp_path / "csrc", tmp_path)
    command = (
        f"-iquote{tmp_path / 'csrc'}",
        str(tmp_path / "portable" / "conversions.c"),
    )
    run = compiled("gcc", *command)
    assert (run.returncode == 0) is compiles, run.stderr
    assert (f'static assertion failed: "{row}"' in run.stderr) is not compiles


# For each kernel: the units that a reader of it needs with AVX512-BF16, which are the
# driver and those of the instruction set, and how many files of C they may have.
CLOSURES = {
    "a bfloat16 product": (("products/linear.c", "avx512bf16/products.c"), 10),
    "a Q4_K product of few tokens": (
        ("products/linear.c", "avx512bf16/k_quants_few.c"),
        14,
    ),
    "a Q4_K product of many tokens": (
        (
            "products/linear.c",
            "avx512bf16/k_quants_many.c",
            "avx512bf16/tiles_of_codes.c",
        ),
        14,
    ),
    "a Q4_K product in tile registers": (
        (
            "products/linear.c",
            "avx512amx/k_quants_matrix.c",
            "avx512amx/tiles_of_codes.c",
        ),
        17,
    ),
    "a kernel on rows": (("rows/rows.c", "avx512bf16/rows.c"), 6),
    "attention": (("attention/attention.c", "avx512bf16/attention.c"), 12),
}
# What all kernels share: the choice of the instruction set, and the threads.
SHARED_UNITS = ("dispatch.c", "threads.c")


def files_read_for(units: Iterable[str], written: Path) -> set[str]:
    """Return the project's files that gcc reads to compile some units, as `gcc -MM` lists
    them.
    """
    compiler = shutil.which("gcc") or pytest.skip("needs gcc")
    folders = (CSRC, written)
    paths = [
        str(folder / unit)
        for unit in units
        for folder in folders
        if (folder / unit).is_file()
    ]
    assert len(paths) == len(tuple(units))
    command = [compiler, "-std=c11", f"-I{CSRC}", "-MM", *paths]
    rules = subprocess.check_output(command, text=True, env=PLAIN_ENVIRONMENT)
    files = {
        word for word in rules.replace("\\\n", " ").split() if not word.endswith(".o:")
    }
    assert all(
        Path(file).is_relative_to(folders[0]) or file.startswith(str(written))
        for file in files
    )
    return files


@pytest.mark.skipif(ON_ARM, reason="not an x86-64 machine")
@pytest.mark.parametrize("kernel", CLOSURES)
def test_a_kernel_needs_few_files(tmp_path: Path, kernel: str) -> None:
    units, most = CLOSURES[kernel]
    WRITE_UNITS(CSRC, tmp_path)
    files = files_read_for(units, tmp_path)
    assert len(files) <= most, sorted(files)
    assert len(files_read_for((*units, *SHARED_UNITS), tmp_path) - files) == len(
        SHARED_UNITS
    )
    named = CSRC / "README.md"
    row = re.search(rf"^\| {kernel} \| (\d+) \|", named.read_text(encoding="utf-8"), re.M)
    assert row is not None, kernel
    assert int(row[1]) == len(files)


def test_the_extension_offers_all_of_the_surface_and_nothing_else() -> None:
    constants = re.findall(r"\b([A-Z][A-Z0-9_]+) = \d", SURFACE)
    page = (ROOT / "docs" / "08-kernels.md").read_text(encoding="utf-8")
    assert (
        f"the whole interface between the two languages: {len(functions())} functions"
        in page
    )
    assert sorted(dir(_kernels.lib)) == sorted([*functions(), *constants])


def test_kernels_never_allocate_print_or_exit() -> None:
    exceptions = {"bus_error.c": OF_THE_HANDLER, "threads.c": OF_THREADS}
    for path in SOURCES:
        called = set(re.findall(rf"\b({'|'.join(NEVER_CALLED)})\s*\(", code_of(path)))
        assert called == exceptions.get(path.name, set()), path
        if path.name not in exceptions:
            headers = r"#include <(stdlib|stdio|assert|signal|setjmp|unistd)\.h>"
            assert not re.search(headers, code_of(path)), path


def listing_of(tool: str, *options: str) -> str:
    """Let a tool list the extension; skip the test where it is missing, or in a test
    build.
    """
    found = shutil.which(tool)
    if found is None or not hasattr(_kernels, "__file__"):
        pytest.skip(f"needs {tool}")
    if "emulated" in str(calls.build_info()["compiler"]):
        pytest.skip("a test build, which calls the sanitizers and emulates instructions")
    command = [found, *options, str(_kernels.__file__)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=PLAIN_ENVIRONMENT
    )
    return done.stdout


def test_the_compiled_extension_asks_the_system_for_nothing_of_the_kind() -> None:
    listing = listing_of("nm", "-D", "--undefined-only")
    wanted = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    assert "memcpy" in wanted
    pool = set() if calls.build_info()["threading"] == "serial" else OF_THREADS
    assert wanted & set(NEVER_CALLED) == OF_THE_HANDLER | pool


@pytest.mark.skipif(ON_ARM, reason="not an x86-64 machine")
def test_the_bfloat16_instruction_is_in_the_extension() -> None:
    assert listing_of("objdump", "-d").count("vdpbf16ps") >= 24


def test_every_size_of_the_surface_and_its_structs_is_a_ptrdiff_t() -> None:
    for name, parameters in functions().items():
        for parameter in parameters:
            if parameter.name in NUMBERS:
                assert parameter.type == "float"
            elif parameter.name in CHOICES:
                assert parameter.type in {"int", *ENUMS}
            else:
                assert parameter.is_pointer or parameter.type == "ptrdiff_t", (
                    name,
                    parameter,
                )
    fields = [
        field for s in ("LinearPart", "Weight") for field in _kernels.ffi.typeof(s).fields
    ]
    plain = {
        name: field.type.cname for name, field in fields if field.type.kind == "primitive"
    }
    assert plain == {"rows": "ptrdiff_t", "nested_offset": "float"}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    "threads", ["-fopenmp", "-DLLAMA_BOLTS_PTHREADS", "-UNO_THREADS"]
)
def test_the_sources_compile_without_a_warning(
    tmp_path: Path, compiler: str, threads: str
) -> None:
    paths = [CSRC / "threads.c"]
    if threads == "-fopenmp":
        written = [path for path in SOURCES if path.suffix == ".c"]
        paths = [*written, *WRITE_UNITS(CSRC, tmp_path)]
    for path in paths:
        run = compiled(compiler, threads, *WARNINGS, str(path))
        assert run.returncode == 0, run.stderr


def test_every_struct_has_a_name_of_its_own() -> None:
    places: dict[str, set[Path]] = {}
    for path in SOURCES:
        for name in re.findall(r"typedef (?:struct|enum) (\w+) \{", code_of(path)):
            places.setdefault(name, set()).add(path)
    # The same type of two instruction sets has one name, as `vec` and `ivec` have.
    per_set = {
        name
        for name, paths in places.items()
        if {path.parent.name for path in paths} == {"isa"}
    }
    twice = {name for name, paths in places.items() if len(paths) > 1}
    assert twice - per_set == set()


def test_nothing_is_suppressed_in_the_commands_that_look_for_faults() -> None:
    for name in ("sanitizers", "thread_sanitizer", "valgrind", "guard_pages"):
        text = (ROOT / "tests" / "csrc" / f"run_{name}.py").read_text(encoding="utf-8")
        assert "suppressions=" not in text.replace("--default-suppressions=no", "")
        assert "-fno-sanitize=" not in text


def test_a_source_hides_from_no_tool_and_has_intrinsics_where_they_belong() -> None:
    hidden = r"no_sanitize|no_address|__SANITIZE|__has_feature|diagnostic"
    intrinsics = r"\b_mm\d*_|immintrin|\bv[a-z0-9]+q?_[usfb]f?\d|arm_neon"
    for path in SOURCES:
        assert not re.search(hidden, code_of(path)), path
        if not re.match(r"(vectors|codes)_(avx|neon)", path.name):
            assert not re.search(intrinsics, code_of(path)), path


def test_no_flag_loosens_arithmetic_or_ties_the_build_to_one_machine() -> None:
    text = (ROOT / "csrc" / "build_kernels.py").read_text(encoding="utf-8")
    for flag in ("-ffast-math", "-Ofast", "-march", "-mtune", "-funsafe"):
        assert flag not in text
    assert "-ffp-contract=off" in text


def readelf(option: str) -> str:
    """Describe the extension; skip the test where it is not an ELF file or readelf is
    missing.
    """
    tool = shutil.which("readelf") or pytest.skip("needs readelf")
    if calls.build_info()["compiler"].startswith("test"):
        pytest.skip("a build for tests is not hardened")
    library = Path(_kernels.__file__)
    if library.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("the extension is not an ELF file")
    command = [tool, "--wide", option, str(library)]
    environment = PLAIN_ENVIRONMENT | {"LC_ALL": "C"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True
    )
    return result.stdout


def test_the_extension_exports_the_initializer_of_the_module_alone() -> None:
    symbols = [line.split() for line in readelf("--dyn-syms").splitlines()]
    exported = {
        fields[7]
        for fields in symbols
        if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK") and fields[6].isdigit()
    }
    assert exported - {"_init", "_fini"} == {"PyInit__kernels"}


def test_the_extension_names_no_directory_and_binds_its_symbols_when_it_is_loaded() -> (
    None
):
    dynamic = readelf("--dynamic")
    assert "(RUNPATH)" not in dynamic
    assert "(RPATH)" not in dynamic
    assert "BIND_NOW" in dynamic
    assert "GNU_RELRO" in readelf("--program-headers")


def test_the_extension_checks_its_stack() -> None:
    assert "__stack_chk_fail" in readelf("--dyn-syms")


def test_workflows_name_actions_by_the_hash_of_a_commit() -> None:
    workflows = [*(ROOT / ".github" / "workflows").glob("*.yml")]
    actions = [
        action
        for path in workflows
        for action in re.findall(r"uses:\s*(\S+)", path.read_text(encoding="utf-8"))
    ]
    assert actions
    assert [
        action for action in actions if not re.fullmatch(r"\S+@[0-9a-f]{40}", action)
    ] == []


# ---- pointers --------------------------------------------------------------------------

KERNELS = functions().keys()
# What makes a pointer out of something else, or moves what one points to.
POINTER_MAKERS = {
    "cast",
    "from_buffer",
    "addressof",
    "new_handle",
    "from_handle",
    "gc",
    "dlopen",
    "memmove",
}
CALLERS = re.compile(r"ml/(ops/\w+|tensor|quantized|roofline|kernels)\.py")


@pytest.fixture(scope="module")
def trees() -> dict[str, list[ast.AST]]:
    """The nodes of each module, by its path."""
    parsed = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in (ROOT / "src").rglob("*.py")
    }
    return {
        path.relative_to(ROOT / "src").as_posix(): [*ast.walk(tree)]
        for path, tree in parsed.items()
    }


def test_pointers_are_made_in_one_module_and_kernels_called_by_ops_and_tensors(
    trees: dict[str, list[ast.AST]],
) -> None:
    for path, nodes in trees.items():
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        dotted = [node for node in nodes if isinstance(node, ast.Attribute)]
        of_ffi, of_lib = (
            {node.attr for node in dotted if ast.unparse(node.value) == owner}
            for owner in ("ffi", "lib")
        )
        assert of_ffi & POINTER_MAKERS == (
            {"cast"} if path == "ml/kernels.py" else set()
        ), path
        assert "ctypes" not in names, path
        if not CALLERS.fullmatch(path):
            assert not of_lib & KERNELS, path
            assert "pointer" not in names | {node.attr for node in dotted}, path


def test_each_kernel_is_called_in_one_place(trees: dict[str, list[ast.AST]]) -> None:
    calls = [
        node for nodes in trees.values() for node in nodes if isinstance(node, ast.Call)
    ]
    texts = [ast.unparse(call.func) for call in calls]
    called = [text.removeprefix("lib.") for text in texts if text.startswith("lib.")]
    twice = {name for name in called if called.count(name) > 1}
    assert twice <= {
        "product_scratch_bytes",
        "isa_available",
        "isa_select",
        "openmp_version",
    }
    assert {*called} - KERNELS == set()
    references = {name for name in KERNELS if name.endswith("_reference")}
    assert KERNELS - {*called} == references
