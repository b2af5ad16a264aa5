"""Shapes of JSON files of messages, as they occur in public repositories, with other texts."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """A document, the texts that are decoded, and the options."""

    text: str
    decoded: list[str]
    fields: tuple[str, ...] = ()


def lines(*texts: str, end: str = "\n") -> str:
    return end.join(texts) + end


SHAPES: dict[str, Shape] = {
    "flat": Shape('{\n  "save": "Save the file",\n  "open": "Open"\n}\n', ["Save the file", "Open"]),
    "flat, minified, without a line end": Shape('{"a":"First text","b":"Second text"}', ["First text", "Second text"]),
    "i18next, nested": Shape(
        lines("{", '  "menu": {', '    "file": { "open": "Open file", "close": "Close file" }', "  }", "}"),
        ["Open file", "Close file"],
    ),
    "i18next, plural suffixes": Shape(
        lines("{", '  "item_one": "{{count}} item",', '  "item_other": "{{count}} items"', "}"),
        ["{{count}} item", "{{count}} items"],
    ),
    "i18next, nesting and escaped quotation marks": Shape(
        '{ "both": "They have $t(cats, {\\"count\\": {{cats}} }) here" }\n',
        ['They have $t(cats, {"count": {{cats}} }) here'],
    ),
    "i18next, context": Shape(
        '{"friend_male": "A boyfriend", "friend_female": "A girlfriend"}', ["A boyfriend", "A girlfriend"]
    ),
    "i18next, array with several lines": Shape(
        '{"poem": ["First line", "second line", ""]}', ["First line", "second line"]
    ),
    "i18next, keys with dots": Shape(
        '{"page.title": "The page", "page.intro.text": "Read on"}', ["The page", "Read on"]
    ),
    "i18next, keys are sentences": Shape(
        '{"Log in": "Log in", "Are you sure?": "Are you sure?"}', ["Log in", "Are you sure?"]
    ),
    "vue-i18n, pipes": Shape('{"car": "no cars | one car | {n} cars"}', ["no cars | one car | {n} cars"]),
    "vue-i18n, linked messages": Shape(
        '{"end": "@:common.bye for now", "at": "me{\'@\'}here"}', ["@:common.bye for now", "me{'@'}here"]
    ),
    "vue-i18n, a language per object": Shape(
        '{"en": {"hi": "Hello you"}, "ja": {"hi": "こんにちは"}}', ["Hello you", "こんにちは"]
    ),
    "vue-i18n, arrays of objects": Shape(
        '{"steps": [{"title": "Begin here"}, {"title": "End here"}]}', ["Begin here", "End here"]
    ),
    "Rails, converted": Shape(
        '{"en": {"date": {"formats": {"short": "%b %d"}, "order": ["year", "month"]}, "errors": '
        '{"blank": "can\'t be blank"}}}',
        ["%b %d", "year", "month", "can't be blank"],
    ),
    "Rails, null entry of an array": Shape('{"month_names": [null, "January", "February"]}', ["January", "February"]),
    "Laravel": Shape(
        '{\n    "Hello :name, welcome back": "Hello :name, welcome back",\n    "The :attribute is invalid.": ""\n}\n',
        ["Hello :name, welcome back"],
    ),
    "PHP, escaped slashes and letters": Shape(
        '{"a": "Caf\\u00e9 and\\/or bar", "b": "<b>Bold<\\/b> text"}', ["Café and/or bar", "<b>Bold</b> text"]
    ),
    "Chrome extension": Shape(
        lines(
            "{",
            '  "appName": {',
            '    "message": "Tab keeper",',
            '    "description": "The name of the extension."',
            "  },",
            '  "found": {',
            '    "message": "Found $COUNT$ tabs",',
            '    "placeholders": { "count": { "content": "$1", "example": "5" } }',
            "  }",
            "}",
        ),
        ["Tab keeper", "Found $COUNT$ tabs"],
        ("message",),
    ),
    "React Intl, extracted": Shape(
        '[\n  {\n    "id": "app.hi",\n    "description": "A greeting",\n    "defaultMessage": "Hi, '
        '{name}!"\n  },\n  {\n    "id": "app.bye",\n    "defaultMessage": "Bye now"\n  }\n]\n',
        ["Hi, {name}!", "Bye now"],
        ("defaultMessage",),
    ),
    "FormatJS, by id": Shape(
        '{"aB3/x=": {"defaultMessage": "Sign in here", "description": "button"}}', ["Sign in here"], ("defaultMessage",)
    ),
    "FormatJS, compiled": Shape(
        '{"x": [{"type": 0, "value": "Hello there "}, {"type": 1, "value": "name"}]}', ["Hello there ", "name"]
    ),
    "ICU plural": Shape(
        '{"n": "{n, plural, one {# file here} other {# files here}}"}',
        ["{n, plural, one {# file here} other {# files here}}"],
    ),
    "ICU select over several lines": Shape(
        '{"g": "{g, select,\\n  male {He came}\\n  other {They came}\\n}"}',
        ["{g, select,  male {He came}  other {They came} }"],
    ),
    "ARB": Shape(
        lines(
            "{",
            '  "@@locale": "en",',
            '  "@@last_modified": "2020-01-01T00:00:00.000",',
            '  "inbox": "{count, plural, =0{No mail} other{{count} letters}}",',
            '  "@inbox": {',
            '    "description": "Shown above the list of letters",',
            '    "placeholders": { "count": { "type": "int", "example": "Twelve" } }',
            "  },",
            '  "title": "The inbox"',
            "}",
        ),
        ["{count, plural, =0{No mail} other{{count} letters}}", "The inbox"],
    ),
    "ARB, metadata without a message": Shape('{"@@context": "Home page", "@gone": {}, "hi": "Hi there"}', ["Hi there"]),
    "ARB, metadata in arrays": Shape('{"@x": ["not this", {"y": "nor this"}], "z": ["but this"]}', ["but this"]),
    "Angular, $localize": Shape(
        '{"locale": "en", "translations": {"123": "Hello {$INTERPOLATION}", "456": "{VAR_PLURAL, '
        'plural, =1 {a minute} other {some}}"}}',
        ["en", "Hello {$INTERPOLATION}", "{VAR_PLURAL, plural, =1 {a minute} other {some}}"],
    ),
    "ngx-translate, capital keys and tabs": Shape(
        '{\n\t"HOME": {\n\t\t"TITLE": "Welcome home"\n\t}\n}\n', ["Welcome home"]
    ),
    "Minecraft": Shape(
        '{"block.mod.lamp": "A %s lamp", "tooltip.mod": "Holds up to %1$d items"}',
        ["A %s lamp", "Holds up to %1$d items"],
    ),
    "VS Code extension": Shape(
        '{"command.title": "Format the file", "config.desc": {"message": "Use `tabs` here", "comment": '
        '["Keep `tabs`"]}}',
        ["Format the file", "Use `tabs` here", "Keep `tabs`"],
    ),
    "Home Assistant": Shape(
        '{"config": {"step": {"user": {"data": {"host": "The host"}}}, "abort": {"done": "[%key:common::done%]"}}}',
        ["The host", "[%key:common::done%]"],
    ),
    "MediaWiki": Shape(
        '{"@metadata": {"authors": ["Jane Doe"]}, "ext-desc": "Shows [[$1|a page]] here"}', ["Shows [[$1|a page]] here"]
    ),
    "go-i18n, plural forms beside descriptions": Shape(
        lines(
            "{",
            '  "hi": "A first text\\n",',
            '  "cats": {',
            '    "description": "A note",',
            '    "one": "One cat has {{.Count}} toy.\\n",',
            '    "other": "{{.Count}} cats"',
            "  }",
            "}",
        ),
        ["One cat has {{.Count}} toy.", "{{.Count}} cats"],
        ("one", "other"),
    ),
    "go-i18n, translations in an array": Shape(
        '[\n  {\n    "id": "hi",\n    "description": "A note",\n    "translation": "Hi there"\n  },\n  {\n    "i'
        'd": "n",\n    '
        '"translation": {\n      "one": "one cat",\n      "other": "many cats"\n    }\n  }\n]\n',
        ["Hi there", "one cat", "many cats"],
        ("translation", "one", "other"),
    ),
    "WinJS, sources beside translations": Shape(
        '{\n    "hi": "Hello you\\n",\n    "_hi.source": "Ahoj",\n    "bye": "",\n    "_bye.source": "See <https'
        '://example.org/>!"\n}\n',
        ["Hello you", "Ahoj", "See <https://example.org/>!"],
    ),
    "Nextcloud, translations that are null": Shape(
        '{ "translations": {\n    "Hello there\\n" : "Hallo",\n    "Two cats" : null\n},"pluralForm" :"nplurals='
        '2; plural=(n != 1);"\n}',
        ["Hallo", "nplurals=2; plural=(n != 1);"],
    ),
    "Docusaurus": Shape(
        lines(
            "{",
            '  "Working with it": {',
            '    "message": "Working with it"',
            "  },",
            '  "theme.blog.plurals": {',
            '    "message": "One post|{count} posts",',
            '    "description": "Plural label for \\"{count} posts\\". Use forms (separated by \\"|\\")"',
            "  },",
            '  "theme.lastUpdated.atDate": {',
            '    "message": " on {date}",',
            '    "description": "The words before a date"',
            "  }",
            "}",
        ),
        ["Working with it", "One post|{count} posts", " on {date}"],
        ("message",),
    ),
    "Home Assistant, triggers and services": Shape(
        lines(
            "{",
            '  "device_automation": {',
            '    "trigger_subtype": { "1": "[%key:component::x::button_1%]", "button_1": "First button" },',
            '    "trigger_type": { "press": "\\"{subtype}\\" pressed", "start": "[%key:common::start%]" }',
            "  },",
            '  "issues": { "old": { "description": "The effect `None` was replaced with `off`.", "title": "Old e'
            'ffect" } }',
            "}",
        ),
        [
            "[%key:component::x::button_1%]",
            "First button",
            '"{subtype}" pressed',
            "[%key:common::start%]",
            "The effect `None` was replaced with `off`.",
            "Old effect",
        ],
    ),
    "MediaWiki, documentation and tabs": Shape(
        '{\n\t"@metadata": {\n\t\t"authors": [\n\t\t\t"Jane Doe"\n\t\t]\n\t},\n\t"echo-range": "{{optional}}\\nA'
        " label.\\n\\nParameters:\\n* "
        '$1 - A number.\\n{{Identical|Range}}",\n\t"tooltip": "Notes {{GENDER:|here}}"\n}\n',
        [
            "{{optional}}",
            "A label.",
            "Parameters:",
            "* $1 - A number.",
            "{{Identical|Range}}",
            "Notes {{GENDER:|here}}",
        ],
    ),
    "Chrome extension, minified": Shape(
        '{"name":{"message":"The calendar"},"direction":{"message":"ltr"},"hours":{"message":"$1h left","placeholders":'
        '{"1":{"content":"$1"}}},"more":{"message":"To $Google$ News \\u00BB"}}',
        ["The calendar", "ltr", "$1h left", "To $Google$ News »"],
        ("message",),
    ),
    "FormatJS for Smartling": Shape(
        '{\n  "smartling": {\n    "translate_paths": [{ "path": "*/message", "key": "{*}/message" }],\n    '
        '"variants_enabled": true\n  },\n  "a1": {\n    "message": "I have {n, plural, one{a dog} other{dogs}}",\n    '
        '"description": "A note"\n  }\n}\n',
        ["I have {n, plural, one{a dog} other{dogs}}"],
        ("message",),
    ),
    "FormatJS for Lokalise": Shape(
        '{"a1": {"translation": "My name is {name}", "notes": "A note"}}', ["My name is {name}"], ("translation",)
    ),
    "FormatJS, compiled plural": Shape(
        '{"n": [{"type": 0, "value": "I have "}, {"type": 6, "value": "count", "options": {"one": {"value": [{"t'
        'ype": 0, '
        '"value": "a dog"}]}, "other": {"value": [{"type": 7}]}}, "offset": 0, "pluralType": "cardinal"}]}',
        ["I have ", "count", "a dog", "cardinal"],
    ),
    "Transloco, messages of ICU with doubled braces": Shape(
        '{\n  "msg": "The {gender, select, male {boy {{name}}} other {child {{name}}}} won",\n  "a": { "b": { "c'
        '": "{{list}} '
        'here" } },\n  "key.is.a.path": "A path",\n  "empty": ""\n}\n',
        ["The {gender, select, male {boy {{name}}} other {child {{name}}}} won", "{{list}} here", "A path"],
    ),
    "Laravel, rules with forms": Shape(
        '{\n    "accepted": "Accept :attribute.",\n    "between": {\n        "array": ":Attribute has :min to :m'
        'ax items."\n    '
        '},\n    "(and :n more)": "(and :n more)|(and :n more of them)"\n}\n',
        ["Accept :attribute.", ":Attribute has :min to :max items.", "(and :n more)|(and :n more of them)"],
    ),
    "react-i18next, numbered tags": Shape(
        '{"part1": "Edit <1>src/App.js</1>, save and <3><0>try</0> again</3>."}',
        ["Edit <1>src/App.js</1>, save and <3><0>try</0> again</3>."],
    ),
    "VS Code, bundle of messages": Shape(
        '{\n    "Hello {0}": "Hello {0}",\n    "Hello {done}":"Hello {done}",\n    "Bye now/{Locked=\'x\'}": "By'
        'e now"\n}',
        ["Hello {0}", "Hello {done}", "Bye now"],
    ),
    "VS Code, conditions with backslashes": Shape(
        '{\n\t"when": "x.isproject && path =~ /\\\\\\\\get\\\\\\\\[^\\\\\\\\]+/",\n\t"title": "Get it from the s'
        'erver..."\n}\n',
        ["x.isproject && path =~ /\\\\get\\\\[^\\\\]+/", "Get it from the server..."],
    ),
    "ARB, lists in a text": Shape(
        lines(
            "{",
            '    "@@locale": "en",',
            '    "read": "{count, plural, zero{No books} one{1 book} other{{count} books} }",',
            '    "failed": "It failed. Check this: \\n1. The network \\n2. The data\\n\\nThen try again",',
            '    "last": "Last read: "',
            "}",
        ),
        [
            "{count, plural, zero{No books} one{1 book} other{{count} books} }",
            "It failed. Check this: ",
            "1. The network ",
            "2. The data",
            "Then try again",
            "Last read: ",
        ],
    ),
    "vue-i18n, modifiers and wide spaces": Shape(
        '{"c": "@.capitalize:{\'none\'} here | {0} apple | {n}\u3000apples"}',
        ["@.capitalize:{'none'} here | {0} apple | {n}\u3000apples"],
    ),
    "numbers, booleans and null": Shape(
        '{"a": 1e400, "b": -0.10, "c": 12345678901234567890123, "d": true, "e": null, "f": "A text"}', ["A text"]
    ),
    "repeated keys": Shape('{"a": "First text", "a": "Second text"}', ["First text", "Second text"]),
    "CRLF": Shape('{\r\n  "a": "One line",\r\n  "b": "Two\\r\\nlines"\r\n}\r\n', ["One line", "Two", "lines"]),
    "line breaks in texts": Shape(
        '{"mail": "Dear friend,\\n\\nyour order is here.\\n"}', ["Dear friend,", "your order is here."]
    ),
    "pairs of escapes": Shape(
        '{"emoji": "A smile \\ud83d\\ude00 for you", "half": "A lone \\ud83d half"}',
        ["A smile 😀 for you", "A lone  half"],
    ),
    "markup and addresses": Shape(
        '{"a": "See <a href=\\"https://example.org/x\\">the page</a>.", "b": "https://example.org"}',
        ['See <a href="https://example.org/x">the page</a>.', "https://example.org"],
    ),
    "empty": Shape("{}\n", []),
    "a string": Shape('"A single text"', ["A single text"]),
    "spaces around everything": Shape(' \n[ "One text" , "Two texts" ] \n ', ["One text", "Two texts"]),
}
