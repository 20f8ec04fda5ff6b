"""The written form of the fact tables, and the topics read from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One fixed answer and the questions that lead to it.

    `system` holds alternative system prompts; empty means a conversation without one.
    """

    name: str
    questions: tuple[str, ...]
    answer: str
    system: tuple[str, ...] = ()


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrases of a text in which they are separated by ` / ` and lines mean
    nothing.
    """
    return tuple(" ".join(text.split()).split(" / "))


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


def topics(text: str, system: tuple[str, ...] = ()) -> tuple[Topic, ...]:
    """Read topics: `[name]`, then the questions as `phrases`, then `>` and the answer.

    A line may go on in the next one; a ` | ` in an answer stands for a line break.
    """
    found = []
    for block in text.strip().split("[")[1:]:
        name, rest = block.split("]", 1)
        questions, answer = rest.split("\n> ", 1)
        lines = " ".join(answer.split()).replace(" | ", "\n")
        found.append(Topic(name, phrases(questions), lines, system))
    return tuple(found)
