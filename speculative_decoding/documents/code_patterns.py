r"""Patterns of code within text, such as placeholders, tags, paths and escapes, which translators do not translate.

Other text is decoded, such as "and/or", "_emphasis_", "(s)", "A:B", "--" or "<3". docs/decisions/what-survives.md lists
how often human translators keep each kind. The patterns are independent of formats and models.

Repetitions are bounded or possessive, and lookbehinds let matches start only at a few positions within a word, so a
search takes linear time.
"""

from __future__ import annotations

import re

from .layout import UNSPACED

LETTER = rf"[^\W{UNSPACED[1:-1]}]"  # a letter of a script with spaces, a digit or an underscore
START, END = rf"(?<!{LETTER})", rf"(?!{LETTER})"

PRINTF = r"[-+#0']{0,3}(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt])?[diouxXeEfFgGaAcrspnm@]"
FILES = (
    "c cpp css csv gif h htm html ini java jpeg jpg js json jsx md mjs mp3 mp4 pdf png py rs rst sh sql srt svg"
    " toml ts tsv tsx txt vtt wasm wav webm webp xml yaml yml zip"
)
ENDS_AS_FILE = "|".join(rf"(?<=\.{suffix})" for suffix in FILES.split())
PROSE = r"[^{}\n]*?[^\W\d_]{2} +[^\W\d_]{2}"  # two words with a space between them
STYLE = r"(?:number|date|time|spellout|ordinal|duration|list|choice)\b[^{}\n]{0,60}"
ESCAPE = r"(?:[nrt]|u[\da-fA-F]{4}|u\{[\da-fA-F]{1,6}\}|x[\da-fA-F]{2})"  # after a backslash
COMMAND = (  # TeX commands that begin like an escape
    "(?:nabla|neq|newline|newpage|nocite|noindent|tableofcontents|tan|tau|text[a-z]{2,10}|theta|times|title|today"
    "|rangle|ref|rho|right[a-z]{0,12}|underline|uparrow|usepackage)"
)
NAME = r"[A-Za-z_][\w.-]{0,60}"
AROUND = r"\s\"'()\[\],;\u00ab\u00bb\u2018-\u201f\u2039\u203a"  # characters around a run of code
RUN_START, RUN_END = rf"(?<![^{AROUND}])", rf"[^{AROUND}]{{1,300}}+(?![^{AROUND}])"
PLAIN = rf"[^{AROUND}\\{{}}%<>]"
SYMBOL = (
    "[\u00a6\u00a7\u00a9\u00ac\u00ae\u00b1\u00b6\u00d7\u00f7\u2020\u2021\u2100-\u2bff\U0001f000-\U0001faff]"
    "[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]*"
)

INNER = r"(?:(?!\\[()\[\]])[^\n])"  # a character between \( and \)
ACCESS_KEY = r"(?<!\S)_(?=[A-Za-z]+(?!\w))"  # _Open

# Name -> characters of which every match contains at least one ("" if there are none), and patterns
PATTERN_SOURCES: dict[str, tuple[str, list[str]]] = {
    "printf": ("%", [rf"(?<![\d%])%(?:\d{{1,2}}\$|\(\w{{1,60}}\))?{PRINTF}{LETTER}{{0,2}}{END}|%%"]),  # %1$s, %dpx
    "numbered": (
        "%",
        [rf"(?<![\w%])%L?\d{{1,2}}(?:![a-z\d]{{1,8}}!|[A-Za-z]{{0,2}}{END})"],
    ),  # %1 and %L2 of Qt, %1!d! of Windows
    "variable": (
        "%$@!:",
        [
            r"\$t\([^()\n]{1,100}\)|@\([\w.]{1,60}\)|%<\w{1,60}>[\d.]{0,4}[a-z]|@:[\w.]{1,60}",  # $t(key), @(name)
            rf"(?<!%)%{NAME}%(?!%(?!\w)){END}|%%{NAME}%%",  # %PATH%, %%NAME%%, but not %d%%
            rf"(?<![\w%])%[a-z][a-z_]{{1,60}}+{END}",  # %name
            rf"(?<![\w$])\$[A-Za-z_]\w{{0,60}}+{END}",  # $HOME
            r"(?<![\w@./])@[A-Za-z][\w-]{0,60}+(?::\w{1,60})?|(?<![\w!])![a-z_]\w{1,60}+",  # @name
            rf"{RUN_START}:[a-z_]\w{{1,60}}+(?!:)",  # :name
        ],
    ),
    "braces": (
        "{}",
        [
            r"\{[{%#][^{}\n]{1,200}[#%}]\}",  # {{ name }}, {% if x %}
            rf"(?:[$#@]|(?<!%)%)?\{{(?!{PROSE})[^{{}}\n]{{0,100}}\}}",  # {0}, ${name}, { $name }, {name:>10}
            rf"\{{[\w.]{{1,40}}(?::(?! )[^{{}}\n]{{1,60}}|, ?{STYLE})\}}",  # {0:dd MMMM}, {0, date, dd MMMM}
            r"\{[^{}\n]{0,200}+(?:\{[^{}\n]{0,200}+\}[^{}\n]{0,200}+){1,20}+\}",  # {"a": {}}
            r"[{}]",
        ],
    ),
    "tag": (
        "<>",
        [
            r"</?(?:\d{1,3}|[A-Za-z][\w:-]{0,40})\s{0,2}/?>",  # <0>, </b>, <br/>
            r"<[A-Za-z][\w:-]{0,40}(?:=[^<>\n]{1,300}|\s[^<>\n]{0,300}=[^<>\n]{0,300})>",  # <color=red>
            r"<%[^<>\n]{1,200}%>|<\?[^<>\n]{1,200}\?>|<!--[^<>\n]{0,300}-->",
            r"<(?=[A-Za-z][^<>\n]{0,100}>)|(?<=\w)>(?!\w)",  # <your name>
        ],
    ),
    "brackets": (
        "[]",
        [
            r"\[\[[^\[\]\n]{1,200}\]\]",  # [[page]]
            r"\[/[a-zA-Z]{1,20}\]|\[[a-zA-Z]{1,20}=[^\]\n]{1,200}\]",  # [/b], [color=red]
            r"\[(?P<name>[a-zA-Z]{1,20})\](?=[^\n]{0,300}\[/(?P=name)\])|[\[\]]",
        ],
    ),
    "entity": ("&", [r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});"]),  # &amp;
    "email": (
        "@",
        [rf"(?<![\w.+-])[\w.+-]{{1,64}}@[\w-]{{1,63}}+(?:\.[\w-]{{1,63}}+)+{END}", r"(?<![\w*])\*@\w[\w.-]{0,60}"],
    ),
    "code": ("`", [r"(?<!`)(?P<ticks>`{1,2})(?!`)[^\n]{1,200}?(?<!`)(?P=ticks)(?!`)"]),
    "flag": (
        "-",
        [rf"(?<![\w.-])--[a-z][a-z\d]*+(?:-[a-z\d]++)*+{END}", rf"{RUN_START}-[a-zA-Z](?!\w)"],
    ),  # --dry-run, -x
    "function": ("(", [r"(?<![\w.])[A-Za-z_][\w.]*+\(\)"]),  # open()
    "camel": ("", [rf"(?<![\w.])[a-z]{{2,}}+(?:[A-Z][a-z\d]*+)++(?<![a-z]I){END}"]),  # textContent, not "andI"
    "snake": (
        "_",
        [
            rf"(?<![\w.])(?:[A-Za-z][A-Za-z\d]{{0,60}}+\.){{0,4}}_*+[A-Za-z\d]++(?:_++[A-Za-z\d]++)++_*+"
            rf"(?:\.[A-Za-z]\w{{0,60}}+){{0,4}}{END}",  # MAX_LENGTH, a.b_c
            rf"(?<![\w.])__++[A-Za-z\d]++__++{END}",  # __count__
        ],
    ),
    "mixed": (
        "$#@^~|=",
        [
            rf"{RUN_START}(?={PLAIN}{{0,60}}?\w(?:\$(?!\d)|[#@^~])\w){PLAIN}{{1,200}}+(?!{PLAIN})",  # x^2, a$b
            r"(?<=\w)=(?=[\w%$])|\||(?<!=)==(?!=)|(?<!\S)\^[\w-]{1,60}",  # size=large, ==marked==, ^id
        ],
    ),
    "dotted": (".", [rf"(?<![\w./@-])[a-z]\w{{1,60}}+(?:\.[a-z]\w{{1,60}}+)++{END}"]),  # page.title, example.org
    "file": (".", [rf"(?<![\w./-])(?:[.~]{{0,2}}/)?[\w-]++(?:[./]++[\w-]++)*+(?:{ENDS_AS_FILE})"]),  # docs/index.html
    "wildcard": ("*", [r"(?<![\w*])\*\.\w{1,10}(?!\w)"]),  # *.txt
    "path": ("/", [r"(?<![\w./~-])[.~]{0,2}/\.?[\w-]++(?:[./]\.?[\w-]++)++/?"]),  # /usr/bin
    "url": (
        ":.",
        [
            rf"{START}(?:(?:https?|ftp)://|mailto:|www\.)[^\s<>\"`|“”„«»{UNSPACED[1:-1]}]{{2,}}",
            rf"(?<![\w.])[a-z][a-z\d.-]{{0,60}}:\d{{2,5}}(?!\w)(?:/[^{AROUND}<>]{{0,100}})?",  # localhost:8080
        ],
    ),
    "emoji": (
        ":",
        [r":{1,3}[a-z][\w-]{0,40}(?=[{\[`])|:(?<![\w:]:)(?=[\d_+-]*[a-z])[a-z\d_+-]{2,50}+:(?![\w:])"],
    ),  # :warning:
    "formula": (
        "$\\",
        [
            r"(?<![\w$\\])\$(?=[^$\n]{0,300}?[\\^_=])(?!\s)[^$\n]{1,400}+(?<!\s)\$(?![\w$])",  # $a_1 + b$
            r"(?<![\w$\\])\$(?!\d)[^\s$]{1,20}+\$(?![\w$])|(?<![\w$\\])\$\$[^$]{1,500}+\$\$",  # $n$, $$x$$
            rf"\\[(\[](?=\S{{1,3}}\\|{INNER}{{0,300}}?(?:[\^_=+<>]|\\[A-Za-z])){INNER}{{1,300}}+\\[)\]]",  # \(x^2\)
        ],
    ),
    "backslash": (
        "\\",
        [
            rf"{RUN_START}(?=[A-Za-z]:\\|\\\\\w|(?<!\S)(?:\.{{1,2}}|~|%\w{{1,60}}%)\\\w){RUN_END}",
            rf"{RUN_START}(?=[^\s\\]{{0,100}}\\(?!{ESCAPE})[A-Za-z\d]){RUN_END}",  # \d+, a\b
            rf"\\(?:[A-Za-z]{{1,20}}(?=[{{\[])|{COMMAND}(?![A-Za-z])|\([\w.]{{1,60}}\))",  # \newpage, \(name)
            rf"\\{ESCAPE}",  # the kept part of "one\ntwo"
        ],
    ),
    "identifier": (
        "0123456789+#",
        [
            r"(?<![\w.])v?\d{1,5}(?:\.\d{1,5}){2,4}(?<!\.\d{4})(?![\w.])",  # version, not date
            rf"(?<![\w.])[\da-fA-F]{{8}}(?:-[\da-fA-F]{{4}}){{3}}-[\da-fA-F]{{12}}{END}",
            rf"(?<![\w.%])(?=[a-f]*+\d)(?=\d*+[a-f])[\da-f]{{7,128}}+{END}|(?<![\w.])0x[\da-fA-F]{{1,16}}{END}",
            r"(?<![\w&#])#(?:(?:[\da-fA-F]{3}){1,2}(?!\w)|\d{1,9}(?!\w))",  # a color, an issue number
            r"(?<![\w.])[A-Z](?:\+\+|#)(?!\w)",  # C++
        ],
    ),
    # Only the mark itself is kept, because it may precede another letter in the output
    "mnemonic": (
        "&_~#",
        [
            r"(?<![\w&])&(?=[^\W\d_])|(?<=[a-z])&(?=[a-z])",  # &File
            rf"{ACCESS_KEY}|(?<!\S)[~#](?=[A-Za-z])",  # _Open, ~Delete, #tag
        ],
    ),
    "symbol": (
        "",
        [
            rf"{SYMBOL}(?:\u200d?{SYMBOL})*+",  # ©, →
            r"(?<!\S)(?:[<>=|~^]{1,3}|[-=]{1,2}>|<[-=]{1,2})(?!\S)",  # < and > between spaces
        ],
    ),
}
# Patterns whose matches may end with the sentence's punctuation
MAY_END_WITH_PUNCTUATION = ("url", "mixed", "backslash")
CODE_PATTERNS = {
    name: (frozenset(needed), re.compile("|".join(sources))) for name, (needed, sources) in PATTERN_SOURCES.items()
}

UNITS = (
    "°C °F EUR USD GBP CHF JPY B kB KB MB GB TB PB KiB MiB GiB TiB kbit Mbit Gbit kbps Mbps Gbps KB/s MB/s GB/s"
    " Hz kHz MHz GHz THz nm µm μm mm cm dm km m mm² cm² m² km² m³ cm³ µg mg g kg t ml mL cl l L ns µs μs ms min h"
    " px pt em rem vh vw dpi ppi fps rpm V mV kV mA W mW kW MW Wh kWh Ω kΩ MΩ Pa hPa kPa bar J kJ cal kcal dB K"
    " km/h m/s mph lb oz ft"
)
UNIT = "|".join(map(re.escape, sorted(UNITS.split(), key=len, reverse=True)))
SPACE = r"[ \u00a0\u202f\u2009]"
NUMBER = rf"(?:\d{{1,3}}(?:{SPACE}\d{{3}}(?!\d)){{1,6}}+|\d{{1,30}}+)(?:[.,'\u2019]\d{{1,30}}+){{0,10}}+"
MONEY = rf"(?P<before>[$€£¥₹]){SPACE}?(?P<amount>{NUMBER})"
MEASURE = rf"(?<![.,'\u2019]){START}(?P<number>{NUMBER})[-\u2011]?{SPACE}?"
PERCENT = rf"%(?!%|(?<!\d%)(?:[A-Za-z]{{1,2}}{END}|\(\w))"  # not in "1-%d"
SYMBOL_OF_UNIT = rf"(?P<after>(?:{UNIT}|(?<!0)s)(?![/'\u2019]?{LETTER})|[‰°$€£¥₹](?!%)|{PERCENT})"  # not "1960s"
ANY_NUMBER = re.compile(NUMBER)
QUANTITY = re.compile(rf"{MONEY}|{MEASURE}{SYMBOL_OF_UNIT}")
# A unit may become a word in an output: "24 h", "24 Stunden"
IN_OUTPUT = re.compile(rf"{MONEY}|{MEASURE}(?:{SYMBOL_OF_UNIT}|(?=[^\W\d_]{{2}}|[^\W\d_A-Za-z]))")
