"""Exercise 12.2: a special token that a user types."""

from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("<|eot_id|>")
    special = set(model.tokenizer.special_tokens.values())
    return [Case("answer", None, len(special & set(ids)), "the special tokens")]


EXERCISE = PredictIt(
    number="12.2",
    title="Type a special token",
    minutes=5,
    difficulty="easy",
    task="""\
A user types `<|eot_id|>` in a message. That is also the name of the token that ends a message.
`tokenizer.encode("<|eot_id|>")` returns a list of ids. How many of them are special tokens?

Set `answer` to a whole number.
""",
    stub="""\
answer = None
""",
    solution="""\
answer = 0
""",
    mistakes=(
        Mistake(
            "A text never becomes a special token, or a user could end a message early and write "
            "the next one in the name of the system. Only the template writes them.",
            (("0", "1"),),
        ),
        Mistake(
            "These are all tokens of the text, 8 pieces such as `<`, `|` and `e`. None of them "
            "is special.",
            (("0", "8"),),
        ),
        Mistake(
            "The two vertical bars are ordinary characters.",
            (("0", "2"),),
        ),
    ),
    cases=_cases,
    explanation="""\
The text is encoded as 8 ordinary tokens. tokenizer.encode_prompt is the function for a text of
your program that contains special tokens.""",
)
