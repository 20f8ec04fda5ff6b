"""The stages between text and tokens: 1, 2 and 21."""

from collections.abc import Sequence
from itertools import pairwise

from .canvas import BODY, INNER, MARGIN, SMALL, WIDTH, Box, shortened, text_width, wrapped
from .frame import Drawn, Sheet, draw_tensor

_MOST_TILES = 72
_MOST_STEPS = 8
_TILE_HEIGHT = 48.0
_GAP = 8.0


def draw_tokenization(sheet: Sheet, y: float) -> Drawn:
    """Draw stage 1: the text of the prompt, and the tokens that it becomes."""
    details = sheet.run.marks(sheet.number)[0].details
    for said, text in sheet.run.prompt():
        lines = wrapped(repr(text)[1:-1], INNER - 140, BODY, mono=True)
        if len(lines) > 4:  # so that it cannot fill a page
            lines = [*lines[:3], f"... {len(text)} characters"]
        lines = [shortened(line, INNER - 120, BODY) for line in lines]
        box = sheet.rect(Box(MARGIN, y, INNER, 20 + 20 * len(lines)), "op")
        sheet.text((box.x + 14, y + 25), said, size=SMALL, ink="soft", bold=True)
        for number, line in enumerate(lines):
            sheet.text((box.x + 106, y + 25 + 20 * number), line)
        y = box.bottom + _GAP
    sheet.arrow([(WIDTH / 2, y - _GAP), (WIDTH / 2, y + 20)])
    ids = details["ids"]
    y = _draw_tiles(sheet, ids, y + 28)
    note = (
        f"{len(ids)} tokens: the text of each over its id. Yellow ones are special tokens, "
        "which no text turns into."
    )
    return y + 2, "TV", " ".join([note, *(f"{name}." for name in details["symbols"])])


def draw_tokens_tensor(sheet: Sheet, y: float) -> Drawn:
    """Draw stage 2: the ids in a row become a tensor."""
    (tokens,) = sheet.run.marks(sheet.number)[0].outputs
    ids = sheet.run.marks(1)[0].details["ids"]
    y = _draw_tiles(sheet, ids, y, positions=True)
    sheet.arrow([(WIDTH / 2, y), (WIDTH / 2, y + 24)])
    box = draw_tensor(sheet, tokens, Box(WIDTH / 2 - 180, y + 24, 360))
    note = (
        "Each id over its position, from 0. An id is checked against V before it becomes the "
        "number of a row."
    )
    return box.bottom + 16, "TV", note


def draw_text_out(sheet: Sheet, y: float) -> Drawn:
    """Draw stage 21: each token's text, what is shown, and whether to go on."""
    columns = ((0, 150, "token"), (190, 220, "its text"), (450, 200, "shown"), (690, 150, "then"))
    for x, width, said in columns:
        sheet.text((MARGIN + x + width / 2, y + 8), said, ink="soft", anchor="middle", mono=False)
    y += 22
    marks = sheet.run.marks(sheet.number)
    half = _MOST_STEPS // 2
    shown = marks if len(marks) <= _MOST_STEPS else [*marks[:half], *marks[-half:]]
    for event in shown:
        token, reason = event.details["token"], event.details["stop_reason"]
        special = sheet.run.is_special(token)
        cells = (
            (str(token), "tensor"),
            (sheet.run.piece(token), "weight" if special else "op"),
            ("waits" if event.details["waits"] else repr(event.details["text"]), "op"),
            ("goes on" if reason is None else f"stops: {reason}", "stage" if reason else "group"),
        )
        for (x, width, _), (text, kind) in zip(columns, cells, strict=True):
            box = sheet.rect(Box(MARGIN + x, y, width, 36), kind)
            sheet.text((box.middle[0], y + 23), text, anchor="middle", room=width - 16)
        for (x, width, _), (right, _, _) in pairwise(columns):
            sheet.arrow([(MARGIN + x + width, y + 18), (MARGIN + right, y + 18)])
        y += 36 + _GAP
    left_out = len(marks) - len(shown)
    said = f" {left_out} steps in the middle are left out." if left_out else ""
    note = (
        "Bytes wait until they are a whole character, so that an emoji of several tokens appears "
        f"at once. The answer stops at an end token, a stop text, or a limit.{said}"
    )
    symbols = dict.fromkeys(name for event in marks for name in event.details["symbols"])
    return y + 8, "", " ".join([note, *(f"{name}." for name in symbols)])


def _draw_tiles(sheet: Sheet, ids: Sequence[int], y: float, *, positions: bool = False) -> float:
    """Draw tokens as tiles in rows; returns where they end.

    A tile holds the text of a token over its id, or, with positions, the id over its position.
    """
    x = float(MARGIN)
    for position, token in enumerate(ids[:_MOST_TILES]):
        both = (str(token), str(position)) if positions else (sheet.run.piece(token), str(token))
        over, under = shortened(both[0], 180, BODY), both[1]
        width = max(text_width(over, BODY), text_width(under, SMALL)) + 14
        if x + width > WIDTH - MARGIN:
            x, y = float(MARGIN), y + _TILE_HEIGHT + _GAP
        kind = "tensor" if positions else "weight" if sheet.run.is_special(token) else "op"
        tile = sheet.rect(Box(x, y, width, _TILE_HEIGHT), kind)
        sheet.text((tile.middle[0], y + 20), over, anchor="middle")
        sheet.text((tile.middle[0], y + 39), under, size=SMALL, ink="soft", anchor="middle")
        x = tile.right + _GAP
    y += _TILE_HEIGHT + _GAP
    if len(ids) > _MOST_TILES:
        sheet.text((MARGIN, y + 14), f"and {len(ids) - _MOST_TILES} more", mono=False)
        y += 22
    return y
