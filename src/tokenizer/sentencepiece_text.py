"""The tokenizer that a SentencePiece model of the kind BPE describes.

Of all neighbours that join to a piece, the pair with the highest score merges first, the leftmost
of equals.

Source: google/sentencepiece src/bpe_model.cc and src/normalizer.cc, v0.2.1.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from .added_tokens import AddedToken, AddedTokenFinder, TextWithAddedTokens
from .bpe import Merges, spelled_merges
from .marked_text import SPACE_MARK, MarkedText, words_are_independent
from .pieces import CharacterPieces, character_symbols
from .roles import Settings, Template
from .sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    byte_piece,
)
from .tokenizer import Decoding, Tokenizer

_SPACES = re.compile(" +")


def sentencepiece_tokenizer(
    model: SentencePieceModel, settings: Settings, added: Sequence[AddedToken] = ()
) -> Tokenizer:
    """Form the tokenizer of a SentencePiece model.

    Args:
        model: what the file says.
        settings: what the files beside it say.
        added: the tokens that they add, as `read_tokens_beside` gives them.

    Raises:
        TokenizerError: where these name a token that the model does not have.
    """
    model = _with_special_pieces(model, {token.text for token in added if token.special})
    pieces, ids = model.pieces, model.ids
    special = model.special | {token.text: token.token_id for token in added if token.special}
    byte_of = {byte_piece(byte): bytes([byte]) for byte in range(256)}
    token_bytes = [
        byte_of[piece.text] if piece.kind == BYTE else _spelled(piece.text, piece.text in special)
        for piece in pieces
    ]
    token_bytes += [token.text.encode() for token in added if token.text not in ids]
    template = Template(
        begin=model.bos_piece if model.bos_piece in special else None,
        end=model.eos_piece if model.eos_piece in special else None,
    )
    return Tokenizer(
        token_bytes,
        special,
        _encoder(model, ids, added),
        settings.roles(special, len(token_bytes), template),
        Decoding(
            drops_first_space=model.add_dummy_prefix or model.remove_extra_whitespaces,
            drops_more_spaces=model.remove_extra_whitespaces,
            unknown_id=_unknown_id(model),
            own_space_ids=frozenset(n for n, p in enumerate(pieces) if p.kind == BYTE)
            | {token.token_id for token in added},
            mark_per_byte=True,
        ),
    )


def _with_special_pieces(model: SentencePieceModel, names: set[str]) -> SentencePieceModel:
    """Make pieces special that the files beside the model call so: no text becomes them."""
    pieces = (
        replace(p, kind=CONTROL) if p.text in names and p.kind in (NORMAL, USER_DEFINED) else p
        for p in model.pieces
    )
    return replace(model, pieces=tuple(pieces))


def _spelled(text: str, special: bool) -> bytes:
    return (text if special else text.replace(SPACE_MARK, " ")).encode()


def _unknown_id(model: SentencePieceModel) -> int:
    return next(number for number, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)


def _encoder(
    model: SentencePieceModel, ids: dict[str, int], added: Sequence[AddedToken]
) -> TextWithAddedTokens:
    pieces = model.pieces
    tokens = {piece.text: ids[piece.text] for piece in pieces if piece.kind == NORMAL}
    unknown = _unknown_id(model)

    def fallback(character: str) -> list[int]:
        if not model.byte_fallback:
            return [unknown]
        return [ids[byte_piece(byte)] for byte in character.encode()]

    symbols = character_symbols(tokens, len(pieces))
    text = MarkedText(
        CharacterPieces(symbols, tokens, _merges(model, tokens, symbols), fallback, whole=False),
        normalize=lambda text: _normalized(text, model),
        words=words_are_independent(tokens),
        fused_id=None if model.byte_fallback else unknown,
    )
    user_defined = [
        AddedToken(piece.text, ids[piece.text], special=False)
        for piece in pieces
        if piece.kind == USER_DEFINED
    ]
    return TextWithAddedTokens(text, AddedTokenFinder(added), AddedTokenFinder(user_defined))


def _merges(model: SentencePieceModel, tokens: dict[str, int], symbols: dict[str, int]) -> Merges:
    scores = {piece.score for piece in model.pieces if piece.kind == NORMAL}
    rank_of_score = {score: rank for rank, score in enumerate(sorted(scores, reverse=True))}
    ranks = {p.text: rank_of_score[p.score] for p in model.pieces if p.kind == NORMAL}
    stand_ins = [c for c, number in symbols.items() if number >= len(model.pieces)]
    return spelled_merges([*(p.text for p in model.pieces), *stand_ins], ranks, tokens)


def _normalized(text: str, model: SentencePieceModel) -> str:
    """Prepare a text: spaces to marks, one more before it, as the model says."""
    mark = SPACE_MARK if model.escape_whitespaces else " "
    if model.remove_extra_whitespaces:
        text = _SPACES.sub(" ", text.lstrip(" "))
    if not text:
        return ""
    if model.escape_whitespaces:
        text = text.replace(" ", SPACE_MARK)
    if model.add_dummy_prefix:
        text = mark + text
    return text.rstrip(mark) if model.remove_extra_whitespaces else text
