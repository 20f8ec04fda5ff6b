"""Exercise 5.1: byte pair encoding."""

from contextlib import AbstractContextManager

from ...model import Model, load_model
from ...tokenizer import Tokenizer
from ...tokenizer.encoders import PieceEncoder
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt

_SMALL = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abc": 5, b"aa": 6}


def _ranks(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Return the bytes of each token that is not special, with its rank."""
    special = set(tokenizer.special_tokens.values())
    ids = [i for i in range(tokenizer.vocab_size) if i not in special]
    return {tokenizer.token_bytes(i): i for i in ids}


def _cases(model: Model) -> list[Case]:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ranks = _ranks(tokenizer)
    cases = [
        Case("merge", (b"abc", _SMALL), [5], "b and c merge first: rank 3 is below 4"),
        Case("merge", (b"abab", _SMALL), [4, 4], ""),
        Case("merge", (b"aaab", _SMALL), [6, 4], ""),
        Case("merge", (b"aaa", _SMALL), [6, 0], "of equal ranks, the leftmost merges"),
    ]
    for text in (" strawberry", " internationalization", "xyzzy"):
        expected = tokenizer.encode(text)
        cases.append(Case("merge", (text.encode(), ranks), expected, text.strip()))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = PieceEncoder.encode_pieces
    tokenizer = load_model().tokenizer
    assert tokenizer is not None
    ranks = _ranks(tokenizer)

    def encode_pieces(encoder: PieceEncoder[bytes], pieces: list[str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            expected = engine(encoder, [piece])
            ids += call((piece.encode(), ranks), expected)
        return ids

    return replaced(PieceEncoder, "encode_pieces", encode_pieces)


EXERCISE = WriteIt(
    number="5.1",
    title="Merge byte pairs",
    minutes=20,
    difficulty="medium",
    function="merge",
    task="""\
Write byte pair encoding for one piece of a text. Begin with one token per byte. Then, again
and again, merge the two neighbours whose joined bytes have the lowest rank, the leftmost if
there are several. Stop when no two neighbours together are a token.

- `piece`: `bytes`, such as `b" capital"`.
- `ranks`: a dict from the bytes of a token to its rank, which is also its id. All 256 single
  bytes that occur in the piece are in it.

Return the list of ids. It must be equal to the engine's.
""",
    stub='''\
def merge(piece, ranks):
    """Return the ids of the tokens of a piece."""
    raise NotImplementedError
''',
    solution='''\
def merge(piece, ranks):
    """Return the ids of the tokens of a piece."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(len(parts) - 1)]
        best = min(pairs, key=lambda pair: ranks.get(pair, float("inf")))
        if best not in ranks:
            break
        at = pairs.index(best)
        parts[at : at + 2] = [best]
    return [ranks[part] for part in parts]
''',
    mistakes=(
        Mistake(
            "The leftmost pair merges first, whatever its rank. The pair with the lowest "
            "rank merges first, wherever it is.",
            (
                (
                    'min(pairs, key=lambda pair: ranks.get(pair, float("inf")))',
                    "next((pair for pair in pairs if pair in ranks), pairs[0])",
                ),
            ),
        ),
        Mistake(
            "The pair with the highest rank merges. Low ranks were learned first, and merge "
            "first.",
            (
                (
                    'min(pairs, key=lambda pair: ranks.get(pair, float("inf")))',
                    "max(pairs, key=lambda pair: ranks.get(pair, -1))",
                ),
            ),
        ),
        Mistake(
            "Only one pair merges. Repeat until no two neighbours are a token.",
            (("[best]\n", "[best]\n        break\n"),),
        ),
        Mistake(
            "Of pairs with the same rank, the rightmost merges. The leftmost comes first.",
            (
                (
                    "at = pairs.index(best)",
                    "at = len(pairs) - 1 - pairs[::-1].index(best)",
                ),
            ),
        ),
        Mistake(
            "Nothing merges: each byte is a token.",
            (("while len(parts) > 1:", "while False:"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
