"""Measure the bundled model with this library's own engine at temperature 0, group by
group.

Run `python -m tools.nano.evaluate`. The questions of `questions.py` bring their rules. An
answer to a random input may hold no word that neither the corpus nor the input has. A
pair is right when the whole answer equals the expected one to the letter. All held-out
pairs are asked; of the training pairs a sample that is the same each time.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from src.inference import InferenceEngine, Message, SamplingArgs
from src.ml import ScaledAdapters
from src.model import load_adapter, load_model

from .corpus import BOSTON, PINNED, load_split
from .pairs import Pair
from .questions import newcomer_questions

SEEN_PER_FAMILY = 150
SAMPLE_SEED = 17
LONGEST_ANSWER = 96
RECALL_FAMILIES = ("name", "home", "number", "first-question")
FILLING_FAMILIES = (
    "capital-country",
    "capital-state",
    "sum",
    "talk",
    "unknown",
    "repeat",
)
RECALL_DISTANCES = (0, 1, 2, 4, 8, 16)
RECALLED_PER_FAMILY = 40
RANDOM_INPUTS = 1000
GIBBERISH_TITLE = (
    "Random inputs answered with a word that neither the corpus nor the input has:"
)
RECALL_TITLE = "Held-out pairs asked after other turns, right of those asked:"


@dataclass
class Score:
    """How many pairs of a family were asked and how many answers were right."""

    asked: int = 0
    right: int = 0

    @property
    def part(self) -> float:
        """The right part, 0 to 1."""
        return self.right / max(1, self.asked)


class Examiner:
    """Asks pairs, each in a conversation of its own."""

    def __init__(
        self,
        directory: Path | None = None,
        quantize: str | None = None,
        adapter: Path | None = None,
    ) -> None:
        self._model = load_model(directory, quantize=quantize)
        self._adapters: ScaledAdapters = ()
        if adapter is not None:
            self._adapters = ((load_adapter(self._model, adapter), 1.0),)
        self._engine = InferenceEngine(self._model, sequence_length=1024)

    def answer(self, pair: Pair) -> str:
        """Return the model's answer to a pair at temperature 0."""
        sampling = SamplingArgs(temperature=0.0)
        if pair.raw:
            tokenizer = self._model.tokenizer
            if tokenizer is None:
                raise ValueError("the model directory must hold tokenizer.model")
            ids = tokenizer.encode(pair.question, bos=True, eos=False)
            steps = self._engine.generate(
                ids, LONGEST_ANSWER, sampling, adapters=self._adapters
            )
        else:
            steps = self._engine.chat(
                pair_messages(pair), LONGEST_ANSWER, sampling, adapters=self._adapters
            )
        return "".join(step.text for step in steps)


def pair_messages(pair: Pair) -> list[Message]:
    """Return the conversation that leads to the answer of a pair."""
    messages = [Message("system", pair.system)] if pair.system else []
    for user, assistant in pair.setup:
        messages += [Message("user", user), Message("assistant", assistant)]
    return [*messages, Message("user", pair.question)]


def sampled(families: dict[str, list[Pair]], most: int) -> dict[str, list[Pair]]:
    """Return all pairs of a small family and `most` of a large one, the same ones each
    time.
    """
    generator = random.Random(SAMPLE_SEED)
    return {
        family: pairs if len(pairs) <= most else generator.sample(pairs, most)
        for family, pairs in families.items()
    }


def seen_sample(most: int = SEEN_PER_FAMILY) -> dict[str, list[Pair]]:
    """Return training pairs of the families that have held-out pairs too."""
    split = load_split()
    return sampled({family: split.train[family] for family in split.held_out}, most)


def questions_table(examiner: Examiner, miss: Callable[[Pair, str], None]) -> str:
    """Return a Markdown table: the right part of each group of hand-written questions."""
    scores: dict[str, Score] = {}
    for one in newcomer_questions():
        pair = Pair(one.group, "", "", one.question, one.rule)
        answer = examiner.answer(pair)
        right = one.is_right(answer)
        group = scores.setdefault(one.group, Score())
        group.asked = group.asked + 1
        group.right = group.right + right
        if not right:
            miss(pair, answer)
    rows = {**scores, "**all**": total(scores.values())}
    cells = (
        f"| {name} | {one.right} / {one.asked} | {100 * one.part:.1f} % |"
        for name, one in rows.items()
    )
    return "\n".join(["| group | right | |", "|---|---|---|", *cells])


def words_of(text: str) -> set[str]:
    """Return the words of a text in lower case."""
    return {word.lower() for word in re.findall(r"[^\W\d_]+", text)}


def corpus_words() -> set[str]:
    """Return every word of the training pairs in lower case."""
    pairs = (pair for members in load_split().train.values() for pair in members)
    return set().union(*(words_of(f"{pair.question} {pair.answer}") for pair in pairs))


def random_inputs(count: int, known: set[str]) -> list[str]:
    """Return printable characters, letters of several scripts, and words in any order."""
    generator = random.Random(SAMPLE_SEED)
    words = sorted(known)

    def one(index: int) -> str:
        length = generator.randint(1, 12)
        if index % 3 == 0:
            return "".join(chr(generator.randint(33, 126)) for _ in range(3 * length))
        if index % 3 == 1:
            letters = (
                chr(
                    generator.choice(
                        (generator.randint(97, 122), generator.randint(192, 1500))
                    )
                )
                for _ in range(3 * length)
            )
            return "".join(letters)
        return " ".join(generator.choices(words, k=length))

    return [one(index) for index in range(count)]


def gibberish(examiner: Examiner, miss: Callable[[Pair, str], None]) -> Score:
    """Ask random inputs; an answer is right when the corpus or the input has each of its
    words.
    """
    known = corpus_words()
    score = Score()
    for text in random_inputs(RANDOM_INPUTS, known):
        pair = Pair("random", "", "", text, "no word but known ones")
        answer = examiner.answer(pair)
        right = words_of(answer) <= known | words_of(text)
        score.asked = score.asked + 1
        score.right = score.right + right
        if not right:
            miss(pair, answer)
    return score


def recall_pairs(family: str, distance: int) -> list[Pair]:
    """Return held-out pairs with `distance` other turns, always the same, before the
    question.
    """
    split = load_split()
    generator = random.Random(SAMPLE_SEED + distance)
    others = [
        pair for name in FILLING_FAMILIES for pair in split.train[name] if not pair.setup
    ]
    asked = split.held_out[family][:RECALLED_PER_FAMILY]
    fillings = (generator.sample(others, distance) for _ in asked)
    return [
        replace(
            pair, setup=pair.setup + tuple((turn.question, turn.answer) for turn in turns)
        )
        for pair, turns in zip(asked, fillings, strict=True)
    ]


def recall_table(examiner: Examiner, miss: Callable[[Pair, str], None]) -> str:
    """Return a Markdown table: the right part of each recalling family by turns in
    between.
    """
    lines = [
        f"| turns in between | {' | '.join(RECALL_FAMILIES)} |",
        f"|---|{'---|' * len(RECALL_FAMILIES)}",
    ]
    for distance in RECALL_DISTANCES:
        pairs = {family: recall_pairs(family, distance) for family in RECALL_FAMILIES}
        scores = score(examiner, pairs, miss).values()
        cells = " | ".join(f"{one.right} / {one.asked}" for one in scores)
        lines.append(f"| {distance} | {cells} |")
    return "\n".join(lines)


def pinned_pairs() -> list[Pair]:
    """Return the training pairs of the prompts that the documentation shows."""
    pairs = (pair for members in load_split().train.values() for pair in members)
    return [pair for pair in pairs if (pair.system, pair.question) in PINNED]


def score(
    examiner: Examiner, families: dict[str, list[Pair]], miss: Callable[[Pair, str], None]
) -> dict[str, Score]:
    """Ask all pairs and return the score of each family; `miss` hears of each wrong
    answer.
    """
    scores: dict[str, Score] = {}
    for family, pairs in families.items():
        scores[family] = Score()
        for pair in pairs:
            answer = examiner.answer(pair)
            scores[family].asked += 1
            scores[family].right += answer == pair.answer
            if answer != pair.answer:
                miss(pair, answer)
    return scores


def total(scores: Iterable[Score]) -> Score:
    """Return the sum of scores."""
    found = list(scores)
    return Score(sum(one.asked for one in found), sum(one.right for one in found))


def weighted_part(seen: dict[str, Score]) -> float:
    """Return the right part of all training pairs, each family's sample standing for all
    of it.
    """
    sizes = {family: len(pairs) for family, pairs in load_split().train.items()}
    right = sum(one.part * sizes[family] for family, one in seen.items())
    return right / sum(sizes[family] for family in seen)


def table(held_out: dict[str, Score], seen: dict[str, Score]) -> str:
    """Return both results as a Markdown table with a row per family and a last row for
    all.
    """

    def cells(one: Score) -> str:
        return f"{one.right} / {one.asked} | {100 * one.part:.1f} %"

    lines = ["| family | held out, right | | seen, right | |", "|---|---|---|---|---|"]
    for family, one in held_out.items():
        lines.append(f"| {family} | {cells(one)} | {cells(seen[family])} |")
    everything = (total(held_out.values()), total(seen.values()))
    lines.append(f"| **all** | {cells(everything[0])} | {cells(everything[1])} |")
    return "\n".join(lines)


def write_card(card: Path, text: str) -> None:
    """Put a table between the two marks of a model card."""
    start = "<!-- evaluation -->"
    end = "<!-- end of evaluation -->"
    before, rest = card.read_text().split(start)
    after = rest.split(end)[1]
    card.write_text(f"{before}{start}\n{text}\n{end}{after}")


def main() -> None:
    """Ask everything, print the table, and on request write it into the model card."""
    parser = argparse.ArgumentParser(
        description="Measure the bundled model with our own engine."
    )
    parser.add_argument("--model", type=Path, help="another model directory")
    parser.add_argument("--card", type=Path, help="a model card to write the table into")
    parser.add_argument(
        "--questions", action="store_true", help="ask the hand-written questions alone"
    )
    parser.add_argument(
        "--sample", type=int, default=sys.maxsize, help="pairs of each family, at most"
    )
    parser.add_argument("--misses", action="store_true", help="show each wrong answer")
    arguments = parser.parse_args()

    def miss(pair: Pair, answer: str) -> None:
        if arguments.misses:
            print(
                f"{pair.family}: {pair.question!r} {answer!r} != {pair.answer!r}",
                file=sys.stderr,
            )

    examiner = Examiner(arguments.model)
    started = time.monotonic()
    parts = [questions_table(examiner, miss)]
    if not arguments.questions:
        known = gibberish(examiner, miss)
        parts.append(f"{GIBBERISH_TITLE} {known.asked - known.right} of {known.asked}.")
        held_out = score(examiner, sampled(load_split().held_out, arguments.sample), miss)
        seen = score(examiner, seen_sample(min(arguments.sample, SEEN_PER_FAMILY)), miss)
        parts += [
            table(held_out, seen),
            "With each family weighted by its number of training pairs, "
            f"{100 * weighted_part(seen):.1f} % of the seen pairs are right.",
            RECALL_TITLE,
            recall_table(examiner, miss),
        ]
    pinned = score(examiner, {"pinned": pinned_pairs()}, miss)["pinned"]
    text = "\n\n".join(parts)
    print(text)
    print(f"\nprompts of the documentation: {pinned.right} of {pinned.asked} right")
    print(f"{BOSTON!r} -> {examiner.answer(Pair('', '', '', BOSTON, 'Boston'))!r}")
    print(f"{time.monotonic() - started:.0f} seconds")
    if arguments.card:
        write_card(arguments.card, text)


if __name__ == "__main__":
    main()
