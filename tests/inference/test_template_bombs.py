"""Templates that are made to take time and memory, or to reach what is outside of the
sandbox.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ADVICE = "; name a format with --chat-format, or continue raw text with --completion"

BOMBS = {
    "a loop inside of a loop": (
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    ),
    "a text that doubles by ~": (
        "{% set ns=namespace(x='aaaaaaaa') %}{% for a in range(99999) %}{% set ns.x = "
        "ns.x ~ ns.x %}{% endfor %}{{ns.x}}"
    ),
    "a text that doubles by +": (
        "{% set ns=namespace(x='aaaaaaaa') %}{% for a in range(99999) %}{% set ns.x = "
        "ns.x + ns.x %}{% endfor %}{{ns.x}}"
    ),
    "a text times a number": "{{ 'a'*999999999999 }}",
    "a list times a number": "{{ [1]*99999999999 }}",
    "a power": "{{ 10**10**8 }}",
    "a number that is squared": (
        "{% set ns=namespace(x=10) %}{% for i in range(1000) %}{% set ns.x = ns.x*ns.x "
        "%}{% endfor %}{{ns.x}}"
    ),
    "a list that doubles": (
        "{% set ns=namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x=[ns.x,ns.x] "
        "%}{% endfor %}{{ns.x}}"
    ),
    "a deep key": (
        "{% set ns=namespace(x=1) %}{% for i in range(99999) %}{% set ns.x=(ns.x,) %}{% "
        "endfor %}{{ {ns.x:1} }}"
    ),
    "the filter replace": (
        "{% set ns=namespace(x='a'*1000) %}{% for i in range(10) %}{% set "
        "ns.x=ns.x|replace('a','a'*1000) %}{% endfor %}{{ns.x|length}}"
    ),
    "the method replace": (
        "{% set ns=namespace(x='a'*1000) %}{% for i in range(10) %}{% set "
        "ns.x=ns.x.replace('a','a'*1000) %}{% endfor %}{{ns.x|length}}"
    ),
    "a join": "{{ (['a'*1000]*1000)|join('b'*1000)|length }}",
    "the filter indent": "{{ ('\n'*100000)|indent(9999)|length }}",
    "the filter center": "{{ 'x'|center(99999999) }}",
    "a wide %": "{{ '%999999999d' % 1 }}",
    "a wide {}": "{{ '{:999999999}'.format(1) }}",
    "a macro that calls itself": (
        "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}"
    ),
    "a loop that calls itself": (
        "{% for x in [1,2,3] recursive %}{{ loop([1,2,3]) }}{% endfor %}"
    ),
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "10 MB": "x" * 10_000_000,
    "many tags": "{{a}}" * 40_000,
    "many brackets": "{{" + "[" * 120_000,
    "a text without an end": "{{ '" + "x" * 100_000,
    "a long number": "{{ " + "9" * 100_000 + " }}",
    "the class of a text": "{{ ''.__class__.__mro__ }}",
    "the class in a format": "{{ '{0.__class__}'.format(1) }}",
    "the globals of a function": "{{ cycler.__init__.__globals__ }}",
    "the filter attr": "{{ (messages|attr('__class__')) }}",
    "the globals of lipsum": "{{ lipsum.__globals__ }}",
    "the methods of self": "{{ self.__init__ }}",
    "the format of the filter attr": "{{ ''|attr('format')('{0.__class__}', 1) }}",
    "a tag of blanks": "{%" + " " * 120_000,
    "many blocks": "{% if a %}b{% endif %}" * 5_000,
    "a split": "{% for i in range(1000) %}{{ ('a '*4000).split()|length }}{% endfor %}",
    "a sort": "{% for i in range(1000) %}{{ range(99999)|sort|length }}{% endfor %}",
    "a long date": "{{ strftime_now('%Y'*100000) }}",
    "a search": "{% for i in range(99999) %}{{ 'b' in 'a'*100000 }}{% endfor %}",
    "a sum of lists": "{{ ([[1]*100]*1000)|sum(start=[])|length }}",
    "JSON of lists in lists": (
        "{% set ns=namespace(x=[1]*50) %}{% for i in range(6) %}{% set ns.x=[ns.x]*30 "
        "%}{% endfor %}{{ns.x|tojson(indent=4)|length}}"
    ),
    "chains of filters": (
        "{{ range(99999) | map('string') | map('string') | list | length }}"
    )
    * 20,
    "call blocks": "{% macro m() %}{{ caller() }}{% endmacro %}"
    + (
        "{% call m() %}{% call m() %}{% for i in range(99999) %}{{ i }}{% endfor %}{% "
        "endcall %}{% endcall %}"
    )
    * 10,
}
# Those that end with a short text, because what they ask for is not there or is not much.
HARMLESS = {
    "a join",
    "the filter attr",
    "the methods of self",
    "the format of the filter attr",
}

PROGRAM = """
import json, resource, sys, time
from src.inference import ChatFormatError, ChatTemplate
QUESTION = [{"role": "user", "content": "Hi"}]
ChatTemplate("{{ 1 }}").render(QUESTION)
results = {}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for name, text in json.load(sys.stdin).items():
    started = time.process_time()
    try:
        said = "printed " + ChatTemplate(text).render(QUESTION)
    except ChatFormatError as error:
        said = str(error)
    results[name] = said, time.process_time() - started
print(json.dumps([results, peak() - before]))
"""


@pytest.fixture(scope="module")
def outcome() -> tuple[dict[str, tuple[str, float]], int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(BOMBS),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    results, mebibytes = json.loads(done.stdout)
    return results, mebibytes


@pytest.mark.skipif(
    sys.platform == "win32", reason="the system does not tell the memory of a process"
)
def test_no_bomb_takes_64_mib(outcome):
    assert outcome[1] <= 64 + 10_000_000 * 4 // 2**20  # and the text of 10 MB itself


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_within_a_second_with_one_line(outcome, name):
    said, seconds = outcome[0][name]
    assert seconds < 1
    assert "\n" not in said
    if name in HARMLESS:
        assert said.startswith("printed ")
        assert len(said) < 30
    else:
        assert said.startswith("[chat] chat template: ")
        assert said.endswith(ADVICE)
