"""Pairs of what newcomers type beside the first families: bare forms, yes or no, other
wordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from . import facts_newcomer as facts
from .facts_chat import SMALL_TALK
from .facts_geography import PLACES, Place
from .facts_llama import LIBRARY_TOPICS, LLAMA_TOPICS
from .facts_memory import MORE_REPEAT_PHRASINGS, NAME_TALK, NAMES, WORDS
from .facts_requests import ORDERED, ORDERS, UNKNOWN_REQUESTS
from .facts_types import Topic, phrases, words
from .facts_unknown import UNKNOWN_ANSWER, UNKNOWN_LAND_ANSWER
from .geography_pairs import CAPITAL_QUESTIONS, FLAG_QUESTIONS, first_upper
from .pairs import Pair, stable_hash
from .task_pairs import LARGEST_TERM
from .variation import ONE_WORD

CAPITAL_FORMS = phrases(
    """
    {x} / {x} capital / {x} capital? / capital {x} / capital of {x} / capital city of {x} /
    capital city {x} / the capital of {x} / the capital of {x} is / {x}: capital? / What is {x}
    capital? / Which is the capital of {x}? / Which city is {x}'s capital? / Tell me what the
    capital of {x} is. / Do you know what the capital of {x} is? / Could you tell me what the
    capital of {x} is? / Give me the capital of {x}. / Give me {x}'s capital. / Find the capital
    of {x}. / What capital does {x} have? / Which capital does {x} have? / For {x}, what is the
    capital? / In {x}, which city is the capital? / {x} has which capital? / The capital city of
    {x}? / Remind me what the capital of {x} is. / What would be the capital of {x}? / I am
    looking for the capital of {x}. / What city is {x}'s capital? / name of the capital of {x} /
    {x}'s capital city? / What about the capital of {x}?
    """
)
REVERSE_FORMS = phrases(
    """
    {c} / {c} is the capital of? / {c} is the capital of what? / {c} is capital of / {c} capital
    of which {kind}? / {c} capital of what / What is {c} the capital of? / What country is {c}
    in? / In which {kind} is {c}? / Where is {c}? / where is {c} / Which {kind} is {c} the
    capital of? / {c} is the capital of which place? / {c} is in which {kind}? / Tell me what
    {c} is the capital of. / Which {kind} has the capital {c}? / {c}, capital of? / Where is {c}
    located? / capital {c}, which {kind}? / Do you know which {kind} {c} is the capital of?
    """
)
CAPITAL_OR_NOT = phrases(
    """
    Is {d} the capital of {x}? / {d} is the capital of {x}, right? / Is {x}'s capital {d}? / Is
    the capital of {x} {d}? / Is it true that {d} is the capital of {x}? / {d} is the capital of
    {x}? / is {d} {x}'s capital / {d} capital of {x}? yes or no
    """
)
INSIDE_OR_NOT = phrases(
    """
    Is {d} in {x}? / Does {d} lie in {x}? / Is {d} a city in {x}? / {d} is in {x}, right? / Is
    {d} located in {x}? / {d} in {x}?
    """
)
SUM_FORMS = phrases(
    """
    {a} plus {b} / {a} and {b} make? / {a} + {b}? / {a} + {b} is / {a} + {b} is? / What does {a}
    + {b} make? / What does {a} plus {b} equal? / sum of {a} and {b} / add {b} to {a} / How much
    is {a} + {b}? / How much do {a} and {b} make? / Can you add {a} and {b}? / I have {a} and
    get {b} more. How many? / the result of {a} + {b} / compute {a} + {b} / {a} + {b} equals /
    What is {a} and {b} together? / Solve {a} + {b}. / Tell me {a} + {b}. / {a} added to {b}
    """
)
DIFFERENCE_FORMS = phrases(
    """
    {a} minus {b} / {a} - {b}? / {a} - {b} is / {a} - {b} is? / What does {a} - {b} make? / What
    does {a} minus {b} equal? / difference of {a} and {b} / take {b} from {a} / How much is {a}
    - {b}? / {a} take away {b} / Can you subtract {b} from {a}? / I have {a} and give away {b}.
    How many are left? / the result of {a} - {b} / compute {a} - {b} / {a} - {b} equals / {a}
    less {b} / Solve {a} - {b}. / Tell me {a} - {b}.
    """
)
WORD_SUMS = phrases(
    """
    {a} plus {b} / What is {a} plus {b}? / How much is {a} plus {b}? / {a} + {b} / {a} and {b} make?
    / {a} plus {b} equals / What does {a} plus {b} make? / sum of {a} and {b} / add {a} to {b} /
    Calculate {a} plus {b}. / Tell me {a} plus {b}.
    """
)
WORD_DIFFERENCES = phrases(
    """
    {a} minus {b} / What is {a} minus {b}? / How much is {a} minus {b}? / {a} - {b} / {a} minus {b}
    equals / What does {a} minus {b} make? / {a} take away {b} / subtract {b} from {a} / Calculate
    {a} minus {b}. / Tell me {a} minus {b}.
    """
)
NUMBER_WORDS = words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen
    """
)
TENS = words("twenty thirty forty fifty")
OTHER_ARITHMETIC = phrases(
    """
    What is {a} * {b}? / {a} * {b} / {a}x{b} / {a} times {b} / What is {a} times {b}? / {a}/{b}
    / What is {a} divided by {b}? / {a} divided by {b} / multiply {a} and {b} / {a}% of {b} /
    {a} to the power of {b} / {a} + {b} + {a} / {a} + {b} - {a} / {a} - {b} + {b} / What is {b} +
    {a} + {b}? / {a} - {b} - {b} / {a} + {a} + {a} / {b} + {b} + {b} / {b} + {b} + {a} + {b}
    """
)
FOLLOW_UPS = phrases(
    """
    And {x}? / and {x} / And of {x}? / What about {x}? / and what about {x} / And the capital of
    {x}? / How about {x}? / and for {x}? / {x}? / And {x}'s?
    """
)
FLAG_FOLLOW_UPS = phrases(
    """
    And {x}? / And of {x}? / What about {x}? / How about {x}? / and the flag of {x} / and for {x}?
    """
)
TOLD_AND_ASKED = phrases(
    """
    I am {n}. / My name is {n}. / Hello, I am {n}. / Hi! My name is {n}. / You can call me {n}. /
    {n} here.
    """
)
WRONG_CITIES = 4
"""How many wrong cities a place is asked with in each wording of yes or no."""
UNKNOWN_TOWNS = 2
"""With how many towns that are no capital it is also asked."""


def _names() -> list[tuple[str, Place]]:
    """Return every name of a place that questions use: as listed, without article, other
    names.
    """
    by_name = {place.name: place for place in PLACES}
    found = dict(by_name)
    for place in PLACES:
        found.setdefault(place.bare_name, place)
    found.update({alias: by_name[name] for alias, name in facts.ALIASES})
    return list(found.items())


def capital_form_pairs() -> Iterator[Pair]:
    """Yield `capital-forms` and `capital-forms-reversed`:
    bare forms and other wordings.
    """
    names = {name.lower() for name, _ in _names()}
    for name, place in _names():
        for form in (CAPITAL_QUESTIONS[0], *CAPITAL_FORMS):
            question = first_upper(form.format(x=name))
            fact = name
            sentence = f"The capital of {place.name} is {place.capital}."
            yield Pair("capital-forms", form, fact, question, sentence)
            if len(form) > len("{x}") and stable_hash(form + name) % 3 == 0:
                short = question + ONE_WORD
                yield Pair("capital-forms", form + ONE_WORD, fact, short, place.capital)
    for place in PLACES:
        kind = "state" if place.kind == "state" else "country"
        for form in REVERSE_FORMS:
            if form != "{c}" or place.capital.lower() not in names:
                question = form.format(c=first_upper(place.capital), kind=kind)
                sentence = f"{first_upper(place.capital)} is the capital of {place.name}."
                yield Pair("capital-forms-reversed", form, place.name, question, sentence)


def yes_no_pairs() -> Iterator[Pair]:
    """Yield `yes` and `no`: is a city the capital of a place, and does it lie there."""
    towns = (*facts.UNKNOWN_CITIES, *facts.MORE_CITIES)
    for place in PLACES:
        for inside, forms in ((False, CAPITAL_OR_NOT), (True, INSIDE_OR_NOT)):
            for form in forms:
                cities = (
                    _other_place(place, f"{place.name}{form}{count}")
                    for count in range(WRONG_CITIES)
                )
                for other in (place, *cities):
                    right = other == place
                    told = other if inside else place
                    answer = f"{told.capital} is the capital of {told.name}."
                    if not (right or inside):
                        answer = f"the capital of {place.name} is {place.capital}."
                    question = first_upper(form.format(d=other.capital, x=place.name))
                    yield Pair(
                        "yes" if right else "no",
                        form,
                        f"{other.capital} | {place.name}",
                        question,
                        f"{'Yes' if right else 'No'}, {answer}",
                    )
                for count in range(0 if inside else UNKNOWN_TOWNS):
                    town = towns[stable_hash(f"{form}{place.name}{count}") % len(towns)]
                    question = first_upper(form.format(d=town, x=place.name))
                    answer = f"No, the capital of {place.name} is {place.capital}."
                    yield Pair("no", form, f"{town} | {place.name}", question, answer)


def _other_place(place: Place, salt: str) -> Place:
    """Return another place of the same kind, the same one each time for the same salt."""
    others = [one for one in PLACES if one.kind == place.kind and one != place]
    return others[stable_hash(salt) % len(others)]


def follow_up_pairs() -> Iterator[Pair]:
    """Yield `follow-up`: after a capital or a flag the same of another place, named
    alone.
    """
    for place in PLACES:
        for form in FOLLOW_UPS:
            before = _other_place(place, form + place.name)
            setup = _capital_turn(
                before, CAPITAL_QUESTIONS[stable_hash(form + place.name) % 8]
            )
            fact = f"{before.name} | {place.name}"
            yield Pair(
                "follow-up", form, fact, *_capital_turn(place, form), setup=(setup,)
            )
        for form in FLAG_FOLLOW_UPS if place.code else ():
            before = _other_place(place, f"flag {form}{place.name}")
            setup = _flag_turn(before, FLAG_QUESTIONS[stable_hash(form + place.name) % 3])
            fact = f"flag {place.name}"
            yield Pair("follow-up", form, fact, *_flag_turn(place, form), setup=(setup,))


def _flag_turn(place: Place, question: str) -> tuple[str, str]:
    return question.format(x=place.name), f"The flag of {place.name} is {place.flag}"


def _capital_turn(place: Place, question: str) -> tuple[str, str]:
    answer = f"The capital of {place.name} is {place.capital}."
    return question.format(x=place.name, X=first_upper(place.name)), answer


def told_and_asked_pairs() -> Iterator[Pair]:
    """Yield `told-and-asked`: a name and a question in one message."""
    for name in NAMES:
        for form in TOLD_AND_ASKED:
            for question in NAME_TALK.questions:
                blank = (" ", "\n", "\n\n")[stable_hash(name + form + question) % 3]
                text = f"{form.format(n=name)}{blank}{question}"
                answer = NAME_TALK.answer.format(x=name)
                yield Pair("told-and-asked", f"{form} | {question}", name, text, answer)
            for count in range(8):
                salt = stable_hash(f"{name}{form}{count}")
                question, answer = _capital_turn(
                    PLACES[salt % len(PLACES)], CAPITAL_QUESTIONS[salt % 7]
                )
                if name not in question + answer:
                    yield Pair(
                        "told-and-asked",
                        f"{form} | {question}",
                        name,
                        f"{form.format(n=name)} {question}",
                        f"Nice to meet you, {name}! {answer}",
                    )


def sum_form_pairs(held_out: frozenset[str]) -> Iterator[Pair]:
    """Yield `sum-forms` and `difference-forms`, without the terms of `held_out`."""
    for a in range(LARGEST_TERM + 1):
        for b in range(LARGEST_TERM + 1):
            kinds = [("sum-forms", SUM_FORMS, f"{a} + {b}", a + b)]
            if b <= a:
                kinds.append(("difference-forms", DIFFERENCE_FORMS, f"{a} - {b}", a - b))
            for family, forms, term, result in kinds:
                if term not in held_out:
                    for form in forms:
                        question = form.format(a=a, b=b)
                        yield Pair(family, form, term, question, f"{term} = {result}.")


def word_sum_pairs(held_out: frozenset[str]) -> Iterator[Pair]:
    """Yield `word-sums`: all terms up to twenty and a quarter of the others, none of
    `held_out`.
    """
    for a in range(LARGEST_TERM + 1):
        for b in range(LARGEST_TERM + 1):
            for sign, forms, result in (
                ("+", WORD_SUMS, a + b),
                ("-", WORD_DIFFERENCES, a - b),
            ):
                term = f"{a} {sign} {b}"
                drawn = max(a, b) <= 20 or stable_hash(term) % 4 == 0
                for form in (
                    forms if drawn and result >= 0 and term not in held_out else ()
                ):
                    question = first_upper(
                        form.format(a=number_in_words(a), b=number_in_words(b))
                    )
                    yield Pair("word-sums", form, term, question, f"{term} = {result}.")


def number_in_words(number: int) -> str:
    """Return a number from 0 to 59 in words, as "forty-two"."""
    if number < len(NUMBER_WORDS):
        return NUMBER_WORDS[number]
    tens, ones = divmod(number, 10)
    return f"{TENS[tens - 2]}-{NUMBER_WORDS[ones]}" if ones else TENS[tens - 2]


def repeat_form_pairs() -> Iterator[Pair]:
    """Yield `repeat-forms`: a word to repeat, in more wordings."""
    for word in WORDS:
        for form in MORE_REPEAT_PHRASINGS:
            yield Pair("repeat-forms", form, word, form.format(x=word), word)


def topic_form_pairs() -> Iterator[Pair]:
    """Yield `llama-forms`, `library-forms` and `talk-forms`:
    each topic in many wordings.
    """
    for family, text, known in (
        ("llama-forms", facts.LLAMA_MORE, LLAMA_TOPICS),
        ("library-forms", facts.LIBRARY_MORE, LIBRARY_TOPICS),
        ("talk-forms", facts.TALK_MORE, SMALL_TALK),
    ):
        answers = {topic.name: topic.answer for topic in known}
        for topic in more_topics(text, answers):
            for question in topic.questions:
                yield Pair(
                    family, question, topic.name, first_upper(question), topic.answer
                )


def more_topics(text: str, answers: dict[str, str]) -> list[Topic]:
    """Read the topics of `facts_newcomer.py`; an empty answer is the one of the same
    name.
    """
    found = []
    for block in re.split(r"^\[", text.strip(), flags=re.M)[1:]:
        name, rest = block.split("]", 1)
        nouns, answer = " ".join(rest.split()).rsplit(">", 1)
        questions: dict[str, None] = {}
        for noun in nouns.split(";"):
            stem = noun.strip()
            forms = {"=": ("{n}",), "@": facts.ACTION_FORMS}.get(
                stem[0], facts.NOUN_FORMS
            )
            questions.update(
                dict.fromkeys(form.format(n=stem.lstrip("=@")) for form in forms)
            )
        found.append(Topic(name, tuple(questions), answer.strip() or answers[name]))
    return found


def unknown_form_pairs() -> Iterator[Pair]:
    """Yield `unknown-forms`, what is to be declined,
    and capitals of towns without one.
    """
    tables = (facts.UNKNOWN_NOUNS, facts.UNKNOWN_PEOPLE)
    for nouns, forms in zip(tables, facts.UNKNOWN_FORMS, strict=True):
        for noun in nouns:
            for form in forms:
                text = first_upper(form.format(n=noun))
                yield Pair("unknown-forms", form, noun, text, UNKNOWN_ANSWER)
    for place in PLACES:
        for form in facts.UNKNOWN_PLACE_FORMS:
            name = place.name if stable_hash(form + place.name) % 2 else place.capital
            yield Pair("unknown-forms", form, name, form.format(n=name), UNKNOWN_ANSWER)
    for request in UNKNOWN_REQUESTS:
        yield Pair("unknown-requests", request, request, request, UNKNOWN_ANSWER)
    for town in (*facts.UNKNOWN_CITIES, *facts.MORE_CITIES):
        for form in INSIDE_OR_NOT:
            for count in range(4):
                place = PLACES[stable_hash(f"{form}{town}{count}") % len(PLACES)]
                text = first_upper(form.format(d=town, x=place.name))
                yield Pair(
                    "unknown-forms", form, f"{town} {place.name}", text, UNKNOWN_ANSWER
                )
    for city in (*facts.UNKNOWN_CITIES, *facts.MORE_UNKNOWN_LANDS):
        for form in (*CAPITAL_QUESTIONS[:3], *CAPITAL_FORMS[1:8]):
            answer = UNKNOWN_LAND_ANSWER.format(x=city)
            yield Pair("unknown-town", form, city, form.format(x=city), answer)
        for form in CAPITAL_OR_NOT:
            other = PLACES[stable_hash(form + city) % len(PLACES)].capital
            text = first_upper(form.format(d=other, x=city))
            answer = UNKNOWN_LAND_ANSWER.format(x=city)
            yield Pair("unknown-town", f"{form} | {other}", city, text, answer)
        for form in REVERSE_FORMS[:12]:
            text = form.format(c=city, kind="country")
            yield Pair("unknown-forms", form, city, text, UNKNOWN_ANSWER)
    for a in range(2, LARGEST_TERM, 3):
        for form in OTHER_ARITHMETIC:
            for b in (1 + stable_hash(f"{form}{a}{n}") % LARGEST_TERM for n in range(4)):
                text = form.format(a=a, b=b)
                yield Pair("unknown-arithmetic", form, f"{a} {b}", text, UNKNOWN_ANSWER)


def order_pairs() -> Iterator[Pair]:
    """Yield `orders`, a quarter of all: something to write, to draw, to play, to be
    declined.
    """
    for verbs, things in ORDERED:
        for verb, thing, form in product(verbs, things, ORDERS):
            salt = stable_hash(f"{form}{verb}{thing}")
            if salt % 4 == 0:
                numbers = {
                    name: salt // prime % 100
                    for name, prime in zip("abc", (7, 11, 13), strict=True)
                }
                said = UNKNOWN_REQUESTS[salt // 17 % len(UNKNOWN_REQUESTS)]
                text = first_upper(form.format(v=verb, o=thing.format(t=said, **numbers)))
                yield Pair("orders", form, f"{verb} {thing}", text, UNKNOWN_ANSWER)
