"""Small templates, one feature each."""

VARIABLES = {
    "n": 7, "z": 0, "f": 2.5, "big": 123456789012345678, "neg": -3, "t": True, "no": False, "nil": None,
    "s": "Hello World", "e": "", "pad": "  spaced\t\n", "u": "Grüße aus Straße ΑΣ ǆ İ 世界🌍",
    "lines": "one\ntwo\n\nfour\n", "csv": "a,b,,c", "html": "<b>\"x\" & 'y'</b>",
    "l": [3, 1, 2], "ll": [[1, "a"], [2, "b"]], "words": ["pear", "Apple", "fig", "apple"], "el": [],
    "d": {"b": 2, "a": 1, "C": 3}, "ed": {}, "nested": {"x": {"y": [10, {"z": "deep"}]}},
    "users": [{"name": "Ann", "age": 30, "on": True}, {"name": "bob", "age": 25, "on": False},
              {"name": "Cy", "age": 30}],
    "mixed": [1, "a", None, 2.0, True, [1], {"k": 1}],
    "keys": {"items": 1, "get": 2, "update": 3, "name": 4},
}

EXPRESSIONS = r"""
1 + 2 * 3 | (1 + 2) * 3 | 7 // 2 | -7 // 2 | 7 // -2 | 7 % 3 | -7 % 3 | 7 % -3 | 7.5 // 2 | -7.5 % 2
2 ** 10 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2 | 10 / 4 | 10 / 5 | 1 / 3 | 1e3 | 1.5e-7 | 1e16 | 123456789.0
0x1F + 0b101 + 0o17 | 1_000_000 | 1_0.5_0 | 0.1 + 0.2 | 1e300 * 1e10 | true + 1 | true + true | +n | -n | - -n
n / z | n % z | n // z | 1.0 / 0 | "a" + 1 | 1 + "a" | [1] + (2,) | nil + 1 | "a" * 3 | 3 * "ab" | "a" * -1
[1, 2] * 2 | (1,) * 2 | [1] + [2] | (1,) + (2,) | "a" "b" 'c' | "a" ~ 1 ~ nil ~ t ~ 2.0 | n ~ n | 1 ~ -1
1 == 1.0 | 1 == true | "1" == 1 | nil == nil | [1, 2] == [1, 2] | [1] == (1,) | {"a": 1} == {"a": 1.0} | 1 != 2
1 < 2 < 3 | 1 < 3 < 2 | "a" < "b" | "a" < 1 | [1, 2] < [1, 3] | nil < 1 | true < 2 | 2 > 1 >= 1 | "B" < "a"
1 in l | 9 in l | 9 not in l | "ell" in s | "" in s | 1 in s | "a" in d | "x" in d | [1] in d | 1 in (1, 2) | nil in mixed
not t | not not n | not 1 == 2 | t and no | t or no | n and s | z or s | e or nil or el | nil and n.x | z and 1 / 0
1 if t else 2 | 1 if no else 2 | 1 if no | (1 if no) is defined | 1 if t else 2 if t else 3 | "x" if n > 5 and not no else "y"
s[0] | s[-1] | s[1:4] | s[::-1] | s[::2] | s[-3:] | s[:-3] | s[10:2:-3] | s[99] | s[1:99] | s[5:2] | s[::0] | s["x"]
l[0] | l[-1] | l[1:] | l[::-1] | l[5] | l["x"] | l[true] | l[1.0] | l.0 | ll[0][1] | ll.1.0 | l[:] | (1, 2, 3)[1:] | (1, 2)[0]
u[0:5] | u[::-1] | u[-1] | u[-3:-1] | u|length | u|upper | u|lower | u|capitalize | u|title | u.title() | u.swapcase()
u.upper() | u.casefold() | u|reverse | u.find("世") | u.split() | "ß".upper() | "ΟΔΟΣ".lower() | "ǆ".capitalize()
"ß".title() | "ß"|capitalize | "ßa"|title | "ŉ ﬁ ᾀ ᾲ ᾷ ΐ և".title() | "ﬃx"|capitalize
d.a | d["a"] | d.x | d["x"] | d.x.y | nested.x.y[1].z | nested["x"]["y"].0 | d.get("a") | d.get("x") | d.get("x", 5) | d["C"]
d.items() | d.keys() | d.values() | d.items()|list | d|items|list | d|list | d|length | d|first | d|last | d.copy()
keys["items"] | keys["get"] | keys.name | keys.update | keys["update"] | keys.items()|list | keys.pop | ed|first | d.pop("a")
d.update({"x": 1}) | l.append(4) | l.pop() | l.index(2) | l.count(3) | l.index(9) | (1, 1).count(1) | l.sort() | d.clear()
nope | nope.x | nope["x"] | nope() | nope + 1 | nope ~ "x" | nope == nope | nope != 1 | not nope | nope|length | nope|list
nope|default("D") | nope|d | e|default("D") | e|default("D", true) | nil|default("D") | nil|d("D", true) | d.x|default("q")
nope is defined | nope is undefined | nope is none | nil is none | nil is defined | s is string | n is string | n is number
f is number | t is number | t is integer | n is integer | f is integer | f is float | t is boolean | t is true | n is true | no is false
d is mapping | l is mapping | l is sequence | s is sequence | d is sequence | nope is sequence | n is sequence | s is iterable
n is iterable | nope is iterable | d is iterable | range is callable | s is callable | s.upper is callable | n is odd | n is even
n is divisibleby 7 | n is divisibleby(2) | n is not odd | not n is odd | n is sameas n | nil is sameas nil | l is in [1] | 1 is in l
n is eq 7 | n is ne 7 | n is gt 5 | n is lt 5 | n is ge 7 | n is le 7 | n is greaterthan 2 | n is equalto 7 | "abc" is lower | "ABC" is upper
s is lower | "upper" is filter | "nope" is filter | "odd" is test | s is nosuchtest | s|nosuchfilter | "x" is escaped | "x"|e is escaped
pad|trim | pad|trim ~ "|" | "xxhixx"|trim("x") | pad.strip() | pad.lstrip() | pad.rstrip() | "abcba".strip("ab") | "x".strip(none)
s.upper() | s.lower() | s.title() | s.capitalize() | s.swapcase() | s|upper | s|lower | "hello wORLD (foo-bar)"|title | "they're here".title()
s.replace("l", "L") | s.replace("l", "L", 2) | s|replace("o", "0") | s|replace("o", "0", 1) | s.replace("", "-") | s|replace("l", 1) | s.replace("l", "L", -1)
s.split() | s.split("o") | s.split("o", 1) | csv.split(",") | csv.split(",", 2) | " a  b ".split() | " a  b  c ".split(none, 1) | e.split() | e.split(",")
s.rsplit("o", 1) | csv.rsplit(",", 2) | " a  b  c ".rsplit(none, 1) | "aaa".rsplit("aa", 1) | "a--b".rsplit("--") | s.split("") | lines.splitlines() | lines.splitlines(true)
s.startswith("He") | s.startswith(("x", "H")) | s.endswith("ld") | s.endswith("x") | s.startswith("W", 6) | s.find("o") | s.find("o", 5) | s.find("z") | s.rfind("o")
s.index("W") | s.index("z") | s.count("l") | s.count("") | s.partition(" ") | s.rpartition("o") | s.partition("z") | s.rpartition("z") | s.center(21, "*") | s|center(20)
s.ljust(13, ".") | s.rjust(13) | "-42".zfill(6) | "42".zfill(1) | s.removeprefix("Hello ") | s.removesuffix("x") | ",".join(["a", "b"]) | ",".join([1]) | ",".join("abc")
"abc".isalpha() | "12".isdigit() | "a1".isalnum() | " ".isspace() | "".isspace() | "Ab".istitle() | "ab".islower() | "AB".isupper() | "1".isnumeric() | "x y".isidentifier()
"{} {}".format(1, "a") | "{1} {0}".format(1, 2) | "{a} {b}".format(a=1, b=nil) | "{:>5}|".format("a") | "{:05d}".format(42) | "{:.2f}".format(f) | "{!r}".format("a")
"{:,}".format(1234567) | "{:x} {:#X} {:b}".format(255, 255, 5) | "{0[a]} {0.a}".format(d) | "{:%}".format(0.25) | "{:^7}|".format("ab") | "{{}}".format(1) | "{".format(1) | "{:*<5}".format("a") | "{:+}".format(3) | "{:{w}}|".format("a", w=4)
"%s" % "a" | "%s and %d" % ("a", 3) | "%05.2f" % 3.14159 | "%x" % 255 | "%(a)s" % {"a": 1} | "%%" % () | "%d" % "x" | "%s" % (1, 2) | "%r" % "a" | "%-5s|" % "a" | "%+d" % 5 | "%s" % nil | "%5s|%c" % ("a", 65) | "%.2s" % "abc" | "%e" % 12345.678 | "%g" % 0.00001 | "%i" % 3.9
"%s %s"|format("a", 1) | "%(x)s"|format(x=2) | "%s"|format | l|join | l|join(", ") | users|join(", ", attribute="name") | s|join("-") | nope|join | mixed|join("/") | n|join
l|length | s|length | d|count | n|length | l|first | l|last | el|first | el|last | s|first | s|last | n|first | nope|first | l|reverse|list | s|reverse | l|sort | words|sort | words|sort(case_sensitive=true)
l|sort(reverse=true) | mixed|sort | users|sort(attribute="age")|map(attribute="name")|list | users|sort(attribute="age,name", reverse=true)|map(attribute="name")|list | d|dictsort | d|dictsort(true) | d|dictsort(by="value", reverse=true) | d|dictsort(by="x")
words|unique|list | [1, 1.0, true, 2]|unique|list | words|unique(true)|list | l|min | l|max | el|max | words|min | words|max(case_sensitive=true) | users|max(attribute="age") | l|sum | users|sum(attribute="age") | ["a"]|sum | l|sum(start=10)
l|map("string")|list | words|map("upper")|list | words|map("replace", "p", "b")|list | users|map(attribute="name")|join | users|map(attribute="on", default="?")|list | users|map(attribute="zip")|list | nested|map("length")|list | l|map|list | l|map("nope")|list
l|select("odd")|list | l|select("gt", 1)|list | mixed|select|list | mixed|reject|list | mixed|select("string")|list | mixed|reject("none")|list | users|selectattr("on")|list|length | users|selectattr("age", "equalto", 30)|map(attribute="name")|list | users|rejectattr("on")|map(attribute="name")|list | users|selectattr("on", "defined")|list|length
users|selectattr("name", "in", ["Ann"])|list | (l|select("odd"))|length | l|select("odd") is iterable | l|selectattr|list | l|batch(2)|list | l|batch(2, "x")|list | l|slice(2)|list | l|slice(2, "x")|list | users|groupby("age")|list|length | words|groupby(0)|map("first")|list
d|tojson | l|tojson | s|tojson | u|tojson | html|tojson | nil|tojson | f|tojson | t|tojson | nested|tojson(indent=2) | nested|tojson(indent=none) | d|tojson(sort_keys=true) | d|tojson(separators=(",", ":")) | u|tojson(ensure_ascii=true) | nope|tojson | [nope]|tojson | (1, 2)|tojson | {1: 2, nil: 3, true: 4, 1.5: 5}|tojson | range(2)|tojson | el|tojson(indent=2) | {"a": []}|tojson(indent=1) | "\u007f\u0001\\\"/"|tojson | mixed|tojson | d|tojson(indent="--") | 1e400|tojson | d|tojson(2)
"3"|int | "3.9"|int | "x"|int | "x"|int(5) | "0x1f"|int(base=16) | " 12 "|int | f|int | nil|int | t|int | "1_000"|int | "2.5"|float | "x"|float | "x"|float(1.5) | n|float | "inf"|float | "1e3"|float | nope|int | "1e3"|int | "1e400"|int | el|int | "101"|int(0, 2) | ""|int | "-5"|int | "٣"|int(9)
f|round | 2.675|round(2) | 3.5|round|int | 2.5|round | n|round(-1) | 1234.5|round(-2) | f|round(0, "ceil") | f|round(0, "floor") | n|round | -2.5|round | f|round(1, "x") | neg|abs | "x"|abs | -2.5|abs | 42.55|round(1, "floor")
lines|indent | lines|indent(2, true) | lines|indent(2, blank=true) | lines|indent("> ") | e|indent(2, true) | n|indent | s|truncate(8) | s|truncate(5, true) | s|truncate(8, false, "…") | s|truncate(11) | s|truncate(3, leeway=0) | s|wordcount | u|wordcount | s|string | n|string | l|string | html|e | html|escape|length | html|safe | html|forceescape | "a b&c/d"|urlencode | d|urlencode
(html|safe) + "<" | "<" + ("&"|e) | ("%s"|safe) % "<" | ("a"|e) ~ "<" | ("<"|safe).join(["<", "b"]) | ["<"|e] | ("<"|e)|upper | ("<"|e).replace("&", "<") | ("<"|safe)|replace("<", ">") | ("<b>"|safe)|trim + ">" | ("{}"|safe).format("<") | ("<"|e) * 2 | ("<"|e)|e
range(3) | range(3)|list | range(1, 4)|list | range(5, 0, -2)|list | range(0)|list | range(2, 2) | range(100001) | range(3)[1] | range(10)[2:5] | 2 in range(3) | range(1, 2, 0) | range("a") | range(3)|length | range(3).stop | range(0, 10, 3)|last
dict(a=1, b=2) | dict({"a": 1}, b=2) | dict([("a", 1)]) | dict([1]) | namespace(a=1).a | namespace(a=1) | namespace(a=1).b | namespace({"a": 1}) | namespace(_a=1) | cycler("a", "b").next() | cycler() | joiner()() | joiner("|") is callable
[1, "a", nil, t, 2.0, [1], (1,), {"k": "v"}] | (1,) | () | [] | {} | {"a": 1, 2: nil} | {[1]: 2} | {"a": {"b": (1, 2)}} | ["it's"] | ['a"b'] | ['a"b\'c'] | ["\n\t\\\x07é\u200b"] | [nope] | 1, 2 | [1, 2,] | (1, 2,) | {"a": 1,} | (1)
s.__class__ | s["__class__"] | s.__class__.__mro__ | "".__class__.__base__ | d.__len__ | l.__init__ | range.__globals__ | nope.__class__ | s.format.__globals__ | "{0.__class__}".format(s) | dict.mro | raise_exception.__globals__ | namespace.__init__
raise_exception("boom") | raise_exception(n) | strftime_now("%Y-%m-%d %H:%M") | strftime_now("%d %b %Y") | strftime_now("%B, %A %j") | n.real.x | n() | s() | l() | 5[0] | nil[0] | nil.x | f.is_integer() | (2.0).is_integer() | 1e300.is_integer() | (1e20).is_integer() | (f * -1e308).is_integer() | (f * 1e308 - f * 1e308).is_integer() | (4503599627370495.5).is_integer() | f.x
n|attr("x") | d|attr("items") is callable | d|attr("a") | s|attr("upper") is callable | "a" in nope | nope in l | nope|upper | nope|trim | nope|string | nil|upper | nil|string | n|upper | t|lower | nope|tojson|length | l|upper | nope|items|list | n|items|list
"\x41\u00e9\U0001F30D\101\n" | 'it\'s' | "a\qb" | "tab\there" | "\0" | "\\n" | 'a' ~ "\"" | "multi\
line" | "" ~ '' | "%" ~ "}" | "{{" ~ "}}" | "{%" ~ "%}"
1 is defined and 2 is defined | n is defined and n > 3 or no | 1 + 1 is eq 2 | n is divisibleby 7 and t | l is sequence and l is not string and l is not mapping | not nope is defined | s is string is true | n is not none | x is not defined and y is undefined
"a"|upper ~ "b" | "a" ~ "b"|upper | -1|abs | (-1)|abs | 1 + 2|string|length | "a,b"|replace(",", ";")|upper | l|join(",")|length + 1 | not "a"|upper == "A" | "a" if "b"|upper == "B" else "c" | s|lower|title|replace("W", "V") | [1, 2]|map("string")|join("+")
d.items()|map("first")|list | d.items()|sort|list | d.values()|list|sort|reverse|list | d.keys()|map("upper")|join | d|dictsort|map("last")|sum | nested.x.y|length | nested.x.y|map("string")|list | d.items()[0] | d.keys()|first | d.fromkeys(["q"], 1)
big + 1 | big * big | 10 ** 38 | big|tojson | 9007199254740993 == 9007199254740992.0 | 1.0|string | 100000000000000000000.0 | 1e22 | 1.0e-5 | 0.0001 | -0.0 | 5e-324 | 1.7976931348623157e308 | 3.0 == 3 | 0.1 + 0.7 | 1e15 | 1e17 // 3
users[0].name[0] | users[-1]["age"] | users|length > 2 | users[0].items()|list | users|map(attribute="name")|map("lower")|list | users|last | (users|first).name | users[1:]|map(attribute="age")|list | users|selectattr("age", "lt", 30)|first
"abc"|select|list | "aab"|unique|list | d|select("in", ["a"])|list | "abc"|map("upper")|select|reverse|list | dict(["ab", "cd"]) | [("a", 1), ("b", "x y")]|urlencode | "abc"|sum | u|unique|join | (u|list)|select("upper")|list | d|sort(attribute="0") | d|groupby(0) | "ab"|batch(1)|list
users|groupby("age")|map(attribute="grouper")|list | users|groupby("age")|map(attribute="list")|map("length")|list | (users|groupby("age"))[0]["grouper"] | (users|groupby("age"))[1].list|map(attribute="name")|list | (words|groupby(0)|first) == ("A", ["Apple", "apple"]) | words|groupby(0) | ((words|groupby(0))[0] + ()).list is defined | (words|groupby(0))[0][:].grouper is defined | (words|groupby(0)|first).count("f") | ("a", [1]).grouper is defined
"abc" % [1] | "a" % nope | "%s" % nope | "abc" % {} | "abc" % (1,) | "abc" % range(2) | d|truncate(9) | n|truncate(9) | {1: 2}|truncate(1) | [3, 1, 1e999 - 1e999, 2]|sort|length | [2, 1e999 - 1e999, 1]|max | 1e999 - 1e999 == 1e999 - 1e999 | (1e999 - 1e999)|int | 1e999|string
"abc"[1] | "abc"[-1:] | "abc"[:1] ~ "abc"[1:] | "abc"|list | "abc"|sort|join | "hello"|batch(2)|map("join")|list | "aXbX".split("X")|select|list | "a=b=c".split("=", 1)[1] | "</think>x".split("</think>")[-1].lstrip("\n") | "a" < "B"|lower
"""

STATEMENTS = [
    # White space.
    "a\n{% if t %}\n  b\n{% endif %}\nc\n", "a\n  {%- if t -%}  \n b \n {%- endif -%} \n c", "{{ 1 }}\n", "{{ 1 }}\n\n",
    "\n\n{{ 1 }}\r\nx\r\n", "  {% if t %}  \nx{% endif %}", "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}",
    "{# c #}\nx", "x {#- c -#} y", "x\n  {# c #}\ny", "  {# c #} y", "{#\nmulti\n#}z", "a {# {{ n }} #} b", "\t{% set a = 1 %}\n{{ a }}",
    "x{% set a = 1 %}\n\n{{ a }}", "{{- 1 -}}  2", "  {{- 1 }}", "a  {{+ 1 }}", "{% raw %}{{ n }}{% if %}{% endraw %}", "a {%- raw -%} b {%- endraw -%} c",
    "{% raw %}\n x{% endraw %}\ny", "  {% raw %} x {% endraw %}", "{%raw%}a{%endraw%}", "{% raw %}unclosed", "{# unclosed", "{{ unclosed", "{% if t %}x",
    "{ {% if t %}}{% endif %}", "{", "{{ '{{' }}", "a{b}c", "{%if t%}x{%endif%}", "{{n}}{{s}}", "x\u00a0\n  {% if t %}y{% endif %}", "\u2003{%- if t %}y{% endif %}",
    # Branches.
    "{% if no %}a{% elif t %}b{% else %}c{% endif %}", "{% if no %}a{% elif z %}b{% else %}c{% endif %}", "{% if l %}y{% endif %}{% if el %}n{% endif %}",
    "{% if t %}{% set x = 1 %}{% endif %}{{ x }}", "{% if nope %}a{% endif %}b", "{% if t: %}a{% endif %}", "{% if 1, %}a{% endif %}",
    # Loops.
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in el %}{{ x }}{% else %}none{% endfor %}", "{% for x in nope %}a{% else %}b{% endfor %}", "{% for x in n %}a{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'aé世' %}[{{ c }}]{% endfor %}", "{% for (a, b) in ll %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}",
    "{% for x in l if x > 9 %}a{% else %}b{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{% for y in ll %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% set o = loop %}{% for y in ll %}{{ o.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}E{% endfor %}", "{% for x in l %}{% continue %}{% else %}E{% endfor %}", "{% break %}", "{% macro m() %}{% break %}{% endmacro %}",
    "{% for x in [[1, [2, 3]], [4]] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif %}{{ loop.depth }}{% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in users|selectattr('on') %}{{ x.name }}{% endfor %}", "{% for i in l %}{{ x }}{% set x = i %}{% endfor %}|{{ x }}", "{% set x = 5 %}{% for i in l %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}",
    "{% for x in l %}{% endfor %}{{ x }}", "{% for x in l %}{{ loop }}{% endfor %}", "{{ loop }}", "{% for loop in l %}{{ loop }}{% endfor %}", "{% for x in l, n %}{{ x }};{% endfor %}", "{% for x in l|sort|reverse %}{{ x }}{% endfor %}",
    "{% for x in l[::-1] %}{{ x }}{{ loop.last }}{% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}={{ g.list|length }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}", "{% for x in d.values() %}{{ x }}{% endfor %}", "{% for x in l %}{{ loop.nope }}{% endfor %}", "{% for x in l if loop.first %}{{ x }}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{{ loop.index }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{{ loop.last }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{{ loop.nextitem }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{{ loop.length }}{{ loop.revindex }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{{ loop }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% for i in [1, 0] if 1 / i %}{{ i }}{% break %}{% endfor %}",
    "{% for i in [1, 0] if 1 / i %}{{ i }}{{ loop.last }}{% break %}{% endfor %}",
    "{% for i in range(9) if i is odd %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{{ loop.first }}{{ loop.last }} {% endfor %}",
    "{% for x in [1, [2, [3, 4], 5], 6] if x != 5 recursive %}{% if x is number %}{{ x }}{{ loop.last }}{% else %}({{ loop(x) }}){% endif %}{% endfor %}",
    "{% set ns = namespace(o=0) %}{% for i in range(5) if i != 3 %}{% set ns.o = loop %}{{ loop.index }}{% endfor %}{{ ns.o.length }}{{ ns.o.last }}",
    "{% set ns = namespace(o=0) %}{% for i in range(5) if not ns.o or ns.o.last %}{% set ns.o = loop %}{{ i }}{% endfor %}",
    "{% set y = 2 %}{% for i in range(5) if i != y %}{% set y = i %}{{ i }}{{ y }}{% endfor %}",
    # Assignment.
    "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ y }}{{ x }}", "{% set x, y = l %}", "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | upper | replace('A', 'z') %}abc{% endset %}{{ x }}",
    "{% set x %}a{% set y = 1 %}{% endset %}{{ x }}{{ y }}", "{% set n = 1 %}{{ n }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.y = 1 %}{{ ns.y }}{{ ns }}", "{% set d.a = 5 %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns }}", "{% set ns = namespace() %}{% set ns.a, x = 1, 2 %}{{ ns.a }}{{ x }}", "{% set ns = namespace(x='') %}{% for c in 'abc' %}{% set ns.x = c ~ ns.x %}{% endfor %}{{ ns.x }}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% set x = %}",
    "{% set ns = namespace(found=false) %}{% for m in users %}{% if m.on %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    # Macros.
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=1, a=0) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(4) }}", "{% macro m(x) %}{% if x %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% set x = 1 %}{{ m() }}", "{% macro m() %}{% set y = 1 %}{% endmacro %}{{ m() }}{{ y }}", "{% macro m() %}x{% endmacro %}{{ m() ~ m()|upper }}{{ m }}{{ m.name }}{{ m.arguments }}",
    "{% macro m(n) %}{{ n }}{% endmacro %}{{ m(1) }}{{ n }}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m(a, b=1, c) %}{% endmacro %}", "{% macro m(*a) %}{% endmacro %}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ loop }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}",
    "{% macro m(l) %}{% for x in l %}{% if x is number %}{{ x }}{% else %}({{ m(x) }}){% endif %}{% endfor %}{% endmacro %}{{ m([1, [2, [3]], 4]) }}", "{% macro m(a='x', b=[]) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 5}) }}{{ m(1, *[2]) }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro %}[{{ m(1) }}]",
    # The others.
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter upper|replace('A', 'x') %}abc{% endfilter %}", "{% filter trim %}  a  {% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter nope %}a{% endfilter %}", "{% print n, s %}", "{% generation %}{{ n }}{% endgeneration %}", "{% generation %}\n  x\n{% endgeneration %}\ny",
    "{% do l %}", "{% nope %}", "{% endif %}", "{% if %}x{% endif %}", "{% for x l %}{% endfor %}", "{% for x in l %}{% endif %}", "{{ }}", "{{ 1 1 }}", "{{ (1 }}", "{{ 1) }}", "{{ [1} }}", "{{ a b }}", "{{ 'a }}", "{{ a. }}", "{{ a| }}", "{{ a|1 }}", "{{ a is }}", "{{ f(a=1, 2) }}", "{{ f(**d, a) }}", "{{ $ }}", "{{ a ! b }}", "{{ n if }}", "{{ not }}", "{{ 1 + }}", "{{ {1} }}",
    "{% set x = 1 %}{% include 'a' %}", "{% extends 'a' %}", "{% import 'a' as b %}", "{{ n is odd is even }}", "{{ 'a' is in 'abc' }}", "{{ l[1:2, 3] }}", "{{ d['a']['b']['c'] }}", "{{ messages|length }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ bos_token }}",
    "{%- set ns = namespace(is_first=true, text='') -%}{%- for u in users -%}{%- if not ns.is_first %}{% set ns.text = ns.text + ', ' %}{% endif -%}{%- set ns.text = ns.text + u.name -%}{%- set ns.is_first = false -%}{%- endfor -%}{{ ns.text }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select %}{{ g|first }}{{ g|first }}{% for x in g %}<{{ x }}>{% endfor %}", "{{ (l|map('string')) is sequence }}",
    "{% set x = users %}{% set x = x[1:] %}{{ x|length }}", "{{ dict(a=1)|tojson }}", "{% if messages is defined and messages %}x{% endif %}", "{% set f = 'upper' %}{{ s|map(f)|join }}", "{{ users|map(attribute='name')|map('length')|sum }}",
]


def expressions():
    # A bar with blanks on both sides parts two cases; filters are written without.
    for line in EXPRESSIONS.replace("\\\nline", "\\\rline").strip().split("\n"):
        for case in line.split(" | "):
            yield "{{ " + case.strip().replace("\\\r", "\\\n") + " }}"


CASES = list(dict.fromkeys(list(expressions()) + STATEMENTS))
