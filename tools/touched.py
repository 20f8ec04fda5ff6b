"""The files that each common kind of change affects, with an example from the code.

The lists are written by hand and checked: each file must exist and contain its text, and
no other file in `src` and `csrc` may mention the example.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .pages import ROOT, PageError

_SUFFIXES = {".py", ".c", ".h"}


@dataclass(frozen=True)
class Change:
    """A kind of change.

    Attributes:
        kind: The kind of addition.
        example: An existing addition of this kind, for display.
        pattern: A regular expression that finds the example in code.
        places: The files that the addition affects, each with a text that it requires.
    """

    kind: str
    example: str
    pattern: str
    places: Mapping[str, str]

    @property
    def code(self) -> list[str]:
        """The files in `src` and `csrc`."""
        return [path for path in self.places if path.startswith(("src/", "csrc/"))]

    @property
    def others(self) -> list[str]:
        """The tests and documentation pages."""
        return [path for path in self.places if path not in self.code]


CHANGES = (
    Change(
        "a family",
        "Phi-3",
        r"\bphi3\b",
        {
            "src/model/families/phi3.py": "\nFAMILY = ",
            "tests/model/test_phi3.py": '"phi3"',
            "docs/19-llamas.md": "| Phi-3,",
        },
    ),
    Change(
        "an op",
        "`ml.layer_norm`",
        r"\blayer_norm\b",
        {
            "src/ml/ops/reduction.py": "\n@op\ndef layer_norm(",
            "src/ml/ops/__init__.py": '"layer_norm"',
            "tests/ml/ops/test_reduction.py": "layer_norm",
        },
    ),
    Change(
        "an op of one NumPy function",
        "`ml.rsqrt`",
        r"\brsqrt\b",
        {
            "src/ml/ops/numpy_ops.py": "\nrsqrt = unary_op(",
            "src/ml/ops/__init__.py": '"rsqrt"',
            "src/ml/tensor.py": "        rsqrt,\n",
            "tests/ml/ops/test_numpy_ops.py": "ROWS.values()",
        },
    ),
    Change(
        "a block format",
        "`iq4_xs`",
        r"\b(TYPE_IQ4_XS|iq4_xs\w*)\b",
        {
            "src/ml/dtype.py": '"iq4_xs"',
            "csrc/dtypes.h": "TYPE_IQ4_XS",
            "csrc/formats/iq4.h": "iq4_xs_format",
            "tests/csrc/ggml_operands.py": '"iq4_xs"',
            "docs/ADDING-A-DTYPE.md": "`iq4_xs`",
        },
    ),
    Change(
        "a flag",
        "`--share-prefixes`",
        r"\bshare_prefixes\b|--share-prefixes",
        {
            "src/cli/arguments.py": "share_prefixes: Annotated[",
            "src/cli/serve.py": "options.share_prefixes",
            "tests/server/test_ranks.py": '"--share-prefixes"',
            "docs/SERVER.md": "--share-prefixes",
        },
    ),
    Change(
        "a sampling step",
        "`presence_penalty`",
        r"\bpresence_penalty\b",
        {
            "src/sampling_steps.py": 'name="presence_penalty"',
            "src/inference/sampling.py": "self.args.presence_penalty",
            "tests/inference/test_sampling.py": '"presence_penalty"',
            "docs/16-sampling.md": "| `--presence-penalty` |",
            "docs/SERVER.md": "`presence_penalty`",
        },
    ),
)


def checked_places(change: Change) -> list[str]:
    """Return the files of a change; raise PageError if a place or a file is missing."""
    for name, text in change.places.items():
        path = ROOT / name
        if not path.is_file() or text not in path.read_text(encoding="utf-8"):
            raise PageError(f"{name}: expected the text {text!r} of {change.example}")
    named = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in _SUFFIXES
        and path.name != "_kernels.c"
        and re.search(change.pattern, path.read_text(encoding="utf-8"))
    }
    if named != set(change.code):
        raise PageError(
            f"{change.example}: expected the files {sorted(change.code)}, "
            f"got {sorted(named)}"
        )
    return [*change.places]
