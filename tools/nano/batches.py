"""Documents to token ids, packed into rows of equal length for training."""

from __future__ import annotations

import itertools
import random
import re
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from src.cli.reference_encoding import load_encoding

from .documents import Document, DocumentStream
from .mixtures import EVEN, Mixture
from .train_tokenizer import (
    BEGIN_OF_TEXT,
    END_HEADER,
    END_OF_TEXT,
    END_OF_TURN,
    RANK_COUNT,
    START_HEADER,
)

LEARNED_ROLES = frozenset({"assistant", "continuation"})


class Encoder:
    """Encodes documents in the chat format of Llama 3, with a mark on every token that is
    learned.

    Source of the format: meta-llama/llama-models, models/llama3/chat_format.py.
    """

    def __init__(self, tokenizer_file: Path) -> None:
        self._encoding = load_encoding(tokenizer_file)
        self._encode = lru_cache(maxsize=1 << 17)(self._encoding.encode_ordinary)

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text without special tokens; the list may be a shared
        one.
        """
        return self._encode(text)

    def text(self, ids: list[int]) -> str:
        """Return the text of token ids without special tokens."""
        return str(self._encoding.decode(ids))

    def encode(
        self, document: Document, cut: float = 0.0, generator: random.Random | None = None
    ) -> tuple[list[int], list[bool]]:
        """Return the ids of a document and, for each, whether the model learns to predict
        it.

        Args:
            document: the text.
            cut: part of the words of user messages that are encoded in pieces.
            generator: the source of the choices where `cut` is not zero.
        """
        ids = [RANK_COUNT + BEGIN_OF_TEXT]
        learned = [False]
        replies = " ".join(
            content for role, content in document.messages if role == "assistant"
        )
        for role, content in document.messages:
            if cut and generator and role == "user":
                body = self._cut_ids(content, replies, cut, generator)
            else:
                body = list(self.ids(content))
            if not document.raw:
                header = self.header(role)
                ids += header
                learned += [False] * len(header)
                body.append(RANK_COUNT + END_OF_TURN)
            ids += body
            learned += [role in LEARNED_ROLES] * len(body)
        if document.raw:
            ids.append(RANK_COUNT + END_OF_TEXT)
            learned.append(True)
        return ids, learned

    def _cut_ids(
        self, text: str, replies: str, part: float, generator: random.Random
    ) -> list[int]:
        """Return ids in which some words are cut at one or two places.

        A listed name is one token, and a typing error makes other tokens of it: from
        names in pieces the model learns what they are spelled like. A word of several
        tokens that a reply copies stays whole. Source of the idea: I. Provilkov et al.,
        BPE-Dropout, 2020.
        """
        ids: list[int] = []
        start = 0
        for match in re.finditer(r"(?<!\S) ?[A-Za-z]{4,}| [A-Za-z]{4,}", text):
            word = match[0]
            is_copied = word.strip() in replies and len(self.ids(word)) > 1
            if generator.random() >= part or is_copied:
                continue
            ids += self.ids(text[start : match.start()])
            places = sorted(
                generator.choices(range(2, len(word)), k=generator.choice((1, 1, 2)))
            )
            edges = [0, *dict.fromkeys(places), len(word)]
            for begin, end in itertools.pairwise(edges):
                ids += self.ids(word[begin:end])
            start = match.end()
        return ids + self.ids(text[start:])

    def header(self, role: str) -> list[int]:
        """Return the ids of a message header: start, role, end, two newlines."""
        return [
            RANK_COUNT + START_HEADER,
            *self.ids(role),
            RANK_COUNT + END_HEADER,
            *self.ids("\n\n"),
        ]


class Batch:
    """Rows of tokens with what attention and the loss need; all [B, T]."""

    def __init__(self, rows: list[list[tuple[int, bool, int, int]]]) -> None:
        table = torch.tensor(rows)  # [B, T, 4]: id, learned, position, document
        self.tokens, learned, self.positions, self.documents = table.unbind(-1)
        self.learned = learned[:, 1:].bool() & (
            self.documents[:, 1:] == self.documents[:, :-1]
        )
        self.targets = self.tokens[:, 1:]

    @property
    def mask(self) -> Tensor | None:
        """The causal mask within one document, [B, 1, T, T]; None when a row is one
        document.
        """
        if not self.documents.any():
            return None
        same = self.documents[:, None, :, None] == self.documents[:, None, None, :]
        return same & torch.ones_like(same).tril()

    def to(self, device: str) -> Batch:
        """Move every tensor to a device and return the batch."""
        for name, table in vars(self).items():
            setattr(self, name, table.to(device))
        return self


class BatchStream:
    """Endless batches: short rows of several documents, long rows of one conversation."""

    def __init__(self, encoder: Encoder, seed: int, mixture: Mixture = EVEN) -> None:
        self._encoder = encoder
        self._cut = mixture.cut
        self.documents = DocumentStream(seed, mixture)

    def short(self, rows: int, length: int) -> Batch:
        """Return rows filled with one document after another, the last one cut."""
        return Batch([self._row(length, turns=None) for _ in range(rows)])

    def long(self, rows: int, length: int) -> Batch:
        """Return rows that hold one conversation of many turns each."""
        return Batch([self._row(length, turns=length // 12) for _ in range(rows)])

    def _row(self, length: int, turns: int | None) -> list[tuple[int, bool, int, int]]:
        row: list[tuple[int, bool, int, int]] = []
        document = 0
        while len(row) < length:
            read = self.documents.document(turns)
            ids, learned = self._encoder.encode(read, self._cut, self.documents.generator)
            marked = zip(ids, learned, strict=True)
            row += [
                (token, mark, position, document)
                for position, (token, mark) in enumerate(marked)
            ]
            document += 1
        return row[:length]
