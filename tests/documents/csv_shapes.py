"""Shapes of tables as they occur in public repositories, with other texts."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """A table, the columns to decode, the cells that are decoded, the delimiter, and the format."""

    text: str
    columns: tuple[str, ...]
    decoded: list[str]
    delimiter: str = ","
    format: str = "csv"


def lines(*texts: str, end: str = "\n") -> str:
    return end.join(texts) + end


SHAPES: dict[str, Shape] = {
    "keys and languages (Godot)": Shape(
        lines("keys,en,ja", 'MEET,"Good evening, all!",こんばんは', 'QUOTE,"""Come in,"" she said.",「どうぞ」'),
        ("en",),
        ["Good evening, all!", '"Come in," she said.'],
    ),
    "context and plural columns (Godot)": Shape(
        lines("en,?context,?plural,fr", "A letter,Alphabet,,", "%d apple,,%d apples,"),
        ("en", "?plural"),
        ["A letter", "%d apple", "%d apples"],
    ),
    "namespace, key and comment (Unreal)": Shape(
        lines("Namespace,Key,lang-en,lang-pl,Comments", 'GAME,START,"Begin, now!",,Any note'),
        ("lang-en",),
        ["Begin, now!"],
    ),
    "string table (Unreal)": Shape(
        lines("Key,SourceString", '"Quit","Leave the game"', '"Size","{Size} bytes"', end="\r\n"),
        ("SourceString",),
        ["Leave the game", "{Size} bytes"],
    ),
    "pairs with semicolons, without a header": Shape(
        lines("menu_start;Start the game;first screen", "", ";;only a comment", "menu_end;End it, please"),
        ("2",),
        ["Start the game", "End it, please"],
        ";",
    ),
    "headings between rows": Shape(
        lines("id,ja,en,ko", "# common,,,", "ok,はい,Fine then,", "# settings,,,", "title,設定,The settings,설정"),
        ("en",),
        ["Fine then", "The settings"],
    ),
    "empty column": Shape(
        lines("test_key,,A cold wind", 'other,,"some ""text"""'), ("3",), ["A cold wind", 'some "text"']
    ),
    "all quoted (Magento)": Shape(
        lines('"Add to Cart","Add to Cart"', '"Hello, %name!","Hello, %name!"'),
        ("2",),
        ["Add to Cart", "Hello, %name!"],
    ),
    "products with HTML (Shopify)": Shape(
        lines(
            "Handle,Title,Body (HTML),Price",
            'blue-mug,Blue mug,"<p>Holds <b>tea</b>.</p>\n<p>Fits a hand.</p>",9.90',
            "blue-mug,,,",
        ),
        ("Title", "Body (HTML)"),
        ["Blue mug", "<p>Holds <b>tea</b>.</p>", "<p>Fits a hand.</p>"],
    ),
    "products with lists in cells (WooCommerce)": Shape(
        lines("ID,Name,Categories,Images", '12,"Red hat, wool","Clothing > Hats, Winter",https://example.org/a.jpg'),
        ("Name", "Categories"),
        ["Red hat, wool", "Clothing > Hats, Winter"],
    ),
    "variants in JSON": Shape(lines("sku,name,meta", '1,A chair,"{""color"": ""red""}"'), ("name",), ["A chair"]),
    "questions and answers with line breaks": Shape(
        lines("question,answer", '"How do I\r\nlog in?","Press\n\n- the button\n- or a key"'),
        ("question", "answer"),
        ["How do I", "log in?", "Press", "- the button", "- or a key"],
    ),
    "flash cards (Anki)": Shape(lines("a dog\tein Hund", "a cat\teine Katze"), ("1",), ["a dog", "a cat"], "\t", "tsv"),
    "sentence pairs (GLUE)": Shape(
        lines("index\tsentence1\tsentence2\tlabel", '0\tHe said "no" twice.\tShe "agreed.\t1'),
        ("sentence1", "sentence2"),
        ['He said "no" twice.', 'She "agreed.'],
        "\t",
        "tsv",
    ),
    "cells with one quotation mark (GLUE)": Shape(
        lines("id\ttext", '1\t"A quotation begins', '2\tand ends here"'),
        ("text",),
        ['"A quotation begins', 'and ends here"'],
        "\t",
        "tsv",
    ),
    "quoted cells with tabs between (Excel)": Shape(
        lines("id\ttext", '1\t"He said ""no"" to me"', "2\tplain text", end="\r\n"),
        ("text",),
        ['He said "no" to me', "plain text"],
        "\t",
        "tsv",
    ),
    "escapes in TSV (WikiTableQuestions)": Shape(
        lines("id\tutterance", "nt-0\tone line\\nand a bar\\p here"),
        ("utterance",),
        ["one line\\nand a bar\\p here"],
        "\t",
        "tsv",
    ),
    "tabs in a CSV file": Shape(lines("id\ttext", '1\t"Two\nlines, here"'), ("text",), ["Two", "lines, here"], "\t"),
    "bars": Shape(
        lines("id|text|n", "1|Hello, you; there|2.5", "2|Good day|"), ("text",), ["Hello, you; there", "Good day"], "|"
    ),
    "declared delimiter (Excel)": Shape(
        lines("sep=;", "id;text", "1;Open, please", end="\r\n"), ("text",), ["Open, please"], ";"
    ),
    "declared comma with semicolons in texts": Shape(
        lines("sep=,", "text,n", "first; second; third,1", "fourth; fifth; sixth,2"),
        ("1",),
        ["text", "first; second; third", "fourth; fifth; sixth"],
    ),
    "semicolons and decimal commas (German Excel)": Shape(
        lines("Nr;Text;Preis", "1;A loaf, sliced;2,50", '2;"Tea; green";3,75', end="\r\n"),
        ("Text",),
        ["A loaf, sliced", "Tea; green"],
        ";",
    ),
    "one column without a delimiter": Shape(
        lines("text", "Only this text", "and that one"), ("text",), ["Only this text", "and that one"]
    ),
    "one column with commas in some rows": Shape(
        lines("text", "First, a comma", "then none"), ("text",), ["First, a comma", "then none"], ";"
    ),
    "spaces after commas": Shape(
        lines("id, text, n", '1, "A text, quoted", 2', "2, Another text, 3"),
        ("text",),
        ["A text, quoted", " Another text"],
    ),
    "padded columns": Shape(
        lines("id ,text      ,n", "1  ,Short one ,2", "22 ,A longer  ,3"), ("text",), ["Short one ", "A longer  "]
    ),
    "ragged rows": Shape(
        lines("a,b,c", "1,two words", "1,three words,4,5", "", "6"), ("b",), ["two words", "three words"]
    ),
    "no line end": Shape("id,text\n1,The end", ("text",), ["The end"]),
    "no line end after a quotation mark": Shape('id,text\n1,"The end"', ("text",), ["The end"]),
    "trailing delimiters": Shape(
        lines("id,text,", "1,Some words,", "2,More words,"), ("text",), ["Some words", "More words"]
    ),
    "blank lines first": Shape("\n\nid,text\n1,Some words\n", ("text",), ["Some words"]),
    "formulas": Shape(
        lines(
            "name,value",
            "A sum,=SUM(B1:B9)",
            '"A link","=HYPERLINK(""http://x"",""a b"")"',
            "A sign,@SUM(A1)",
            "- a dash,-5",
        ),
        ("1", "2"),
        ["name", "value", "A sum", "A link", "A sign", "- a dash", "-5"],
    ),
    "dates, codes and addresses": Shape(
        lines("text,when,url", "A day,2020-01-02,https://example.org/a", "X1-22,,mail@example.org"),
        ("text", "url"),
        ["A day", "https://example.org/a", "X1-22", "mail@example.org"],
    ),
    "inches": Shape(
        lines("size,text", '5",A 5" screen', '6",Another 6" one'), ("text",), ['A 5" screen', 'Another 6" one']
    ),
    "the same name twice": Shape(lines("id,text,text", "1,One here,Two here"), ("text",), ["One here", "Two here"]),
    "ICU messages": Shape(
        lines("key,en", 'n,"{n, plural,\n one {# file}\n other {# files}}"'),
        ("en",),
        ["{n, plural,  one {# file}  other {# files}}"],
    ),
    "places in the code, without a header (ERPNext)": Shape(
        lines("apps/shop/item.py +51,Code {0} is no {1} code,Der Code {0}", "DocType: Item,Net weight,"),
        ("2",),
        ["Code {0} is no {1} code", "Net weight"],
    ),
    "no name above the keys (Godot)": Shape(
        lines(",en,ja,ru", "KEY_HI,Welcome!,こんにちは!,Привет!", 'KEY_INTRO,"Hello, this is a game.",,'),
        ("en",),
        ["Welcome!", "Hello, this is a game."],
    ),
    "languages with countries (Unity)": Shape(
        lines(
            "Key,Id,Shared Comments,English(en),Korean (South Korea)(ko-KR)",
            'ui.title,10547617792,,"You won, friend!",',
            "ui.score,11222900737,Shown at the end,Your score: {0},점수",
            end="\r\n",
        ),
        ("English(en)",),
        ["You won, friend!", "Your score: {0}"],
    ),
    "escaped line breaks (Weblate)": Shape(
        lines("Key,Value", '"Good morning, all!\\n","Guten Morgen!\\n"', '"See %d cats.\\n",""', ""),
        ("Key",),
        ["Good morning, all!\\n", "See %d cats.\\n"],
    ),
    "attributes in quotation marks (Magento)": Shape(
        lines(
            '"Please <a href=""%s"">log in</a>, or wait.","Bitte <a href=""%s"">anmelden</a>."', '"* Needed", "* Nötig"'
        ),
        ("1",),
        ['Please <a href="%s">log in</a>, or wait.', "* Needed"],
    ),
    "context, source and target (Weblate)": Shape(
        lines(
            '"context","source","target"', '"2229","Broken arm (finding)","bras"', '"2229","Broken arm (finding)",""'
        ),
        ("source",),
        ["Broken arm (finding)", "Broken arm (finding)"],
    ),
    "name of the table above the header (TYPO3)": Shape(
        lines('"pages",,,', ',"uid","title","arguments"', ',1,"The home page","{""id"":123}"', ",2,About us,"),
        ("3",),
        ["title", "The home page", "About us"],
    ),
    "lists with bars in cells (SkyWater)": Shape(
        lines(
            "Name,Description,Flags,Value",
            '(m1.-),"| Report an error, if one is true:',
            "| The whole window is covered and < 70% full.",
            '| The window is half covered.",,0.5',
        ),
        ("Description",),
        [
            "| Report an error, if one is true:",
            "| The whole window is covered and < 70% full.",
            "| The window is half covered.",
        ],
    ),
    "columns without names and quality tags (translate5)": Shape(
        lines(
            '"id","source","target","",""',
            '"1","Choose <mqm:issue xml:id=""x1"" type=""Addition"" note=""""/>the settings","","a note",""',
            '"2","Tea & milk","","",""',
        ),
        ("source",),
        ['Choose <mqm:issue xml:id="x1" type="Addition" note=""/>the settings', "Tea & milk"],
    ),
    "export of XLIFF (NAB AL Tools)": Shape(
        lines(
            "Id;Source;Target;Developer Note;Max Length;Comment",
            "Table 23 - NamedType 12;This is it, then;;A note;50;",
            'Page 29 - NamedType 12;"Open; or close";Öffnen;;;',
        ),
        ("Source",),
        ["This is it, then", "Open; or close"],
        ";",
    ),
    "glossary of many languages": Shape(
        lines(
            "en-US\tda-DK\tes-ES_tradnl\tsv-SE\tDescription", "Unit of measure\tEnhed\t\tEnhet\tHow goods are counted"
        ),
        ("Description",),
        ["How goods are counted"],
        "\t",
        "tsv",
    ),
    "sentences with languages (Tatoeba)": Shape(
        lines("8\teng\tThis is a sentence.", '55\teng\tWhy "now"?', end="\r\n"),
        ("3",),
        ["This is a sentence.", 'Why "now"?'],
        "\t",
        "tsv",
    ),
    "recordings (Common Voice)": Shape(
        lines(
            "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tlocale\tsegment",
            "87e2\tcommon_voice_en_18.mp3\tTwo waves meet.\t2\t0\t\t\t\ten\t",
            'a1f0\tcommon_voice_en_19.mp3\t"Come in," she said.\t2\t1\ttwenties\tfemale\t\ten\t',
        ),
        ("sentence",),
        ["Two waves meet.", '"Come in," she said.'],
        "\t",
        "tsv",
    ),
    "records over several rows (OpenRefine)": Shape(
        lines("name\tactor\tgenre", "A long day\tJane Doe\tComedy", "\tJohn Roe\tA drama", "\t\tTragedy"),
        ("actor", "genre"),
        ["Jane Doe", "Comedy", "John Roe", "A drama", "Tragedy"],
        "\t",
        "tsv",
    ),
    "a heading above the table (csvkit)": Shape(
        lines(",,", "Students Who Got Help,,", "State Name,Program,Total", 'Some State,A bill,"1,204"', end="\r\n"),
        ("2",),
        ["Program", "A bill"],
    ),
    "semicolon at the end of each row (Frictionless)": Shape(
        lines("Zeit [MEZ];Stand;Status;", '"09.07. 12:00";"14";nicht geprüft;', '"10.07.";"15";"ist geprüft";'),
        ("Status",),
        ["nicht geprüft", "ist geprüft"],
        ";",
    ),
    "terms in quotation marks (OmegaT)": Shape(
        lines("kde,a desktop", "ask; me,comma", '"""kde"",""x""",cdk'),
        ("1",),
        ["kde", "ask; me", '"kde","x"'],
    ),
    "old Mac line ends": Shape("id,text\r1,First one\r2,Second one\r", ("text",), ["First one", "Second one"]),
    "empty": Shape("", ("text",), []),
    "only a header": Shape("id,text\n", ("text",), []),
}
