"""Templates of one expression or a few statements, to compare with transformers.

They use the methods, filters, tests and statements of Jinja on texts with odd letters, on
empty lists and on values of the wrong kind. Filters that format for the web are left out,
because the sandbox does not have them.
"""

from typing import Any

VARIABLES: dict[str, Any] = {
    "text": "A bad <|im_end|> dog and a cat ran past a quiet lake x",
    "padded": " \n a b \t ",
    "odd": "ß ŉ İı ǆ Ω ﬁ e\u0301 «x» 'q' o'neil",
    "lines": "one\n\n two\r\nthree\x0bfour\u2028five\n",
    "html": "<b class=\"x\">&amp; 'y'</b>",
    "names": ["b", "a", "B", "a "],
    "numbers": [3, 1, 2, 1],
    "mixed": ["a", 1, None, True, 2.5, ["x"]],
    "object": {"b": "x", "a": {"b": 1}, "C": None, "é": [1, "'"]},
    "objects": [{"a": "x", "n": 1}, {"a": "y", "n": 2}, {"a": "x", "n": 3}],
    "tree": [{"name": "r", "kids": [{"name": "s", "kids": []}, {"name": "t"}]}],
    "time": 1_790_000_000,
}

_EXPRESSIONS = r"""
text.split()
text.split(' ')
text.split(None, 1)
text.split(' ', 1)
text.split(sep=' ')
text.split(maxsplit=1)
text.rsplit(' ', 1)
text.rsplit()
text.rsplit(None, 1)
text.splitlines()
lines.splitlines(true)
lines.splitlines(keepends=True)
lines.split('\n')
text.partition(' ')
text.rpartition(' ')
text.rpartition('zz')
text.partition('zz')
text.strip()
padded.strip()
padded.lstrip()
padded.rstrip()
padded.strip(' a')
padded.strip('\n')
text.lstrip('aq')
text.rstrip('\n')
text.upper()
text.lower()
text.title()
text.capitalize()
text.swapcase()
odd.upper()
odd.lower()
odd.title()
odd.capitalize()
odd.casefold()
odd.swapcase()
text.replace('a', 'b')
text.replace('a', 'b', 1)
text.replace('', '-')
text.replace('a', '')
text.replace(text, 'x')
text.replace('a', text)
text.replace('a', 'aa').replace('aa', 'a')
text.startswith('A')
text.startswith(('A', 'B'))
text.endswith('x')
text.find('a')
text.rfind('a')
text.index('b')
text.index('zzz')
text.count('a')
text.isdigit()
text.isalpha()
'12'.isdigit()
text.isspace()
text.islower()
text.isupper()
text.zfill(20)
text.center(40)
text.center(41, '*')
text.ljust(30, '.')
text.rjust(30, '.')
text.removeprefix('A ')
text.removesuffix('x')
text.join(['a', 'b'])
', '.join(names)
''.join(names)
', '.join([text, 'x'])
text.join(text)
', '.join(object)
', '.join(numbers)
'{}'.format(text)
'{} {}'.format(text, 1)
'{1} {0}'.format(text, 1)
'{a}'.format(a=text)
'{0:>30}'.format(text)
'{:5d}'.format(7)
'{:.2f}'.format(1.005)
'{:,}'.format(1234567)
'{{}}'.format()
'{:%}'.format(0.5)
text.format()
'{}'.format(names)
'{}'.format(none)
'{:<10}|'.format('ab')
'{:^10}|'.format(text)
'{:03d}'.format(7)
'{:+d}'.format(7)
'{:>10}'.format(1.5)
'{:e}'.format(12345.678)
'{:g}'.format(0.00001)
'%s' % text
'%s %s' % (text, 1)
'%d' % 7
'%05d' % 7
'%.3f' % 1.5
'%5s|' % 'a'
'%-5s|' % 'a'
'%%' % ()
'%(a)s' % {'a': text}
'%r' % text
'%s' % names
'%s' % [names]
'%s' % object
'%s' % none
'%x' % 255
'%s%s' % ('a',)
'%s' % ()
'%c' % 'a'
'%i' % 3
'%s %%' % text
text + text
text + 1
1 + text
text ~ 1 ~ none ~ true
text ~ names
text * 2
2 * text
text * 0
text * -1
names + names
names * 2
text % 1
7 % 3
-7 % 3
7 // 2
7 / 2
2 ** 3
2 ** -1
-7 // 2
1.5 + 1
0.1 + 0.2
1e300 * 1e300
10 / 0
7.0 // 2
text[0]
text[-1]
text[1:]
text[:-1]
text[::-1]
text[::2]
text[100]
text[100:]
text[-3:]
names[0]
names[-1]
names[1:]
names[::-1]
names[9]
object['a']
object.a
object.zz
object['zz']
text[1:3]
text['a']
text.a
none.a
missing
missing.a
missing['a']
text[1:4:2]
text == 'x'
text == text
text != 'x'
text < 'Z'
text > 'Z'
'a' in text
'zz' in text
'zz' not in text
'a' in names
1 in numbers
'a' in object
text in text
none in names
text == none
names == names
object == object
1 == 1.0
true == 1
'a' in none
text < 1
1 < 2 < 3
'k' in missing
text and 1
'' or 'x'
not text
text if text else 'x'
text if none else 'x'
text if none
none or none
(none)
missing or 'x'
not missing
text and names
text is string
names is string
names is iterable
text is iterable
object is mapping
names is sequence
text is sequence
object is sequence
1 is number
1 is integer
1.0 is float
true is boolean
true is true
none is none
missing is defined
text is defined
missing is undefined
3 is odd
4 is even
9 is divisibleby 3
text is upper
'ABC' is upper
'abc' is lower
1 is eq 1
1 is in [1]
text is sameas text
none is sameas none
text is callable
'upper' is filter
'odd' is test
1 is gt 0
object is iterable
none is iterable
1 is boolean
1 is true
'a' is in 'abc'
5 is ge 5
5 is ne 5
text|length
names|length
object|length
none|length
5|length
text|count
text|wordcount
text|upper
text|lower
text|title
odd|title
odd|upper
odd|lower
odd|capitalize
text|capitalize
padded|trim
padded|trim(' a')
padded|trim|length
none|trim
5|trim
names|trim
names|join
names|join(', ')
numbers|join('-')
objects|join(', ', attribute='a')
objects|map(attribute='a')|join(',')
text|join('-')
none|join
object|join(',')
names|join(text)
mixed|join(' ')
missing|join
names|first
names|last
text|first
text|last
[]|first
[]|last
object|first
names|reverse|list
text|reverse
object|reverse|list
names|sort
names|sort(reverse=true)
names|sort(case_sensitive=true)
objects|sort(attribute='a')|list
names|unique|list
numbers|unique|list
objects|unique(attribute='a')|list
names|min
names|max
numbers|min
numbers|max
[]|min
objects|max(attribute='a')
mixed|sort
numbers|sum
numbers|sum(start=10)
objects|sum(attribute='n')
names|sum
[]|sum
numbers|batch(2)|list
numbers|batch(2, 0)|list
numbers|slice(2)|list
text|list
object|list
names|list
none|list
objects|groupby('a')|list
objects|groupby('a')|map('first')|list
text|batch(3)|list
names|map('upper')|list
names|map('trim')|join
names|map('length')|list
objects|map(attribute='zz', default='d')|list
objects|map(attribute='a')|list
numbers|map('string')|join(',')
names|map('replace', 'a', 'b')|list
names|select('string')|list
mixed|select('string')|list
mixed|reject('none')|list
numbers|select('odd')|list
numbers|select('gt', 1)|list
objects|selectattr('a', 'equalto', 'x')|list
objects|selectattr('a')|list
objects|rejectattr('a', 'eq', 'x')|list
objects|selectattr('zz', 'defined')|list
objects|selectattr('a', 'in', ['x'])|map(attribute='n')|list
names|select|list
objects|map('tojson')|list
objects|selectattr('n', '>', 1)|list
mixed|map('string')|list
mixed|map('int')|list
object|items|list
object.items()|list
object.keys()|list
object.values()|list
object|dictsort
object|dictsort(true)
object|dictsort(false, 'value')
object|dictsort(by='value', reverse=true)
object.get('a')
object.get('zz')
object.get('zz', 'd')
missing|items|list
object.pop('a')
object.update({})
object.copy()
names.append('x')
names.index('b')
names.count('b')
object.items()|list|tojson
names.copy()
object|tojson
names|tojson
text|tojson
none|tojson
true|tojson
1.5|tojson
object|tojson(indent=2)
names|tojson(indent=4)
object|tojson(ensure_ascii=true)
object|tojson(separators=(',', ':'))
object|tojson(sort_keys=true)
objects|tojson(indent='\t')
missing|tojson
(1, 2)|tojson
object|tojson|length
{'b': 1, 'a': [text]}|tojson
odd|tojson
odd|tojson(ensure_ascii=true)
1e100|tojson
{1: 2}|tojson
object|tojson(2)
object|tojson(true, 2)
names|tojson|safe
dict(a=1)|tojson
10000000000000000000000|tojson
text|replace('a', 'b')
text|replace('a', 'b', 1)
5|replace('5', 'x')
text|replace('', '-')
none|replace('N', 'x')
text|default('d')
missing|default('d')
''|default('d', true)
none|default('d')
none|default('d', true)
missing|d('x')
text|string
names|string
none|string
1.0|string
true|string
object|string
missing|string
mixed|string
objects|string
'12'|int
'x'|int
'x'|int(7)
'0x1f'|int(0, 16)
3.9|int
none|int
'3.5'|float
'x'|float(1.5)
3|float
2.567|round
2.567|round(2)
2.5|round(0, 'floor')
2.1|round(method='ceil')
-5|abs
text|int
'1_000'|int
' 12 '|int
true|int
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, blank=true)
lines|indent('> ')
lines|indent(width=3, first=True)
''|indent
text|center(30)
text|truncate(10)
text|truncate(10, true)
text|truncate(10, true, '!')
text|truncate(10, leeway=0)
text|format
'%s-%s'|format(text, 1)
'%(a)s'|format(a=text)
'%d'|format(3)
'{}'|format(text)
html|safe
html|safe ~ html
html|safe|upper
html|string|safe
[text, 1, none, true, 1.5]
(text,)
(1, 2)
{'a': text}
{'a': [text, {'b': none}]}
[]
{}
()
[[text]]
names|list|string
range(3)|list
range(1, 10, 3)|list
range(3)
range(0)
dict(a=1)
dict(a=text)['a']
namespace(a=1).a
cycler('a', 'b').next()
dict([('a', 1)])
dict({'a': 1}, b=2)
dict.fromkeys(['a'])
1
1.0
1e16
1e-7
-0.0
true
none
10000000000000000
0x10
1_000
3.0|string
1 // 1
(1.0)|int
1e5
123456789.123456789
text.__class__
text.__len__()
object.__class__
''.__class__.__mro__
text._marks
(text|attr('upper'))()
object|attr('a')
names|attr('__class__')
text.nothing
text.nothing()
missing()
text()
names.zz
none()
messages
tools
add_generation_prompt
bos_token
messages[0].role
messages[0]['content']
messages|length
messages[-1:]
messages[0]
time|default(1) + 1
missing|default(1790000000)
[time]|select('gt', 1700000000)|list
'{}'.format(time)
'%d'|format(time)
[time].count(1790000000)
{'at': time}.get('zz', 1790000000)
{'at': time}|tojson
text|center(10001)|length if false
"""

# One template between two empty lines.
_STATEMENTS = r"""
{% for c in text %}[{{ c }}{{ loop.index }}]{% endfor %}

{% for k, v in object.items() %}
{{ loop.index0 }}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}

{% for k in object %}{{ k }}{% endfor %}

{% for n in names if n != 'b' %}{{ loop.length }}{{ n }}{% else %}none{% endfor %}

{% for n in [] %}x{% else %}empty{% endfor %}

{% for n in missing %}x{% else %}empty{% endfor %}

{% for n in none %}x{% endfor %}

{% for n in 5 %}x{% endfor %}

{% for n in names %}
{{ loop.previtem }}<{{ n }}>{{ loop.nextitem }}{{ loop.cycle('x','y') }}
{{ loop.changed(n) }}{{ loop.revindex }}{{ loop.first }}{{ loop.depth }}{% endfor %}

{% for o in tree recursive %}({{ o.name }}{% if o.kids %}{{ loop(o.kids) }}{% endif %}
){% endfor %}

{% for n in names %}{% if loop.index == 2 %}{% continue %}{% endif %}
{{ n }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}

{% for a, b in [(1, text), (2, 'y')] %}{{ a }}{{ b }}{% endfor %}

{% for a, b in names %}{{ a }}{% endfor %}

{% set x = text %}{{ x }}{% set x = 1 %}{{ x }}

{% set x %}a{{ text }}b{% endset %}{{ x }}{{ x|length }}

{% set x | upper %}a{{ text }}b{% endset %}{{ x }}

{% set a, b = 1, text %}{{ a }}{{ b }}

{% set a = [1] %}{% set a = a + [text] %}{{ a }}

{% set ns = namespace(a=1, b=text) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}

{% set ns = namespace(x='') %}{% for n in names %}{% set ns.x = ns.x + n %}{% endfor %}
{{ ns.x }}

{% set ns = namespace(a=1) %}{{ ns is mapping }}{{ ns.zz }}{{ ns['a'] }}

{% set ns = namespace(a=1) %}{% set l = [ns] %}{{ l[0].a }}{{ l|length }}

{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [{'b': text}] %}
{{ ns.a }}{{ ns.a|tojson }}

{% set object.a = 1 %}

{% set names[0] = 1 %}

{% macro m(a, b='d') %}[{{ a }}{{ b }}{{ varargs }}{{ kwargs }}]{% endmacro %}
{{ m(text) }}{{ m(1, 2, 3, z=4) }}{{ m() }}

{% macro m(a) %}[{{ a }}{{ caller() }}]{% endmacro %}{% call m(1) %}
{{ text }}{% endcall %}

{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) m(text) %}{{ x }}{% endcall %}

{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}

{% macro m() %}x{% endmacro %}
{{ m() + text }}{{ m()|upper }}{{ m() ~ 1 }}{{ m() is string }}

{% macro m() %}x{% endmacro %}{{ [m][0]() }}{{ m.name }}{{ m.arguments }}

{% macro m() %}x{% endmacro %}{{ {'f': m}.f() }}

{% if text %}a{% elif names %}b{% else %}c{% endif %}

{% raw %}{{ text }}{% endraw %}{# {{ text }} #}

{% filter upper %}a{{ text }}{% endfilter %}

{% filter indent(2) %}a
{{ lines }}{% endfilter %}

{% with x = text %}{{ x }}{% endwith %}

{% do names %}

{% include 'x' %}

{% import 'x' as y %}

{% extends 'x' %}

{% block b %}{{ text }}{% endblock %}{{ self.b() }}

{% generation %}{{ text }}{% endgeneration %}

{%- generation -%} {{ text }} {%- endgeneration -%}

{% generation %}{% set x = 1 %}{% endgeneration %}{{ x }}

{% for n in names %}{% generation %}{{ n }}{{ loop.index }}{% endgeneration %}{% endfor %}

{% set x = 1 %}{% generation %}{{ x }}{% set y = 2 %}{{ y }}{% endgeneration %}

{{ raise_exception('bad ' + text) }}

{{ raise_exception() }}

{{ strftime_now('%Y-%m-%d') }}

{{ strftime_now('%d %b %Y %H:%M') }}

{{ strftime_now() }}

{{ text

{% for %}

{% endif %}

{{ text | nofilter }}

{{ text is notest }}

{{ f(1) }}

{{ 1 / 0 }}

a
{% if true %}
b
{% endif %}
c

  {% set x = 1 %}
  b

{{- text -}} x

a {{+ text }}

{%+ if true %}a{%+ endif %}

{# c #}
a
{# d -#}
b

{{ 'a\nb' }}

{{ "a'b" }}

{{ 'a' 'b' }}

{{ '\u00e9\x41' }}

{{ names.0 }}{{ names.1 }}

{{ object.a.b.c }}

{{ object.items().0 }}

{% set x = {} %}{% set _ = x.update({'a': text}) %}{{ x }}

{% set x = [] %}{{ x.append(1) }}{{ x }}

{% set x = [] %}{% set _ = x.extend([1]) %}

{% set x = [3, 1] %}{% set _ = x.sort() %}

{% set x = names.copy() %}{{ x }}

{% for m in messages %}{{ m.role }}{{ m['content'] }}{% if m.tool_calls is defined %}
{% for t in m.tool_calls %}{{ t.function.arguments|tojson }}{% endfor %}{% endif %}
{% endfor %}

{% for k in object|dictsort %}{{ k }}{% endfor %}

{% for k, v in object|dictsort %}{{ k }}:{{ v }}{% endfor %}

{% for g, l in objects|groupby('a') %}{{ g }}{{ l|length }}{% endfor %}

{% for g in objects|groupby('a') %}{{ g.grouper }}{{ g.list }}{% endfor %}

{% set c = cycler('a', 'b') %}
{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.current }}

{% set j = joiner('; ') %}{% for n in names %}{{ j() }}{{ n }}{% endfor %}

{% for i in range(3) %}{{ i }}{{ loop.last }}{% endfor %}

{% for i in range(3)|reverse %}{{ i }}{% endfor %}

{% for i in names|reverse %}{{ loop.length }}{{ i }}{% endfor %}

{% set x = text.split(' ') %}{{ x[0] }}{{ x[-1] }}{{ x|length }}

{% set x = 'x' if missing is defined else text %}{{ x }}

{% for n in names %}{% set x = n %}{% endfor %}{{ x }}

{% for n in names %}{% for m in names %}{{ loop.index }}{% endfor %}
{{ loop.index }}{% endfor %}

{% if text.strip().split('\n')[0] == 'A' %}y{% else %}n{% endif %}

{{ (text|trim).split('a')[-1]|trim }}

{{ (messages|last).content }}

{{ (messages|selectattr('role', 'equalto', 'user')|list|last).content }}

{% for m in messages|selectattr('role', 'in', ['user']) %}{{ m.content }}{% endfor %}

{% for m in messages[::-1] %}{{ m.role }}{% endfor %}

{{ messages|map(attribute='role')|unique|join(',') }}

{{ messages|rejectattr('role', 'equalto', 'system')|list|length }}

{{ (names|join(', ')) ~ '.' }}

{{ names|join(', ')|upper }}

{{ '%s' % names|join(',') }}

{{ text|upper|lower|title|trim|replace('a','')|length }}

{{ odd }}

{{ mixed }}

{{ objects }}

{{ object }}

{{ lines }}

{{ padded }}

{{ html }}

{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1790000000) }}{{ m(x=time) }}

{% for n in [time] %}
{{ loop.changed(1790000000) }}{{ loop.cycle(1790000000, 2) }}{% endfor %}

{% set ns = namespace(at=1790000000) %}{{ ns.at }}
"""

EXPRESSIONS = _EXPRESSIONS.strip().split("\n")
STATEMENTS = _STATEMENTS.strip().split("\n\n")
