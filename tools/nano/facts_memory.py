"""Names, cities and words of the tasks whose answer stands in the conversation itself."""

from __future__ import annotations

from dataclasses import dataclass

from .facts_types import phrases, words


@dataclass(frozen=True)
class Talk:
    """How something is told and acknowledged, how it is asked for later,
    and the answer.
    """

    introductions: tuple[str, ...]
    reply: str
    questions: tuple[str, ...]
    answer: str


NAMES = words(
    """
    Ada Alan Alice Amir Anna Ben Bruno Carla Carlos Chen Clara Daniel Diego Dora Elena Emma Erik
    Eva Fatima Felix Frank Grace Hana Hans Hugo Ida Igor Ines Ivan Jack James Jane Jonas Juan
    Julia Kai Karim Kate Kofi Lars Laura Lea Leo Lina Lucas Lucy Maria Marco Martin Maya Mei Mia
    Milo Mona Nadia Nina Noah Nora Olga Oliver Omar Oscar Paul Pedro Peter Priya Rosa Ruth Sam
    Sara Simon Sofia Tara Theo Tim Tom Vera Victor Yara Yuki Zoe
    """
)

HOME_CITIES = phrases(
    """
    Paris / London / Berlin / Rome / Madrid / Tokyo / Boston / Denver / Austin / Lima / Oslo /
    Cairo / Delhi / Sydney / Toronto / Istanbul / Athens / Vienna / Lisbon / Dublin / Nairobi /
    Seoul / Bangkok / Havana / Warsaw / Prague / Milan / Munich / Chicago / Seattle / Hamburg /
    Lyon / Porto / Geneva / Kyoto / Mumbai / Lagos / Quito / Zurich / Naples
    """
)

WORDS = words(
    """
    apple bread candle door engine flower garden hammer island jacket kettle lemon mirror needle
    orange pencil queen river stone table umbrella violin window yellow zebra anchor basket carpet
    dragon eagle feather guitar honey iron jungle kitchen ladder market night ocean paper quilt
    rabbit silver tiger uncle valley water winter butter camera desert forest ginger horse insect
    jewel knife lamp moon noodle olive pepper rocket salt tunnel village whale bridge cloud spoon
    planet tensor kernel llama matrix vector token number letter music summer autumn spring bottle
    button circle coffee dinner finger ticket
    """
)
REPEAT_PHRASINGS = phrases(
    """
    Repeat this word: {x} / Repeat the word {x}. / Say {x}. / Please say the word {x}. / Write
    {x}. / Echo: {x} / Say this back to me: {x} / Repeat after me: {x}
    """
)
MORE_REPEAT_PHRASINGS = phrases(
    """
    Repeat {x} / Repeat: {x} / Can you say {x}? / Can you repeat {x}? / Please repeat {x}. / Echo
    {x} / Repeat the words {x}. / Now say {x} / Say: {x} / Just say {x}. / Say {x} please / Repeat
    the following: {x} / Could you repeat this: {x} / Say "{x}" / Repeat "{x}". / I want you to say
    {x}
    """
)
"""Trained whole, beside those of which a tenth of the words is held out."""
TWICE_PHRASINGS = phrases(
    """
    Say {x} twice. / Repeat {x} two times. / Write {x} twice.
    """
)
SPELL_PHRASINGS = phrases(
    """
    Spell {x}. / How do you spell {x}? / Spell the word {x}. / Please spell {x}. / What are the
    letters of {x}?
    """
)

FIRST_QUESTIONS = phrases(
    """
    What was my first question? / What did I ask you first? / Do you remember my first question? /
    Which question did I ask first?
    """
)
FIRST_ANSWER = "Your first question was: {x}"

NAME_TALK = Talk(
    introductions=phrases(
        """
        My name is {x}. / I am {x}. / Hello, I am {x}. / Hi! My name is {x}. / You can call me {x}.
        """
    ),
    reply="Nice to meet you, {x}!",
    questions=phrases(
        """
        What is my name? / What did I say my name was? / Do you remember my name? / Who am I?
        """
    ),
    answer="Your name is {x}.",
)

HOME_TALK = Talk(
    introductions=phrases(
        """
        I live in {x}. / My home is in {x}. / I come from {x}.
        """
    ),
    reply="I hear that {x} is a good place to live.",
    questions=phrases(
        """
        Where do I live? / Which city did I say I live in? / Do you remember where I live? / What is
        my city?
        """
    ),
    answer="You live in {x}.",
)

NUMBER_TALK = Talk(
    introductions=phrases(
        """
        Remember the number {x}. / Please remember the number {x}. / My favourite number is {x}. /
        Keep the number {x} in mind.
        """
    ),
    reply="I will remember {x}.",
    questions=phrases(
        """
        Which number did I give you? / What was my number? / What number did I tell you? / Do you
        remember my number?
        """
    ),
    answer="Your number is {x}.",
)
