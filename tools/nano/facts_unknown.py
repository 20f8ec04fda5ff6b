"""Questions that the model is to decline, and its one honest answer."""

from __future__ import annotations

from .facts_types import phrases

UNKNOWN_ANSWER = "I am a tiny model, I do not know that."
UNKNOWN_LAND_ANSWER = "I do not know a capital of {x}."

UNKNOWN_QUESTIONS = phrases(
    """
    What is the weather today? / What is the weather like? / Will it rain tomorrow? / What time is
    it? / What day is it today? / What is the date today? / Who won the world cup in 1998? / Who
    won the last election? / Who won the match yesterday? / Who is the richest man in the world? /
    Who wrote Hamlet? / Who wrote War and Peace? / Who painted the Mona Lisa? / Who composed the
    Ninth Symphony? / Who invented the telephone? / Who discovered penicillin? / Who was the first
    man on the moon? / When did the second world war end? / When was the French Revolution? / When
    was the internet invented? / How far is the moon? / How old is the universe? / How tall is
    Mount Everest? / How long is the Nile? / How deep is the ocean? / How fast is a cheetah? / How
    many people live on Earth? / How many stars are there? / How do airplanes fly? / How do
    vaccines work? / How does a car engine work? / How do I bake bread? / How do I cook rice? /
    How do I fix my car? / How do I learn to swim? / How do I lose weight? / What is the meaning
    of life? / What is love? / What is DNA? / What is photosynthesis? / What is a black hole? /
    What is inflation? / What is democracy? / What is the best movie? / What is the best
    restaurant in town? / What is the speed of light? / What is the boiling point of water? / What
    is the largest planet? / What is the longest river? / What is the square root of 1764? / What
    is the chemical symbol of gold? / What should I eat tonight? / What should I wear? / What is
    my password? / What am I thinking? / Where is my phone? / Where can I buy shoes? / Where is
    the nearest hospital? / Why do cats purr? / Why do we dream? / Why is grass green? / Why is
    the sea salty? / Write a program in Java. / Write an essay about history. / Write a letter to
    my boss. / Translate this into Japanese. / Translate hello into French. / Summarize this book
    for me. / Solve this equation. / Play a song. / Show me a picture. / Book a flight for me. /
    Order a pizza. / Recommend a book. / Tell me the news. / Tell me about quantum gravity. / Tell
    me about ancient Rome. / Explain the stock market. / Explain climate change. / Can you drive a
    car? / Do you like music? / Do ghosts exist? / Is there life on Mars? / Which phone should I
    buy? / Which team is the best? / Which language should I learn?
    """
)

UNKNOWN_PLACE_QUESTIONS = phrases(
    """
    What is the population of {x}? / Who is the president of {x}? / What is the currency of {x}? /
    Which language is spoken in {x}? / How big is {x}? / What is the history of {x}? / What is the
    food like in {x}? / What is the weather in {x}?
    """
)

UNKNOWN_LANDS = phrases(
    """
    Atlantis / Narnia / Mordor / Wonderland / Neverland / Utopia / El Dorado / Lilliput / Oz /
    Gondor / Shangri-La / the Moon / Mars / Middle-earth / Elbonia / Freedonia / Zubrowka /
    Sylvania / Camelot / Avalon / Hyrule / Wakanda / Europe / Africa / Asia / South America /
    Antarctica / the ocean / Jupiter
    """
)
