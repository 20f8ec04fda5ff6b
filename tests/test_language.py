"""The words that this project does not use: names, messages, docstrings, comments and
docs.
"""

import re
from pathlib import Path

from tools.pages import documents

ROOT = Path(__file__).resolve().parent.parent
# What is avoided, as a regular expression over lower case, and what is written instead.
WORDS = {
    r"doors?": "bindings",
    r"rooms": "packages, modules",
    r"roofs?": "roofline, memory bandwidth",
    r"dense(ly)?": "contiguous",
    r"(lies?|lying|are) apart": "do not overlap",
    r"askew": "misaligned",
    r"(first|second) cache": "L1 cache, L2 cache",
    # Cells of a table are folded, as Rich calls it.
    r"(?<!\")fold(s|ing)?(?!\")|folded (?!into a narrow|where)": "reduce",
    # Regular expressions look ahead, disks read ahead, and prefetching has a distance.
    r"(?<!look )(?<!look-)(?<!reading )(?<!kb )ahead(?! =|, start)": "prefetch",
    r"stretch(es|ed)?": "K block; scale",
    r"pairs? (of a head )?turn(s|ed)?": "rotate",
    r"blind(ly)?": "masked",
    r"mix(es)?": "weighted sum",
    r"splitters?": "pre-tokenizer",
    r"marked text": "metaspace",
    r"src/outside|src\.outside": "untrusted",
    r"(de)?quantis\w*": "quantize",
    r"worth a stop": "deserves a closer look",
    r"(is|are) dear": "is expensive",
    r"(be|is|are|also) had (again|in|from|by|here|there)": "you can repeat, print, get",
    r"who (knows|wants|reads|needs) [^.?]*\bfinds?": "if you know ...",
    r"stands? in (?!for)": "is in",
    r"told by": "recognized by",
    r"where (it|they|each|what) lies?": "where it is",
    r"so many": "the number; many",
    r"(?<!share )of its own": "a separate",
    r"\w+ more costs": "what each extra one costs",
    r"(?<!there )is no (?!longer|more|room|need)\w+": "is not a",
    r"(goes|go) first": "comes first, precedes",
    r"system gave none": "the system refused",
}


def found_in(text: str) -> str:
    """Return the avoided words of a text, each with what is written instead."""
    return ", ".join(
        f"{found[0]!r} (write {instead})"
        for word, instead in WORDS.items()
        for found in re.finditer(rf"(?<![a-z])(?:{word})(?![a-z])", text.lower())
    )


def test_no_page_and_no_source_has_a_word_that_is_avoided():
    """`tools/nano`, which contains what people type, is not read."""
    code = [
        path
        for folder in ("src", "csrc", "tools")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h", ".inc")
        and path.name != "_kernels.c"
        and not path.is_relative_to(ROOT / "tools" / "nano")
    ]
    any_word = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])")
    faults = []
    for path in [*code, *documents()]:
        for number, line in enumerate(
            path.read_text(encoding="utf-8").lower().split("\n"), 1
        ):
            if any_word.search(line):
                faults.append(f"{path.relative_to(ROOT)}:{number}: {found_in(line)}")
    assert faults == []


def test_a_word_is_found_at_its_borders_alone_and_with_its_exceptions():
    assert (
        found_in("The Doors, my_door")
        == "'doors' (write bindings), 'door' (write bindings)"
    )
    assert (
        found_in("indoors, condense, there is no mask, a look-ahead, in mixtures") == ""
    )
    assert found_in("it is no number of its own") == (
        "'of its own' (write a separate), 'is no number' (write is not a)"
    )
