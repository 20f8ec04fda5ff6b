"""Grammars of llama.cpp: what is one, what is rejected,
and the texts that each allows.
"""

import itertools
import random
import re
from typing import Any

import pytest

from src.inference import GrammarError
from src.inference.gbnf import is_gbnf, lark_of_gbnf
from src.inference.grammars import MOST_BYTES, read_grammar
from tests.support.many import many

JSON = r"""
# The grammar of JSON that llama.cpp documents, shortened.
root   ::= object
value  ::= object | array | string | [0-9]+ | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('root ::= "a"', True),
        ("# a comment\n  my-rule  ::= [a-z]+\n", True),
        (JSON, True),
        ('start: "a" | b\nb: /x::=y/', False),
        ('%llguidance {}\nstart: "root ::= x"', False),
        ("", False),
    ],
)
def test_a_rule_with_its_mark_tells_a_grammar_of_llama_cpp_from_one_of_lark(text, is_one):
    assert is_gbnf(text) is is_one


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ('a ::= "b"', "line 1 column 1", "a rule with the name root"),
        ('root ::= "a"\nb ::= c d', "line 2 column 7", "a rule with the name c"),
        (
            'root ::= "a"\nroot ::= "b"',
            "line 2 column 5",
            "each rule once, got root twice",
        ),
        ('root ::= "a', "line 1 column 12", "a character or one of its escapes"),
        ('root ::= "\\q"', "line 1 column 11", "a character or one of its escapes"),
        ('root ::= "\\ud800"', "line 1 column 17", "the code of a character, got 0xd800"),
        (
            'root ::= "\\U00110000"',
            "line 1 column 21",
            "the code of a character, got 0x110000",
        ),
        (
            "root ::= [z-a]",
            "line 1 column 14",
            "a range from low to high, got 'z' to 'a'",
        ),
        ("root ::= []", "line 1 column 11", "a character in the set"),
        ('root ::= ("a"', "line 1 column 14", ")"),
        ('root ::= "a" )', "line 1 column 14", "the end of the rule"),
        ('root ::= "a"{3,2}', "line 1 column 13", "repetition counts"),
        ('root ::= "a"{2001}', "line 1 column 13", "repetition counts"),
        ("root ::= <think>", "line 1 column 10", "the end of the rule"),
        ('root = "a"\nb ::= "c"', "line 1 column 6", "::="),
        ("root ::= " + "(" * 101, "line 1 column 111", "at most 100 groups"),
    ],
)
def test_what_is_not_a_grammar_of_llama_cpp_is_rejected_with_its_place(
    text, place, expected
):
    with pytest.raises(
        ValueError, match="^" + re.escape(f"{place}: expected {expected}")
    ):
        lark_of_gbnf(text)
    with pytest.raises(GrammarError, match=r"llama\.cpp's notation \(GBNF\): line "):
        read_grammar(text)


def test_a_request_to_the_server_may_hold_a_grammar_of_llama_cpp():
    pytest.importorskip("msgspec", reason="the serve extra is not installed")
    from src.server.bodies import ResponseFormat

    for text in ('start: "a"', 'root ::= "a"'):
        found = ResponseFormat(type="grammar", grammar=text).as_grammar()
        assert found == read_grammar(text)
    assert found.text == "start: /a/\n"


def test_a_grammar_that_grows_beyond_the_limit_is_rejected():
    assert len(read_grammar(f'root ::= "{"x" * 1000}"').text) < MOST_BYTES
    with pytest.raises(GrammarError, match="expected at most"):
        read_grammar(f'root ::= "{"x" * (MOST_BYTES - 100)}"')


@pytest.fixture(scope="module")
def allows() -> Any:
    """Returns whether a grammar in Lark's notation allows each of some texts, byte by
    byte.
    """
    llguidance = pytest.importorskip(
        "llguidance", reason="the serve extra is not installed"
    )

    class Bytes(llguidance.TokenizerWrapper):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.tokens = [bytes([value]) for value in range(256)] + [b"<end>"]
            self.special_token_ids = [256]
            self.bos_token_id = None
            self.eos_token_id = 256
            self.is_tokenizer_wrapper = True

        def __call__(self, text: str) -> list[int]:
            return list(text.encode())

    tokenizer = llguidance.LLTokenizer(Bytes(), n_vocab=257, eos_token=[256])

    def allows_texts(grammar: str, texts: list[str]) -> list[bool]:
        sent = llguidance.LLMatcher.grammar_from_lark(grammar)
        matcher = llguidance.LLMatcher(tokenizer, sent, log_level=0)
        results = []
        for text in texts:
            ids = list(text.encode())
            is_whole = matcher.validate_tokens(ids) == len(
                ids
            ) and matcher.consume_tokens(ids)
            results.append(bool(is_whole and matcher.is_accepting()))
            assert matcher.reset()
        assert not matcher.is_error(), matcher.get_error()
        return results

    return allows_texts


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        # A cut into words, the longest first, would allow none of these.
        ("root ::= name last\nname ::= [a-z]+\nlast ::= [a-z]", ["ab", "abc"], ["a", ""]),
        ('root ::= "if" "x" | [a-z]+ "!"', ["ifx", "if!", "ifx!", "abc!"], ["ix", "if"]),
        (
            r'root ::= "\u0041\x42\n" [\u00e9\U0001F600]',
            ["AB\né", "AB\n😀"],
            ["AB\n", "ABé"],
        ),
        ("root ::= .+", ["a\nb", "é"], [""]),
        (r'root ::= [^"\\\n]*', ["ab/[c", ""], ['a"', "a\n"]),
        ("root ::= [-+*/\\]] [a-c-]", ["-a", "]-", "/c"], ["ad", "-d"]),
        (
            'root ::= "a"{2,3} ("b"|"c"){2} "d"{0,}',
            ["aabc", "aaabbdd"],
            ["abc", "aaaabb", "aab"],
        ),
        ('root ::= "a" |\n "b"\n', ["a", "b"], ["c", ""]),
        ('root ::= ("a" | "b" # no\n)+ # end', ["ab"], ["c", ""]),
        ('root ::= "yes" | ""', ["yes", ""], ["y"]),
        ('root ::= x\nx ::= "(" x ")" | "x"', ["((x))", "x"], ["(x", "x)"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
        ('root ::= Fact-1\nFact-1 ::= fact1 "!"\nfact1 ::= "é"', ["é!"], ["é"]),
        (
            JSON,
            ['{"a":"b","c":{"d":true}}', "{}", r'{"a":"\u00e9"}'],
            ['{"a"}', '{"a":"\x01"}'],
        ),
    ],
)
def test_a_grammar_allows_its_texts_and_no_others(allows, grammar, yes, no):
    found = allows(lark_of_gbnf(grammar), [*yes, *no])
    assert found == [True] * len(yes) + [False] * len(no)


def random_rule(chance: random.Random, depth: int) -> tuple[str, str]:
    """Returns a random expression, in llama.cpp's notation and as a regular
    expression.
    """
    match chance.choice(
        ["text", "set", "group", "repeat", "sequence"] if depth else ["text"]
    ):
        case "text":
            text = "".join(chance.choices("abc", k=chance.randrange(1, 3)))
            return f'"{text}"', text
        case "set":
            found = chance.choice(["[ab]", "[^b]", "[a-c]", "[b-b]"])
            return found, found
        case "group":
            pairs = [random_rule(chance, depth - 1) for _ in range(2)]
            ours, theirs = (" | ".join(x) for x in zip(*pairs, strict=True))
            return f"({ours})", f"(?:{theirs.replace(' ', '')})"
        case "repeat":
            ours, theirs = random_rule(chance, depth - 1)
            times = chance.choice(["*", "+", "?", "{2}", "{1,2}", "{0,}"])
            return f"({ours}){times}", f"(?:{theirs}){times}"
    pairs = [random_rule(chance, depth - 1) for _ in range(2)]
    return " ".join(ours for ours, _ in pairs), "".join(theirs for _, theirs in pairs)


@pytest.mark.parametrize("count", [40, many])
def test_random_grammars_allow_what_a_regular_expression_allows(allows, count):
    texts = [
        "".join(text) for n in range(6) for text in itertools.product("abc", repeat=n)
    ]
    chance = random.Random(count)
    for _ in range(count):
        ours, theirs = random_rule(chance, 4)
        expected = [re.fullmatch(theirs, text) is not None for text in texts]
        assert allows(lark_of_gbnf(f"root ::= {ours}"), texts) == expected, ours
