r"""Shapes of gettext catalogs in public projects, with invented texts. Each is a catalog with a header."""

from __future__ import annotations

HEADER = r"""msgid ""
msgstr ""
"Project-Id-Version: tool 1.0\n"
"Language: de\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

"""
RUSSIAN = (
    '"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n"\n'
    '"%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\\n"\n'
)
# Name -> messages that follow the header, or a whole catalog if the text has its own header
SHAPES = {
    "a label": '#: lib/menu.c:12\nmsgid "Open"\nmsgstr ""\n',
    "an access key of GTK": '#: src/window.ui:41\nmsgid "_Save the page"\nmsgstr ""\n',
    "an access key of Qt": '#: main.cpp:8\nmsgctxt "@action:button"\nmsgid "&Close the page"\nmsgstr ""\n',
    "a context": '#: a.py:1\nmsgctxt "verb"\nmsgid "Mail"\nmsgstr ""\n\nmsgctxt "noun"\nmsgid "Mail"\nmsgstr "Post"\n',
    "named placeholders of Django": r"""#: views.py:20 views.py:31
#, python-format
msgid "%(name)s with this %(field)s already exists."
msgstr ""
""",
    "plural forms of Django, wrapped": r"""#: validators.py:9
#, python-format
msgid ""
"Use a value with at least %(limit)d character (it has "
"%(shown)d)."
msgid_plural ""
"Use a value with at least %(limit)d characters (it has "
"%(shown)d)."
msgstr[0] ""
msgstr[1] ""
""",
    "a break within a format": r"""msgid ""
"The value '%(value)s' has an invalid format. It must be HH:MM[:ss[."
"uuuuuu]] as described."
msgstr ""
""",
    "braces of Python": '#, python-brace-format\nmsgid "Saved {count} of {total:>4} files in {0}"\nmsgstr ""\n',
    "numbered placeholders of WordPress": r"""#. translators: 1: the name, 2: the date
#: wp-includes/post.php:7
msgid "%1$s wrote this on %2$s."
msgstr ""
""",
    "HTML in WordPress": r"""#: admin.php:3
msgid "Read the <a href=\"%s\" target=\"_blank\">manual</a> or <strong>ask</strong>.<br />"
msgstr ""
""",
    "plural forms of WordPress": r"""#: admin.php:5
msgid "%s comment"
msgid_plural "%s comments"
msgstr[0] ""
msgstr[1] ""
""",
    "a model reference of Odoo": r"""#. module: sale
#: model:ir.model.fields,help:sale.field_line__name
#: model_terms:ir.ui.view,arch_db:sale.form
msgid "Choose the <em>name</em> of the <b>order</b>"
msgstr ""
""",
    "a code reference of Odoo": r"""#. module: stock
#. odoo-python
#: code:addons/stock/models/move.py:0
#, python-format
msgid "You cannot move %s.\nPlease check the order."
msgstr ""
""",
    "reStructuredText of Sphinx": r"""#: ../../source/index.rst:14 9f0e1c
msgid ""
"See :ref:`the guide <guide>` and ``make html`` for details; **never** edit "
"the folder `build/`."
msgstr ""
""",
    "XML of Docbook": r"""#. Tag: para
#, no-c-format
msgid "Press <keycap>F1</keycap> to open the <application>viewer</application>."
msgstr ""
""",
    "a template of Debian": r"""#. Type: boolean
#. Description
#: ../templates:1001
msgid "Should the service start?"
msgstr ""

#. Type: boolean
#. Description
#: ../templates:1001
msgid ""
"If you accept here, the service starts at boot.  Otherwise, you must start it "
"yourself."
msgstr ""
""",
    "a usage text of GNU": r"""#: src/main.c:101
#, c-format
msgid ""
"Usage: %s [OPTION]... [FILE]...\n"
"Print the lines of each file.\n"
"\n"
"  -n, --number             number all lines\n"
"  -h, --help\t\t   display this help and\n"
"                           exit\n"
msgstr ""
""",
    "a license of GNU": r"""#: src/main.c:120
msgid ""
"License: free.  You may copy it, and\n"
"there is NO WARRANTY, to the extent\n"
"permitted by law.\n"
msgstr ""
""",
    "a word divided at a hyphen": r"""msgid ""
"The tool does not accept this because its third-"
"party part is missing here, as well as and/"
"or the other."
msgstr ""
""",
    "long text in one string": r'msgid "One line.\nAnother line.\n\nThe last paragraph has \"quotes\" and a \\ sign."'
    '\nmsgstr ""\n',
    "the first line beside the keyword": 'msgid "This text begins here "\n"and ends here."\nmsgstr ""\n',
    "line ends at both ends": 'msgid ""\n"\\n"\n"Stop now.\\n"\nmsgstr ""\n',
    "spaces at both ends": 'msgid " and then "\nmsgstr ""\n\nmsgid "Name: "\nmsgstr ""\n',
    "escapes": r"""msgid "A bell \a, a byte \303\274, a tab\tand \x41 letter\r\n"
msgstr ""
""",
    "an invalid escape": 'msgid "It doesn\\\'t work \\q here"\nmsgstr ""\n',
    "a previous message": r"""#: a.c:3
#, c-format
#| msgctxt "old"
#| msgid "Could not open %s"
msgctxt "new"
msgid "Could not read %s: %m"
msgstr ""
""",
    "a fuzzy message with a translation": '#, fuzzy\n#| msgid "Old"\nmsgid "New name"\nmsgstr "Alter Name"\n',
    "a fuzzy message without a translation": '#, fuzzy, c-format\nmsgid "Not found: %s"\nmsgstr ""\n',
    "several flag lines": '#, c-format\n#, no-wrap\nmsgid "Not %s found"\nmsgstr ""\n',
    "flags without a comma": '#, python-format fuzzy\nmsgid "Nothing in %s"\nmsgstr ""\n',
    "an empty flag line": '#,\nmsgid "Nothing here"\nmsgstr ""\n',
    "obsolete messages": r"""msgid "Present"
msgstr ""

#, fuzzy
#~| msgid "Older"
#~ msgid "Old"
#~ msgstr "Alt"

#~ msgid "Never translated"
#~ msgstr ""
""",
    "messages without words": r"""msgid "%d"
msgstr ""

msgid "---"
msgstr ""

msgid "menu.file.open"
msgstr ""

msgid "%1$s: %2$s"
msgstr ""

msgid "https://example.org/"
msgstr ""
""",
    "a key that has words": 'msgid "Say hello to menu.file.open"\nmsgstr ""\n',
    "translated messages": 'msgid "Yes"\nmsgstr "Ja"\n\nmsgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d Tag"\n'
    'msgstr[1] "%d Tage"\n',
    "a half translated plural": 'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d Tag"\nmsgstr[1] ""\n',
    "too few plural forms": 'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] ""\n',
    "too many plural forms": 'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n',
    "an ICU message": r'msgid "{n, plural, one {# file was copied} other {# files were copied}}"' '\nmsgstr ""\n',
    "ICU messages with a word or none in each branch": r"""msgid "{n, plural, one {# file} other {# files}}"
msgstr ""

msgid "{n, plural, one {%d} other {#}}"
msgstr ""
""",
    "an ICU message over several lines": r"""msgid ""
"{n, plural,\n"
"  one {# file was copied}\n"
"  other {# files were copied}\n"
"}\n"
msgstr ""
""",
    "no blank lines between messages": 'msgid "A"\nmsgstr ""\nmsgid "Two"\nmsgstr ""\n# Note\nmsgid "Three"\nmsgstr ""',
    "indented lines": '  #: a.c:1\n  msgid   "Open it"\n  msgstr   ""\n',
    "several strings on a line": 'msgid "Open " "the page"\nmsgstr "" ""\n',
    "a keyword without a string on its line": 'msgid\n"Open the page"\nmsgstr\n""\n',
    "blank lines within a message": 'msgid "Open the page"\n\nmsgstr ""\n\n\nmsgid "Close"\nmsgstr ""\n\n',
    "a domain": 'domain "other"\nmsgid "Open the page"\nmsgstr ""\n',
    "an empty translation over several strings": 'msgid "Open the page"\nmsgstr ""\n""\n""\n',
    "non-ASCII sources": 'msgid "Grüße aus „Köln“ – 5 €"\nmsgstr ""\n\nmsgid "打开页面。\\n"\nmsgstr ""\n',  # noqa: RUF001
    "a break between Chinese characters": 'msgid ""\n"请先保存页面，"\n"然后关闭窗口。"\nmsgstr ""\n',  # noqa: RUF001
    "a comment at the end": 'msgid "Open"\nmsgstr ""\n\n# vim: set ft=po:\n',
    "an empty catalog": "",
    "a template of xgettext": r"""# SOME DESCRIPTIVE TITLE.
# Copyright (C) YEAR THE PACKAGE'S COPYRIGHT HOLDER
#
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: PACKAGE VERSION\n"
"PO-Revision-Date: YEAR-MO-DA HO:MI+ZONE\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

#: a.c:5
#, c-format
msgid "%d apple"
msgid_plural "%d apples"
msgstr[0] ""
msgstr[1] ""
""",
    "a template of Babel": r"""# Translations template for tool.
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: tool 1.0\n"
"Content-Type: text/plain; charset=utf-8\n"
"Generated-By: Babel 2.16.0\n"

msgid "%(num)d apple"
msgid_plural "%(num)d apples"
msgstr[0] ""
msgstr[1] ""
""",
    "a header in one string": r"""msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\nLanguage:\nPlural-Forms: nplurals=2; plural=n>1"

msgid "one page"
msgid_plural "%d pages"
msgstr[0] ""
msgstr[1] ""
""",
    "Russian plural forms": HEADER.replace('"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n', RUSSIAN)
    + r"""msgid "%d page"
msgid_plural "%d pages"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "One page"
msgid_plural "%d pages"
msgstr[0] ""
""",
    "Japanese plural forms": HEADER.replace("nplurals=2; plural=(n != 1)", "nplurals=1; plural=0")
    + 'msgid "One page"\nmsgid_plural "%d pages"\nmsgstr[0] ""\n',
    "no header": 'msgid "Open the page"\nmsgstr ""\n\nmsgid "%d page"\nmsgid_plural "%d pages"\nmsgstr[0] ""\n',
}
CATALOGS = {
    name: text if 'msgid ""\nmsgstr "' in text or name == "no header" else HEADER + text
    for name, text in SHAPES.items()
}
