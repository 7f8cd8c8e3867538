"""Renders small templates with Python's Jinja, set up as Transformers does; writes snippets.jsonl beside this file.

Needs: pip install jinja2==3.1.6. Run it after adding a snippet; src/template/chat_template_golden_test.cc compares.
"""
import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "messages": [
        {"role": "system", "content": "  Be kind.\n"},
        {"role": "user", "content": "Grüße, 世界! <b>\"it's\"</b> & \\ more"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nan answer", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]},
    ],
    "bos_token": "<s>",
    "eos_token": "</s>",
    "n": 7, "neg": -7, "x": 2.5, "big": 1e16, "small": 1.5e-7, "third": 0.1, "yes": True, "no": False, "null": None,
    "items": [3, 1, 2], "words": ["b", "A", "c", "a"], "empty": [], "text": "the quick brown fox", "mixed": [1, "a", None, 2.0, [True], {"k": "v"}],
    "d": {"b": 1, "a": {"x": [1, 2]}, "C": "ü\n\t\"q\""}, "people": [{"name": "Bo", "age": 3, "t": {"u": 1}}, {"name": "al", "age": 1, "t": {"u": 2}}, {"name": "Cy", "age": 3}],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
    "lines": "one\ntwo\n\nthree\n", "spaced": " \t a  b c \n",
}

EXPRESSIONS = r"""
n + 1 | n - 10 | n * 3 | n / 2 | n // 2 | neg // 2 | neg % 3 | n % -3 | 2 ** 10 | 2 ** -1 | -n ** 2 | x * 2 | x // 1 | neg / 7
big | small | third + 0.2 | 1e15 | 1e300 * 10 | 1.0 | 100000.0 * 3 | 0.00001 | 123456789.125 | -0.0 | 1/3 | 10 ** 15 * 1.0 | 10 ** 16 * 1.0
'a' + 'b' | 'a' * 3 | 3 * 'ab' | 'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1] | [1] + [2] | [0] * 3 | (1, 2) + (3,) | (1,) | ()
n == 7 | n != 7 | 1 == 1.0 | true == 1 | 'a' < 'b' | [1, 2] < [1, 3] | 1 < 2 < 3 | 1 < 3 < 2 | n in items | 3 in items | 'qu' in text | 'zz' not in text | 'b' in d | 'a' in undefined_name
none == none | none is none | undefined_name == other_undefined | undefined_name == none | undefined_name == '' | not n | not empty | n and x | n or x | empty or 'e' | null or 0 | no and n
n if yes else x | n if no | (n if no) is defined | 'a' if no else 'b' if no else 'c' | [1, 2, 3][0] | items[-1] | items[10] | items[1:] | items[::-1] | items[:-1] | items[5:2] | items[-2:] | text[4:9] | text[::-1] | text[-3:] | text[::2] | text[100:] | text[0] | text[-1] | text[99] | messages[1].content[0:6] | messages[1].content[7] | messages[1].content[::-1]
items[0:10:2] | items[::-2] | text[10:3:-2] | text[-100:3] | text[3:-100:-1] | d['b'] | d.b | d['zz'] | d.zz is defined | d.items is defined | d['items'] is defined | d.a.x[1] | d['a']['x'] | people[0]['name'] | people.0.name | none_such | none_such is undefined
d | mixed | items | people | messages[1] | [1, [2, (3,)], {'a': none}] | {'a': 1, 2: 'b', none: true} | {'q"': "it's", "both'\"": '\n\t\\'} | "it's" | ["it's"] | ['"'] | ['\'"'] | [1.0, 1e20] | ['\x07\x7f\xa0é世🦙\u200b'] | {'a': 1, 'a': 2} | [none_such]
text|length | items|length | d|length | none_such|length | items|first | items|last | empty|first | text|first | text|last | d|first | items|list | d|list | text|list | (1,2)|list
items|sort | words|sort | words|sort(case_sensitive=true) | items|sort(reverse=true) | words|sort(true) | people|sort(attribute='age')|map(attribute='name')|list | people|sort(attribute='name')|map(attribute='name')|join(',') | people|map(attribute='t.u')|list | people|map(attribute='t.u', default='-')|list | people|map(attribute='zz')|list | people|sort(attribute='age,name')|map(attribute='name')|list
items|join | items|join(', ') | people|join('/', attribute='name') | text|join('.') | empty|join('x') | items|reverse|list | text|reverse | items|sum | people|sum(attribute='age') | items|max | items|min | words|max | words|min(case_sensitive=true) | people|max(attribute='age') | empty|max | words|unique|list | [1, 1.0, true, 2]|unique|list
d|dictsort | d|dictsort(by='value') is defined | {'b': 2, 'A': 1}|dictsort | {'b': 2, 'A': 1}|dictsort(true) | {'b': 1, 'A': 2}|dictsort(by='value') | {'b': 1, 'A': 2}|dictsort(reverse=true) | d|items|list | d.items()|list | d.keys()|list | d.values()|list | d.items() | d.keys() | d.values() | d.get('b') | d.get('zz') | d.get('zz', 5) | d|items|length
words|map('upper')|list | words|map('replace', 'a', 'z')|list | ['1', '2']|map('int')|list | items|select('odd')|list | items|reject('odd')|list | items|select('>', 1)|list | mixed|select|list | mixed|reject|list | people|selectattr('t')|map(attribute='name')|list | people|selectattr('age', 'equalto', 3)|map(attribute='name')|list | people|rejectattr('age', 'eq', 3)|map(attribute='name')|list | people|selectattr('t', 'defined')|list|length | mixed|select('string')|list | mixed|select('in', ['a', 1])|list | people|selectattr('name', 'in', ['Bo', 'Cy'])|list|length
items|batch(2)|list | items|batch(2, 'x')|list | items|slice(2)|list | [1,2,3,4,5]|slice(3)|list | [1,2,3,4,5]|slice(3, 'x')|list | people|groupby('age')|list | people|groupby('age')|map('first')|list | people|groupby('zz', default=1)|length
text|upper | text|title | text|capitalize | 'HeLLo wOrld'|capitalize | "they're bill's"|title | 'ÄÖü straße'|upper | 'ÄÖÜ'|lower | spaced|trim | '[' ~ spaced.strip() ~ ']' | '[' ~ spaced.lstrip() ~ ']' | '[' ~ spaced.rstrip() ~ ']' | 'xxaxx'.strip('x') | 'xyaxy'|trim('yx') | '\u00a0a\u3000'.strip() | text|replace('quick', 'slow') | 'aaa'|replace('a', 'b', 2) | 'abc'.replace('', '-') | 'aaaa'.replace('aa', 'b') | text|wordcount | text|center(30) | text|truncate(10) | text|truncate(9, true) | text|truncate(10, false, '!', 0) | text|truncate(17)
text.split() | spaced.split() | 'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | ' a b  c '.split(none, 1) | ' a b  c '.rsplit(none, 1) | ''.split() | ''.split(',') | 'abc'.split('abc') | 'a<think>b</think>c'.split('</think>')[-1] | 'a,b'.split(sep=',') | 'a b c'.split(' ', maxsplit=1) | text.partition(' ') | text.rpartition(' ') | text.partition('zz') | text.rpartition('zz') | lines.splitlines() | lines.splitlines(true) | 'a\r\nb\rc'.splitlines()
text.startswith('the') | text.endswith(('x', 'y')) | text.startswith(('a', 'b')) | text.startswith('quick', 4) | text.find('q') | text.find('zz') | text.rfind('o') | text.index('q') | text.count('o') | messages[1].content.find('世') | 'abab'.count('ab') | 'aaa'.count('') | text.find('o', 13) | text.find('o', -3) | 'a-b'.join(['1', '2']) | 'abc'.removeprefix('ab') | 'abc'.removesuffix('bc') | 'abc'.removeprefix('x') | text.title() | text.upper() | 'aBc'.lower() | 'abc def'.capitalize() | '12'.isdigit() | 'a1'.isalnum() | ''.isdigit() | 'ab'.isalpha() | ' '.isspace() | 'AB'.isupper() | 'Ab'.islower() | 'ab'.center(7, '*') | 'ab'.center(6, '*') | 'abc'.center(6, '*') | 'ab'.ljust(4) ~ '|' | 'ab'.rjust(4)
d|tojson | mixed|tojson | messages[1]|tojson | d|tojson(indent=2) | mixed|tojson(indent=4) | empty|tojson(indent=2) | {}|tojson(indent=2) | d|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | messages[1].content|tojson(ensure_ascii=true) | '🦙'|tojson(ensure_ascii=true) | x|tojson | big|tojson | none|tojson | true|tojson | {1: 2, none: 3, true: 4, 1.5: 5}|tojson | '\x00\x1f\x7f</script>&\'\u2028'|tojson | d|tojson(indent='\t') | (1, 2)|tojson | 1e400|tojson | {'b': {'d': 1, 'c': 2}, 'a': 0}|tojson(indent=1, sort_keys=true)
n|string + '!' | x|int | '12'|int | ' 12 '|int | 'ab'|int | 'ab'|int(5) | '0x1f'|int(0, 16) | '3.7'|int | none|int | '2.5'|float | 'z'|float | 'z'|float(1.5) | n|float | neg|abs | x|round | 2.567|round(2) | 2.5|round | 3.5|round | 2.15|round(1) | 2.567|round(1, 'floor') | 2.1|round(0, 'ceil') | n|round | true|int | none_such|default('d') | none_such|d | null|default('d') | null|default('d', true) | ''|default('e', boolean=true) | none_such.zz|default('deep') if none_such is defined else 'no'
'%s and %d' % ('a', 3) | '%5.2f|' % 3.14159 | '%-5s|' % 'ab' | '%05d' % 42 | '%x' % 255 | '%s' % [1] | '%s%%' % 5 | '%(a)s' % {'a': 1} | '%r' % 'q' | '%e' % 12345.678 | '%g' % 0.00001 | '%+d' % 3 | '%s %s'|format('a', 'b') | '%(k)s'|format(k='v') | '{} {}'.format('a', 1) | '{0}{1}{0}'.format('a', 'b') | '{n:>5}|'.format(n=3) | '{:<5}|{:^5}|{:>5}'.format('a', 'b', 'c') | '{:.2f}'.format(3.14159) | '{:,}'.format(1234567) | '{{}}'.format() | '{:05.1f}'.format(2.25) | '{!r}'.format('a') | '{:*^9}'.format('mid') | '{:x}'.format(255) | '{}'.format(none) | '{:%}'.format(0.25) | '{:+d}'.format(5) | '{:e}'.format(1234.5)
'<b>'|e | '<b>'|safe + '<i>' | '<i>' + '<b>'|safe | ('<b>'|safe) ~ '<i>' | '<b>'|escape + '&' | '<b>'|safe|upper | ['<b>'|safe] | '<b>'|safe is string | '<b>'|safe is escaped | 'a b/c?d=ü&'|urlencode | lines|indent | lines|indent(2) | lines|indent(2, true) | lines|indent(2, false, true) | lines|indent('> ', first=true) | 'one'|indent(3, true)
n is odd | n is even | n is divisibleby 7 | n is divisibleby(3) | n is number | x is float | n is integer | yes is integer | yes is boolean | yes is number | yes is true | n is true | text is string | d is mapping | items is mapping | items is sequence | text is sequence | d is sequence | n is sequence | none_such is sequence | none_such is iterable | n is iterable | items is iterable | d.items() is iterable | d.items() is sequence | range(3) is sequence | 'abc' is lower | 'ABC' is upper | 'aBC' is upper | '' is lower | n is eq 7 | n is sameas n | none is sameas none | 3 is in items | 3 is not in items | n is gt 3 | n is le 7 | n is ne 8 | raise_exception is callable | range is defined | 'upper' is filter | 'zz' is filter | 'odd' is test | n is not defined | null is none and not null is defined | n is defined and n == 7 | null is not none or yes
range(5)|list | range(2, 5)|list | range(5, 0, -2)|list | range(0)|list | range(3)[1] | range(3)|length | dict(a=1, b=2) | dict({'a': 1}, b=2) | dict([('a', 1)]) | namespace(a=1).a | namespace(a=1).b is defined | namespace({'a': 2}).a | strftime_now('%Y-%m-%d %H:%M:%S %d %b %B %j %A %y %p %I %%') | strftime_now('%-d. %B')
1_000 | 0xff | 0b11 | 0o17 | 1_0.5 | 'a' 'b' "c" | 'tab\tnew\\n\x41\u00e4\'"' | 'unknown \q' | "a\
b" | -3|abs | (-3)|abs | - 3 + 5 | +3 | not true == false | 1 + 2 * 3 ** 2 | (1 + 2) * 3 | 'a' ~ 'b' + 'c' | 2 * 3 ~ 4 | 7 // 2 * 2 | 10 - 3 - 2 | 2 ** 3 ** 2 | [1, 2, ] | {'a': 1, } | (1, 2, )[1] | true and not false | {'a': [1, {'b': 2}]}['a'][1].b | [[1, 2], [3]]|map('length')|list | [[3, 4], [1]]|map('first')|list|sort | ((1)) | "}}" | '{{' ~ "%}"
none + 1 | 'a' + 1 | 1 + 'a' | none_such + 1 | none_such.attr | none_such['k'] | n.zz | n.zz.yy | n() | text() | items|nofilter | n is notest | 1 / 0 | 1 % 0 | 1 // 0 | 1.0 / 0 | n < text | none < 1 | n in 5 | 1 in text | {[1]: 2} | n|length | n|first | n|tojson(1, 2, 3, 4, 5) | items.append(4) | d.update({'a': 1}) | raise_exception('my words') | d.get() | text.split('') | d|items|tojson | none_such|tojson | null|list | for_ | [1, 2]|join(1) | range(1000000) | items[1:2:0] | 'a' * -1 | '%d' % 'a' | '%s %s' % 'a' | '%s' % ('a', 'b') | int('3') | n|map('upper')|list | d.a.b.c | text.zz() | d.zz()
"""

TEMPLATES = [
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ m.role }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'zz' %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in items %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{% if loop.previtem is defined %}p{% endif %} {% endfor %}",
    "{% for i in items %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}",
    "{% for node in tree recursive %}{{ node.v }}@{{ loop.depth }}{{ loop.depth0 }}[{{ loop(node.kids) }}]{% endfor %}",
    "{% for c in 'añ世' %}{{ c }}|{% endfor %}{% for u in none_such %}x{% else %}else{% endfor %}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% set a = 1 %}{% for i in items %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(a=1, found=false) %}{% for i in items %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.found }}{% set ns.new = 'n' %}{{ ns.new }}",
    "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}{% if no %}{% set b = 1 %}{% endif %}{{ b is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, e) = [3, 4] %}{{ c }}{{ e }}{% set t = 1, %}{{ t }}",
    "{% set block %}  some {{ n }} text {% endset %}[{{ block }}]{% set up | upper | trim %} a {% endset %}[{{ up }}]",
    "{% macro m(a, b='B', c=none) %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=4, a=5) }}{{ m() }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}",
    "{% macro m() %}{{ n }}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }}{% set later = 'M' %}{{ m() }}",
    "{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}body {{ n }}{% endcall %}",
    "{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(items) %}[{{ i }}]{% endcall %}",
    "{% macro fact(k) %}{% if k < 2 %}1{% else %}{{ k * fact(k - 1)|int }}{% endif %}{% endmacro %}{{ fact(10) }}",
    "{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}{{ y is defined }}{{ m.name }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% for i in items %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% filter upper %}abc {{ text }}{% endfilter %}{% filter replace('a', 'b')|upper %}banana{% endfilter %}",
    "{% raw %}{{ not }} {% this %} {# ok #}{% endraw %}after",
    "a  {%- raw -%}  {{ x }}  {%- endraw -%}  b",
    "a {#- comment -#} b {# c #}\n d",
    "  {% if yes %}\n  in\n  {% endif %}\n  out {{ n }}\n  x",
    "line\n    {% if yes %}\n    body\n    {% else %}\n    other\n    {% endif %}\nend\n",
    "a\n  {%+ if yes %}b{% endif +%}\n c",
    "a \n {{- n -}} \n b {{ n }} \n c {{+ n }}",
    "x {%- if yes -%} y {%- endif -%} z",
    "{% if yes %}a{% endif %}\n\nb\n\n",
    "{{ n }}\n\n", "\n\n{{ n }}\n", "a\r\nb\rc\r\n", "no tags at all\n", "", "\n", "{", "{ {n} }", "{{ {'a': {'b': 1}} }}", "{{'}}'}}{{ '%}' }}",
    "{% if no %}1{% elif null %}2{% elif n %}3{% else %}4{% endif %}",
    "{% if no %}1{% elif no %}2{% endif %}.",
    "{%if yes%}tight{%endif%}{%-set q=1-%}{{q}}",
    "{% generation %}{{ n }}{% set inner = 1 %}{% endgeneration %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}y{{ j() }}",
    "{% set g = items|map('string') %}{{ g|join }}-{{ g|join }}",
    "{% set m = messages %}{% if m[0].role == 'system' %}{% set s = m[0].content|trim %}{% set m = m[1:] %}{% else %}{% set s = '' %}{% endif %}{{ s }}{{ m|length }}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% if not loop.last %}+{% endif %}{% endfor %}{% endif %}\n{% endfor %}",
    "{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{{ m.role[0] }}{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}",
    "{% set x %}{% for i in items %}{{ i }}{% endfor %}{% endset %}{{ x|length }}{{ x[::-1] }}",
    "{% set ns = namespace() %}{% set ns.l = [] %}{% for i in items %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}",
    "{{ m(1) if m is defined else 'no m' }}{% macro m(a) %}{{ a }}{% endmacro %}",
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '[' + message['role'] + ']' %}{{ content }}{% if loop.index0 == 1 %}{{ bos_token + content }}{% endif %}{% endfor %}",
    "{% for i in 5 %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% set a, b = 1 %}",
    "{% set d.x = 1 %}", "{% set none_such.x = 1 %}", "{{ loop }}", "{% for i in none %}{% endfor %}",
    "{% for i in items %}{{ i }}{% if loop.first %}{% set x = 1 %}{% endif %}{{ x }}{% endfor %}",
    "{% for m in messages %}{% if loop.index0 > 0 and loop.previtem.role == 'user' %}U{% endif %}{% endfor %}",
    "{{ 'a' if n is defined and n else 'b' }}{{ 'a' if not n is defined else 'b' }}",
    "{{ messages[0].content.strip().split(' ')[0].upper()|lower|title }}",
    "{{ [1,2,3] | map('string') | join(' + ') ~ ' = ' ~ ([1,2,3] | sum) }}",
    "{{ d | tojson | length }}{{ (d | tojson) is string }}",
    "{%- for k, v in d | dictsort -%} {{- k -}}:{{- v -}}; {%- endfor -%}",
    "{{ dict(**d) }}{{ dict(*[[('q', 1)]]) }}{{ '{}-{}'.format(*items) }}",
    "{{ caller is defined }}",
]


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(lineno)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2024, 7, 26, 12, 34, 56).strftime(f)
    sources = ["{{ " + e + " }}" for e in split_expressions(EXPRESSIONS)]
    here = pathlib.Path(__file__).parent
    with open(here / "snippets.jsonl", "w") as out:
        out.write(json.dumps({"context": CONTEXT}, ensure_ascii=False) + "\n")
        for source in sources + TEMPLATES:
            row = {"source": source}
            try:
                row["output"] = env.from_string(source).render(**CONTEXT, add_generation_prompt=True)
            except Exception as e:  # the kind of error is what matters
                row["error"] = f"{type(e).__name__}: {e}"
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def split_expressions(text):
    """Expressions stand between ' | ' with spaces on both sides; a filter's bar has none."""
    text = text.strip().replace("\\\n", "\\\0")
    for line in text.split("\n"):
        for e in line.split(" | "):
            if e.strip():
                yield e.strip().replace("\\\0", "\\\n")


if __name__ == "__main__":
    main()
