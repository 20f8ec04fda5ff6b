"""Write the second example of the explorer, a run of SmolLM2.

`python -m tools.smollm2_page` runs the model and writes the page if it is not current.

The page is the record of one run, with the code and the chapter of the time when it was
written. `tools.update_docs` does not write it, because it needs the model, and a file of
this size should change only when its numbers or the page's own sources change.
"""

from src.explorer import explore
from src.inference import SamplingArgs
from src.model import Model, load_model

from .pages import ROOT, name_of
from .runs import is_same

PAGE = ROOT / "docs" / "explorer" / "smollm2.html"
# Induction heads continue what is repeated, and other heads move the name to the end.
PROMPT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a ball to"
)
_NEW_TOKENS = 2
_MEGABYTES = 5.0


def new_page(model: Model) -> str:
    """Run the prompt, and return the page of the run."""
    greedy = SamplingArgs(temperature=0.0, seed=1)
    return str(explore(model, PROMPT, _NEW_TOKENS, greedy, limit=_MEGABYTES))


def is_current(page: str) -> bool:
    """Return whether the committed page has the numbers and the script of a new page."""
    committed = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return is_same(committed, page, with_code=False)


def main() -> None:
    """Write the page if it is not current."""
    page = new_page(load_model("smollm2"))
    if not is_current(page):
        PAGE.write_text(page, encoding="utf-8")
        print(f"{name_of(PAGE)}: written")


if __name__ == "__main__":
    main()
