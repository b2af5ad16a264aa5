"""XLIFF documents as programs write them, with invented texts."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """A document. written: the ids of the units to write, or "id/mid" for a single segment, separated by spaces."""

    written: str
    document: str


def first(units: str, file: str = 'source-language="en" datatype="plaintext" original="app"') -> str:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file {file}>
    <body>
{units}
    </body>
  </file>
</xliff>
"""


def second(units: str, root: str = 'version="2.0" srcLang="en"') -> str:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" {root}>
  <file id="f1" original="app">
{units}
  </file>
</xliff>
"""


SHAPES = {
    "Angular, placeholders and location": Shape(
        "4286451273117902052",
        first("""      <trans-unit id="4286451273117902052" datatype="html">
        <source>Edit <x id="INTERPOLATION" equiv-text="{{name}}"/> in <x id="START_LINK" ctype="x-a" \
equiv-text="&lt;a href=&quot;/s&quot;&gt;"/>the settings<x id="CLOSE_LINK" ctype="x-a" equiv-text="&lt;/a&gt;"/>.\
</source>
        <context-group purpose="location">
          <context context-type="sourcefile">src/app/app.component.html</context>
          <context context-type="linenumber">7,9</context>
        </context-group>
        <note priority="1" from="description">Shown in the header</note>
      </trans-unit>"""),
    ),
    "Angular, nested tags of one kind": Shape(
        "a",
        first("""      <trans-unit id="a" datatype="html">
        <source><x id="START_TAG_DIV"/>Outer text <x id="START_TAG_DIV_1"/>inner text<x id="CLOSE_TAG_DIV"/> again\
<x id="CLOSE_TAG_DIV"/></source>
      </trans-unit>"""),
    ),
    "Angular, plural": Shape(
        "p",
        first("""      <trans-unit id="p" datatype="html">
        <source>{VAR_PLURAL, plural, =0 {just now} =1 {one minute ago} other {<x id="INTERPOLATION"/> minutes ago}}\
</source>
      </trans-unit>
      <trans-unit id="q" datatype="html"><source>Updated: <x id="ICU"/></source><target>Stand: <x id="ICU"/>\
</target></trans-unit>
      <trans-unit id="r" datatype="html"><source>
        <x id="ICU"/>
      </source><target/></trans-unit>"""),
    ),
    "Angular, nested select with markup and quotation marks": Shape(
        "s",
        first("""      <trans-unit id="s">
        <source>The author is {VAR_SELECT, select, male {<x id="START_BOLD_TEXT"/>male<x id="CLOSE_BOLD_TEXT"/>} \
other {{n, plural, one {it''s one} other {they are #}}}}</source>
      </trans-unit>"""),
    ),
    "Angular, line breaks of the template": Shape(
        "t",
        first("""      <trans-unit id="t" datatype="html">
        <source>
      Please read the
      guide first.
    </source>
      </trans-unit>
      <trans-unit id="u"><source>First line<x id="LINE_BREAK" ctype="lb" equiv-text="&lt;br/&gt;"/>Second line</source>\
<target state="final">Erste<x id="LINE_BREAK" ctype="lb"/>Zweite</target></trans-unit>"""),
    ),
    "Angular 2.0": Shape(
        "u1 u2",
        second("""    <unit id="u1">
      <notes>
        <note category="location">src/app/app.component.html:3</note>
      </notes>
      <segment>
        <source>Hello <pc id="0" equivStart="START_BOLD_TEXT" equivEnd="CLOSE_BOLD_TEXT" type="fmt" \
dispStart="&lt;b&gt;" dispEnd="&lt;/b&gt;">dear <ph id="1" equiv="INTERPOLATION" disp="{{name}}"/></pc>!</source>
      </segment>
    </unit>
    <unit id="u2">
      <segment>
        <source>One line<ph id="0" equiv="LINE_BREAK" type="fmt" disp="&lt;br/&gt;"/>and another</source>
      </segment>
    </unit>"""),
    ),
    "ngx-i18nsupport, copied sources": Shape(
        "a b",
        first("""      <trans-unit id="a"><source>Close the window</source><target state="new">Close the window\
</target></trans-unit>
      <trans-unit id="b"><source>Open</source><target state="needs-translation">Open</target></trans-unit>
      <trans-unit id="c"><source>Save</source><target state="translated">Sichern</target></trans-unit>
      <trans-unit id="d"><source>OK</source><target state="final">OK</target></trans-unit>"""),
    ),
    "Xcode": Shape(
        "Main.title multi",
        """<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
version="1.2" \
xsi:schemaLocation="urn:oasis:names:tc:xliff:document:1.2 \
http://docs.oasis-open.org/xliff/v1.2/os/xliff-core-1.2-strict.xsd">
  <file original="App/en.lproj/Localizable.strings" datatype="plaintext" source-language="en" target-language="de">
    <header>
      <tool tool-id="com.apple.dt.xcode" tool-name="Xcode" tool-version="15.0" build-num="15A240d"/>
    </header>
    <body>
      <trans-unit id="Main.title" xml:space="preserve">
        <source>%1$@ sent you %2$lld photos</source>
        <note>Title of the list</note>
      </trans-unit>
      <trans-unit id="multi" xml:space="preserve">
        <source>The connection was lost.

Check your network
  and try again.</source>
        <note/>
      </trans-unit>
      <trans-unit id="done" xml:space="preserve">
        <source>Done</source>
        <target state="translated">Fertig</target>
        <note>Button</note>
      </trans-unit>
      <trans-unit id="CFBundleName" xml:space="preserve">
        <source>%@</source>
        <note>Bundle name</note>
      </trans-unit>
    </body>
  </file>
</xliff>
""",
    ),
    "Symfony": Shape(
        "3JyVcA",
        first(
            """      <trans-unit id="3JyVcA" resname="user.welcome">
        <source>Welcome back, %name%!</source>
        <target state="needs-translation">user.welcome</target>
      </trans-unit>
      <trans-unit id="7wBoKx" resname="user.bye"><source>Goodbye</source><target>Tschüss</target></trans-unit>""",
            'source-language="en" target-language="de" datatype="plaintext" original="file.ext"',
        ),
    ),
    "Symfony 2.0": Shape(
        "",
        second(
            """    <unit id="a" name="user.welcome">
      <notes><note category="file-source" priority="1">src/A.php:3</note></notes>
      <segment><source>user.welcome</source><target>Willkommen!</target></segment>
    </unit>""",
            'version="2.0" srcLang="en" trgLang="de"',
        ),
    ),
    "TYPO3": Shape(
        "button.search with.html",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
\t<file source-language="en" datatype="plaintext" original="EXT:shop/Resources/Private/Language/locallang.xlf" \
date="2023-05-01T10:00:00Z" product-name="shop">
\t\t<header/>
\t\t<body>
\t\t\t<trans-unit id="button.search" resname="button.search" xml:space="preserve">
\t\t\t\t<source>Search the shop</source>
\t\t\t</trans-unit>
\t\t\t<trans-unit id="with.html" resname="with.html" approved="no">
\t\t\t\t<source><![CDATA[Accept the <a href="%s">terms</a> & conditions]]></source>
\t\t\t</trans-unit>
\t\t\t<trans-unit id="approved" approved="yes"><source>Cart</source><target>Warenkorb</target></trans-unit>
\t\t\t<trans-unit id="empty"><source/></trans-unit>
\t\t</body>
\t</file>
</xliff>
""",
    ),
    "Android strings": Shape(
        "s1 s2",
        first(
            """      <trans-unit id="s1" resname="greeting">
        <source>Don\\'t forget, <ph id="1" ctype="x-g">&lt;xliff:g id="name"&gt;%1$s&lt;/xliff:g&gt;</ph>!\\nSee \
you.</source>
      </trans-unit>
      <trans-unit id="s2"><source><![CDATA[<b>Bold</b> text]]> and <![CDATA[more & more]]></source></trans-unit>""",
            'original="res/values/strings.xml" source-language="en" target-language="fr" datatype="x-android-res"',
        ),
    ),
    "Okapi, codes and matches": Shape(
        "tu1",
        first(
            """      <group id="g1" resname="block">
      <trans-unit id="tu1" restype="x-paragraph">
<source xml:lang="en">Press <bpt id="1" ctype="bold">&lt;b&gt;</bpt>Start now<ept id="1">&lt;/b&gt;</ept> or \
<ph id="2">&lt;img src="a.png"/&gt;</ph> the key<it id="3" pos="open">&lt;i&gt;</it>.</source>
<alt-trans match-quality="85"><source>Press start</source><target>Start drücken</target></alt-trans>
</trans-unit>
      </group>
      <bin-unit id="b1" mime-type="image/png"><bin-source><external-file href="a.png"/></bin-source></bin-unit>""",
            'original="a.html" source-language="en" target-language="de" datatype="html"',
        ),
    ),
    "Okapi, segmented": Shape(
        "tu2",
        first("""      <trans-unit id="tu2">
        <source>The first sentence. The <g id="1">second</g> one.</source>
        <seg-source><mrk mid="0" mtype="seg">The first sentence.</mrk> <mrk mid="1" mtype="seg">The <g id="1">second\
</g> one.</mrk></seg-source>
      </trans-unit>"""),
    ),
    "Trados": Shape(
        "e5e1 5b2c/2 77a0/4",
        """\ufeff<?xml version="1.0" encoding="utf-8"?><xliff xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0" \
xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2" sdl:version="1.0"><file original="C:\\a.docx" \
datatype="x-sdlfilterframework2" source-language="en-US" target-language="de-DE"><header><file-info \
xmlns="http://sdl.com/FileTypes/SdlXliff/1.0"><value key="Source">a &gt; b</value></file-info></header><body>\
<trans-unit id="lockTU_1" translate="no"><source><x id="0"/>Header</source></trans-unit><group><trans-unit id="e5e1">\
<source>Welcome <g id="3">to us</g></source><seg-source><mrk mtype="seg" mid="1">Welcome <g id="3">to us</g></mrk>\
</seg-source><target><mrk mtype="seg" mid="1"/></target><sdl:seg-defs><sdl:seg id="1"/></sdl:seg-defs></trans-unit>\
</group><trans-unit id="5b2c"><source>One. Two words.</source><seg-source><g id="7"><mrk mtype="seg" mid="1">One.\
</mrk> \
<mrk mtype="seg" mid="2">Two words.</mrk></g></seg-source><target><g id="7"><mrk mtype="seg" mid="1">Eins.</mrk> \
<mrk mtype="seg" mid="2"></mrk></g></target></trans-unit><trans-unit id="77a0"><source>Locked. Open.</source>\
<seg-source><mrk mtype="seg" mid="3">Locked.</mrk> <mrk mtype="seg" mid="4">Open.</mrk></seg-source><target>\
<mrk mtype="seg" mid="3"/> <mrk mtype="seg" mid="4"/></target><sdl:seg-defs><sdl:seg id="3" locked="true"/>\
<sdl:seg id="4" locked="false"/></sdl:seg-defs></trans-unit><trans-unit id="77a1"><source>Locked words</source>\
<seg-source><mrk mtype="seg" mid="5">Locked words</mrk></seg-source><sdl:seg-defs><sdl:seg id="5" locked="true"/>\
</sdl:seg-defs></trans-unit></body></file></xliff>""",
    ),
    "memoQ": Shape(
        "1",
        """<?xml version="1.0" encoding="utf-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:mq="MQXliff">
<file original="a.docx" source-language="en-us" target-language="hu-hu" datatype="x-memoq" tool-id="MQ">
<body>
<trans-unit id="1" mq:status="NotStarted" mq:segmentguid="4a">
<source xml:space="preserve">The <bpt id="1" rid="1" ctype="bold">{}</bpt>new house<ept id="2" rid="1">{}</ept> is \
big<x id="3"/>.</source>
<target xml:space="preserve"></target>
</trans-unit>
<trans-unit id="2" mq:status="ManuallyConfirmed">
<source xml:space="preserve">Yes</source>
<target xml:space="preserve">Igen</target>
</trans-unit>
<trans-unit id="3" mq:status="NotStarted" mq:locked="locked">
<source xml:space="preserve">A locked word</source>
<target xml:space="preserve"></target>
</trans-unit>
</body>
</file>
</xliff>
""",
    ),
    "Phrase": Shape(
        "x:0 x:1 x:3",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns:m="http://www.memsource.com/mxlf/2.0" xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2" \
m:version="2.4" m:level="1">
  <file original="a.docx" source-language="en" target-language="de" m:task-id="x" m:file-format="doc">
    <body>
      <group id="0" m:para-id="0">
        <context-group><context context-type="x-key">title</context></context-group>
        <trans-unit id="x:0" m:confirmed="0" m:locked="false" m:level-edited="false">
          <source>{1&gt;Click {b&gt;here&lt;b}&lt;1} to go {2}on &lt;3}</source>
          <target></target>
          <alt-trans origin="machine-trans"><target>Klicken</target></alt-trans>
          <m:tunit-metadata><m:mark id="1"><m:type>code</m:type><m:content>&lt;a&gt;</m:content></m:mark>\
</m:tunit-metadata>
        </trans-unit>
        <trans-unit id="x:1" m:confirmed="0"><source>Plain text</source><target/></trans-unit>
        <trans-unit id="x:2" m:confirmed="0" m:locked="true"><source>Locked text</source><target/></trans-unit>
        <trans-unit id="x:3" m:confirmed="0"><source>The {1&gt;&lt;1}end <x id="1" a="{1&gt;"/>of it</source>\
<target/></trans-unit>
      </group>
    </body>
  </file>
</xliff>
""",
    ),
    "Drupal": Shape(
        "1][title][0][value 1][body][0][value",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
 <file original="xliff-core-1.2-strict.xsd" source-language="en" target-language="de" datatype="plaintext" date="2020">
  <header>
   <phase-group>
    <phase tool-id="tmgmt" phase-name="extraction" process-name="extraction" job-id="1"/>
   </phase-group>
   <tool tool-id="tmgmt" tool-name="Drupal Translation Management Tools"/>
  </header>
  <body>
   <group id="1" restype="x-tmgmt-item">
    <note>An article</note>
    <trans-unit id="1][title][0][value" resname="1][title][0][value">
     <source xml:lang="en"><![CDATA[Our new site]]></source>
     <target xml:lang="de"><![CDATA[]]></target>
     <note>Title</note>
    </trans-unit>
    <trans-unit id="1][body][0][value">
     <source xml:lang="en"><bpt id="1" ctype="x-html">&lt;p&gt;</bpt>Read <ph id="2" ctype="x-br">&lt;br /&gt;</ph>it \
soon.<ept id="1" ctype="x-html">&lt;/p&gt;</ept></source>
     <target xml:lang="de"/>
    </trans-unit>
   </group>
  </body>
 </file>
</xliff>
""",
    ),
    "Plone, blank targets and languages": Shape(
        "1",
        """<xliff version='1.2'
       xmlns='urn:oasis:names:tc:xliff:document:1.2'>
<file original="/a" oid="x" source-language="en" target-language="">
<body>
<group>
    <trans-unit id="1">
        <source xml:lang='en'>
        The <b class='a>b'>front</b> page
        </source>
        <target>
        </target>
    </trans-unit>
</group>
</body>
</file>
</xliff>
""",
    ),
    "Business Central": Shape(
        "Table 1 - Property 2",
        first(
            """      <group id="body">
        <trans-unit id="Table 1 - Property 2" size-unit="char" translate="yes" xml:space="preserve">
          <source>Do you want to post %1 lines?\\\\Choose a date.</source>
          <note from="Developer" annotates="general" priority="2"/>
          <note from="Xliff Generator" annotates="general" priority="3">Table A</note>
        </trans-unit>
        <trans-unit id="x" translate="no" maxwidth="20"><source>Locked text</source></trans-unit>
      </group>""",
            'datatype="xml" source-language="en-US" target-language="da-DK" original="App"',
        ),
    ),
    "prefixed elements": Shape(
        "a",
        """<?xml version='1.0' encoding='UTF-8'?>
<xlf:xliff xmlns:xlf='urn:oasis:names:tc:xliff:document:1.2' version='1.2'>
 <xlf:file source-language='en' datatype='x-po' original='a.po'>
  <xlf:body>
   <xlf:trans-unit id='a'>
    <xlf:source>The <xlf:g id='1'>open</xlf:g> door</xlf:source>
   </xlf:trans-unit>
  </xlf:body>
 </xlf:file>
</xlf:xliff>
""",
    ),
    "groups that are not translated": Shape(
        "b",
        first("""      <group id="g" translate="no">
        <trans-unit id="a"><source>Internal name</source></trans-unit>
        <trans-unit id="b" translate="yes"><source>Public name</source></trans-unit>
      </group>"""),
    ),
    "protected text": Shape(
        "a b",
        first("""      <trans-unit id="a"><source>Start <mrk mtype="protected">Word Pad</mrk> now</source></trans-unit>
      <trans-unit id="b"><source>The <mrk mtype="term">big cat</mrk> and <mrk mtype="x-its" translate="no">Acme\
</mrk></source></trans-unit>
      <trans-unit id="c"><source><mrk mtype="protected">Only this</mrk></source></trans-unit>"""),
    ),
    "overlapping ranges": Shape(
        "a",
        first("""      <trans-unit id="a"><source>One <bx id="1" rid="x"/>two <bx id="2" rid="y"/>three<ex id="3" \
rid="x"/> \
four<ex id="4" rid="y"/> five <ex id="5" rid="z"/></source></trans-unit>"""),
    ),
    "sub-flows": Shape(
        "a",
        first("""      <trans-unit id="a"><source>See <ph id="1">&lt;a title="<sub>The <ph id="2">x</ph> title\
</sub>"&gt;</ph>\
the page<it id="4" pos="close">&lt;/a&gt;</it> now</source></trans-unit>"""),
    ),
    "references and spaces": Shape(
        "a b",
        first("""      <trans-unit id="a"><source>Terms &amp; &quot;more&quot; \
&lt;b&gt;&#169;&#xA0;2020&#10;Second&#x9;line</source></trans-unit>
      <trans-unit id="b"><source>  Tea &#8212; it&apos;s hot  </source></trans-unit>
      <trans-unit id="c"><source>12 &lt; 13 &amp; 14</source></trans-unit>"""),
    ),
    "comments and processing instructions": Shape(
        "a",
        first("""      <!-- <trans-unit id="z"><source>No</source></trans-unit> -->
      <?pi <source>No</source> ?>
      <trans-unit id="a"><!-- before --><source>The <!--> not <here> -->red <?x a > b ?>car</source><!-- after -->\
</trans-unit>"""),
    ),
    "2.0, states": Shape(
        "s1 s2 s4",
        second(
            """    <unit id="1">
      <segment id="s1" state="initial"><source>First part. </source></segment>
      <ignorable><source> </source></ignorable>
      <segment id="s2" state="initial" subState="my:new"><source>Second part.</source><target>Second part.</target>\
</segment>
      <segment id="s3" state="reviewed"><source>Third part.</source><target>Dritter Teil.</target></segment>
      <segment id="s4" canResegment="no"><source>Fourth part.</source><target/></segment>
      <segment id="s5" state="final"><source>Fifth</source><target></target></segment>
    </unit>""",
            'version="2.1" srcLang="en" trgLang="de"',
        ),
    ),
    "2.0, original data and spanning codes": Shape(
        "1",
        second("""    <group id="g"><unit id="1" canResegment="no">
      <originalData>
        <data id="d1">&lt;b&gt;</data>
        <data id="d2">&lt;/b&gt;</data>
      </originalData>
      <segment>
        <source>Read <sc id="1" dataRef="d1"/>the whole <sm id="m1" type="term"/>text<ec startRef="1" dataRef="d2"/> \
today<em startRef="m1"/><cp hex="001A"/>, please.</source>
      </segment>
    </unit></group>"""),
    ),
    "2.0, modules": Shape(
        "1",
        second("""    <unit id="1">
      <mtc:matches xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0">
        <mtc:match ref="#m1"><source>Good day</source><target>Guten Tag</target></mtc:match>
      </mtc:matches>
      <segment>
        <source><mrk id="m1" type="mtc:match">Good day</mrk>, <mrk id="m2" translate="no">Acme</mrk> team</source>
      </segment>
    </unit>
    <unit id="2" translate="no"><segment><source>Not this</source></segment></unit>"""),
    ),
    "2.0, spaces": Shape(
        "1",
        second("""    <unit id="1">
      <segment>
        <source xml:space="preserve">One line
Another line</source>
      </segment>
    </unit>"""),
    ),
    "2.0, prefixed": Shape(
        "1",
        """<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><x:file id="f">\
<x:unit id="1">\
<x:segment><x:source>A <x:pc id="1">green</x:pc> tree</x:source></x:segment></x:unit></x:file></x:xliff>""",
    ),
    "Windows line ends": Shape(
        "a",
        first("""      <trans-unit id="a">
        <source>The first line
and the second.</source>
      </trans-unit>""").replace("\n", "\r\n"),
    ),
    "several files": Shape(
        "a c",
        """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en" \
datatype="plaintext"><body><trans-unit id="a"><source>In the first file</source></trans-unit></body></file>\
<file original="b" source-language="en" datatype="plaintext"><body><trans-unit id="b"><source>Done</source>\
<target>Fertig</target></trans-unit></body></file><file original="c" source-language="en" target-language='de' \
datatype="plaintext"><body><trans-unit id="c"><source>In the third file</source><target state='new' /></trans-unit>\
</body></file></xliff>""",
    ),
    "po2xliff, plurals": Shape(
        "1[0] 1[1]",
        first("""      <group id="1" restype="x-gettext-plurals">
        <trans-unit id="1[0]" xml:space="preserve" approved="no">
          <source>%d file was removed</source>
          <target xml:space="preserve" state="needs-translation"/>
          <context-group name="po-reference" purpose="location"><context context-type="sourcefile">a.c</context>\
</context-group>
        </trans-unit>
        <trans-unit id="1[1]" xml:space="preserve"><source>%d files were removed</source></trans-unit>
      </group>"""),
    ),
    "OmegaT": Shape(
        "0",
        first(
            """      <trans-unit id="0"><source xml:lang="en">Choose <x id="1" ctype="x-f0"/>a color</source>\
</trans-unit>
      <trans-unit id="1"><source xml:lang="en">Red</source><target xml:lang="de">Rot</target></trans-unit>
      <trans-unit id="2"><source xml:lang="en">Blue</source><target state="signed-off" xml:lang="de"></target>\
</trans-unit>""",
            'original="a" source-language="EN" target-language="DE" datatype="x-application/x-omegat"',
        ),
    ),
    "TYPO3 1.0": Shape(
        "tab.one",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns:t3="http://typo3.org/schemas/xliff" version="1.0">
  <file t3:id="1700000001" source-language="en" datatype="plaintext" original="messages" product-name="shop">
    <header/>
    <body>
      <trans-unit id="tab.one" resname="tab.one">
        <source>The first page</source>
      </trans-unit>
      <trans-unit id="sites" resname="sites" xml:space="preserve" approved="yes">
        <source><![CDATA[There are <strong>%s pages</strong>.]]></source>
        <target><![CDATA[Es gibt <strong>%s Seiten</strong>.]]></target>
      </trans-unit>
    </body>
  </file>
</xliff>
""",
    ),
    "no version, but a namespace": Shape(
        "hi cats",
        """<?xml version='1.0' encoding='UTF-8'?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.1">
    <file>
        <body>
            <trans-unit id="hi">
                <source xml:space="preserve">Hello there!
</source>
            </trans-unit>
            <trans-unit id="cats">
                <source xml:space="preserve">There are <x id="c" equiv-text="{{count}}"/> cats.
</source>
            </trans-unit>
            <trans-unit id="codes">
                <source><x id="c" equiv-text="{{count}}"/><x id="u" equiv-text="{{unit}}"/></source>
            </trans-unit>
        </body>
    </file>
</xliff>
""",
    ),
    "Xcode, plural forms": Shape(
        "/cats:dict/n:dict/one:dict/:string /cats:dict/n:dict/other:dict/:string",
        first(
            """      <trans-unit id="/cats:dict/NSStringLocalizedFormatKey:dict/:string" xml:space="preserve">
        <source>%#@n@</source>
        <target>%#@n@</target>
        <note/>
      </trans-unit>
      <trans-unit id="/cats:dict/n:dict/one:dict/:string" xml:space="preserve">
        <source>There is %d cat.
</source>
      </trans-unit>
      <trans-unit id="/cats:dict/n:dict/other:dict/:string" xml:space="preserve">
        <source>There are %d cats.
</source>
      </trans-unit>""",
            'original="App/en.lproj/Localizable.stringsdict" datatype="plaintext" source-language="en"',
        ),
    ),
    "Contao 1.1": Shape(
        "MOD.news.0 MOD.news.1",
        """<?xml version="1.0" ?><xliff version="1.1">
  <file datatype="php" original="contao/languages/en/modules.php" source-language="en">
    <body>
      <trans-unit id="MOD.news.0">
        <source>Our news</source>
      </trans-unit>
      <trans-unit id="MOD.news.1">
        <source>Write short news with &quot;dates&quot; here</source>
      </trans-unit>
    </body>
  </file>
</xliff>""",
    ),
    "OpenTM2 1.1": Shape(
        "2",
        """<?xml version="1.0" encoding="UTF-8" ?>

<xliff version="1.1" xmlns="urn:oasis:names:tc:xliff:document:1.1" xmlns:tmgr="http://www.ibm.com">
  <file datatype="plaintext" original="a.html" source-language="en-US" target-language="de-DE" tool="OpenTM2">
    <header>
      <tmgr:properties>
        <tmgr:folder>GUIDE</tmgr:folder>
        <tmgr:sourcelang>English(U.S.)</tmgr:sourcelang>
      </tmgr:properties>
    </header>
    <body>
      <trans-unit id="1" translate="yes" tmgr:segstatus="XLATED" tmgr:matchratio="100">
        <source>The guide</source>
        <target state="translated">Die Anleitung</target>
      </trans-unit>
      <trans-unit id="2" translate="yes">
        <source>Install the <bpt id="1" rid="1">&lt;b&gt;</bpt>new server<ept id="2" \
rid="1">&lt;/b&gt;</ept> first</source>
        <target state="needs-translation">Install</target>
      </trans-unit>
    </body>
  </file>
</xliff>
""",
    ),
    "2.2, plural forms": Shape(
        "cats_1 cats_other",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.2" xmlns:pgs="urn:oasis:names:tc:xliff:pgs:1.0" version="2.2" \
srcLang="en" trgLang="cs">
  <file id="f1">
    <!-- One segment for each form -->
    <unit id="cats" pgs:switch="plural:cat_count">
      <segment id="cats_0" pgs:case="0" state="final">
        <source>You have no cat.</source>
        <target>Nula</target>
      </segment>
      <segment id="cats_1" pgs:case="1">
        <source>You have one cat.</source>
      </segment>
      <segment id="cats_other" pgs:case="other">
        <source>You have <ph id="1" disp="cat_count"/> cats.</source>
      </segment>
    </unit>
  </file>
</xliff>
""",
    ),
    "Smartcat, on a single line": Shape(
        "31 33",
        """<?xml version="1.0" encoding="utf-8"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\
<file datatype="plaintext" date="2020-07-16T11:43:13.4791597Z" original="21_25" source-language="en" \
target-language="ru"><header><tool tool-name="Smartcat.ai" tool-id="40c7" tool-version="2.70.1.141" /></header><body>\
<trans-unit id="31" approved="no"><source xml:space="preserve">We met <x id="1" ctype="x-smartcat" /> times</source>\
<target state="new" xml:space="preserve"></target></trans-unit><trans-unit id="32" translate="no" approved="yes">\
<source xml:space="preserve">A song</source><target state="translated" xml:space="preserve">X</target></trans-unit>\
<trans-unit id="33" approved="no" maxwidth="10" size-unit="char"><source xml:space="preserve">What is <g id="1" \
ctype="x-smartcat">new</g>?</source><target xml:space="preserve" /></trans-unit></body></file></xliff>""",
    ),
    "Crowdin": Shape(
        "47 49",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file id="57" original="/app.pot" source-language="en" target-language="cs" datatype="plaintext" project-id="3">
    <body>
      <trans-unit id="47" identifier="9b8e">
        <source>A new update</source>
        <target state="needs-translation">A new update</target>
        <note>Context: #: src/ui.cpp:325
Screenshot: https://example.org/s?t=47</note>
      </trans-unit>
      <trans-unit id="48" approved="yes">
        <source>Skip it</source>
        <target state="final">Přeskočit</target>
      </trans-unit>
      <trans-unit id="49" resname="x">
        <source>Tea &amp; bread</source>
        <target state="needs-translation">Tea &amp; bread</target>
        <note>First note</note>
        <note>Second note</note>
      </trans-unit>
    </body>
  </file>
</xliff>
""",
    ),
    "memoQ, tab codes and matches": Shape(
        "2",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:mq="MQXliff" version="1.2">
  <file original="a.idml" mq:id="18" source-language="de" target-language="en-us" datatype="x-chained">
    <header>
      <tool tool-id="MQ" tool-name="MemoQ" tool-version="9.0.18" tool-company="Kilgray"/>
      <mq:docinformation mq:docname="a.idml">
        <mq:tagdefinition caseinsensitive="false">
          <mq:tagdefelement name="tab" placeholder="false" tagrequired="Normal"/>
        </mq:tagdefinition>
        <mq:lqamodel><![CDATA[any <b>]]></mq:lqamodel>
      </mq:docinformation>
    </header>
    <body>
      <trans-unit id="1" mq:status="ManuallyConfirmed" mq:percent="100" mq:maxlengthchars="-1">
        <source xml:space="preserve" mq:segpart="1" mq:hasfollowingobject="hasfollowingobject">Ein Garten</source>
        <target xml:space="preserve">A garden</target>
        <mq:minorversions/>
      </trans-unit>
      <trans-unit id="2" mq:status="NotStarted" mq:percent="0">
        <source xml:space="preserve">Ein <ph id="1">&lt;mq:ch val="&#x9;" /&gt;</ph>gelbes Blatt</source>
        <target xml:space="preserve"></target>
        <mq:startingws xml:space="preserve"> </mq:startingws>
        <mq:endingws xml:space="preserve"/>
        <mq:comments><mq:comment id="7">Welches Blatt?</mq:comment></mq:comments>
        <mq:insertedmatch matchtype="1" source="tm"><source>Ein Blatt</source><target>A leaf</target></mq:insertedmatch>
      </trans-unit>
    </body>
  </file>
</xliff>
""",
    ),
    "Trados, comments and tracked changes": Shape(
        "5a/1 5a/2",
        """\ufeff<?xml version="1.0" encoding="utf-8"?><xliff xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0" \
xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2" sdl:version="1.0"><file original="a.docx" \
datatype="x-sdlfilterframework2" source-language="en-GB" target-language="de-DE"><header><reference><internal-file \
form="base64">UEsDBA==</internal-file></reference><tag-defs xmlns="http://sdl.com/FileTypes/SdlXliff/1.0"><tag id="4">\
<bpt name="cf" can-hide="true">&lt;cf bold="on"&gt;</bpt><bpt-props><value key="b">on</value></bpt-props><ept \
name="cf">&lt;/cf&gt;</ept></tag></tag-defs></header><body><trans-unit id="5a"><source><g id="4">Two words <mrk \
mtype="x-sdl-comment" sdl:cid="36">with a note</mrk>.</g> A word <mrk mtype="x-sdl-added" sdl:revid="6d">more</mrk>.\
</source><seg-source><g id="4"><mrk mtype="seg" mid="1">Two words <mrk mtype="x-sdl-comment" sdl:cid="36">with a note\
</mrk>.</mrk></g> <mrk mtype="seg" mid="2">A word <mrk mtype="x-sdl-added" sdl:revid="6d">more</mrk>.</mrk>\
</seg-source><target><g id="4"><mrk mtype="seg" mid="1"/></g> <mrk mtype="seg" mid="2"/></target><sdl:seg-defs>\
<sdl:seg id="1" conf="Draft" origin="source"><sdl:prev-origin origin="tm"/><sdl:value key="Hash">1</sdl:value>\
</sdl:seg><sdl:seg id="2"/></sdl:seg-defs></trans-unit></body></file></xliff>""",
    ),
    "Across": Shape(
        "01",
        first("""      <trans-unit id="01" ax:state-name="Untouched" ax:state-id="0" ax:state-flags="0" \
xmlns:ax="AcrossXliff">
        <source><bpt id="1" rid="1" ax:s-id="11" ax:s-is-base-style="True" ax:s-font-size="7.5" /><bpt id="3" rid="2" \
ax:s-id="3" />Read the <ph id="5" ax:element-id="6000">ACME</ph> guide first.<ept id="4" rid="2" /><ept id="2" \
rid="1" /></source>
        <target></target>
        <context-group>
          <context context-type="x-xpath">a.xml/Story[@Self="u1"]/Range[3]</context>
        </context-group>
      </trans-unit>"""),
    ),
    "i18next, parameters between line breaks": Shape(
        "basic",
        first("""      <trans-unit id="basic">
        <source>
          <ph id="name" ctype="x-i18next-param">{{name}}</ph> is now
          <ph id="how" ctype="x-i18next-param" equiv-text="how">{{how}}</ph>
        </source>
        <target></target>
      </trans-unit>"""),
    ),
    "WorldServer, codes with line breaks": Shape(
        "35",
        first("""      <trans-unit id="35" datatype="x-text/x-4cb" restype="string">
        <source>
          <ph id="59" x="&lt;endcmp/>">{59}</ph>
          <ph id="60" x="&lt;span class=&quot;a&quot;>">
            {60}
          </ph>
          Choose the language
          <ph id="61" x="&lt;/span>">{61}</ph>
        </source>
        <iws:segment-metadata xmlns:iws="http://www.idiominc.com/ws/asset"><iws:status target_content="untranslated"/>\
</iws:segment-metadata>
      </trans-unit>"""),
    ),
    "dotnet, notes and states": Shape(
        "Help Fresh",
        """<?xml version="1.0" encoding="utf-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
version="1.2" xsi:schemaLocation="urn:oasis:names:tc:xliff:document:1.2 xliff-core-1.2-transitional.xsd">
  <file datatype="xml" source-language="en" target-language="de" original="../Resources.resx">
    <body>
      <trans-unit id="Help">
        <source>Show help for '{0}'.
{StrBegin="Help: "}</source>
        <target state="new">Show help for '{0}'.
{StrBegin="Help: "}</target>
        <note>{0} is a command</note>
      </trans-unit>
      <trans-unit id="Known">
        <source>A known command</source>
        <target state="translated">Ein bekannter Befehl</target>
        <note />
      </trans-unit>
      <trans-unit id="Old">
        <source>Changed in the code</source>
        <target state="needs-review-translation">Vorher</target>
        <note></note>
      </trans-unit>
      <trans-unit id="Fresh">
        <source>A fresh command</source>
        <target state="new">A fresh command</target>
        <note />
      </trans-unit>
    </body>
  </file>
</xliff>""",
    ),
    "Neos": Shape(
        "copy",
        first(
            """      <trans-unit id="copy" xml:space="preserve">
        <source>Copy {source} to {target}</source>
        <target xml:lang="ar" state="needs-translation">Copy {source} to {target}</target>
      </trans-unit>
      <trans-unit id="insert" xml:space="preserve">
        <source>Insert it</source>
        <target xml:lang="ar" state="translated">X</target>
      </trans-unit>""",
            'original="" product-name="Neos.Neos.Ui" source-language="en" datatype="plaintext" target-language="ar"',
        ),
    ),
    "Qt, ids and no targets": Shape(
        "languages.bg",
        first(
            """      <trans-unit id="languages.bg" xml:space="preserve">
        <source>The Bulgarian language</source>
      </trans-unit>
      <trans-unit id="languages.code" xml:space="preserve" translate="no">
        <source>bg</source>
      </trans-unit>""",
            'original="../src/ui/View.qml" datatype="plaintext" source-language="en" target-language="en"',
        ),
    ),
    "Okapi, segments on lines of their own": Shape(
        "NF-tu1/0 NF-tu1/1",
        """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2"
       xmlns="urn:oasis:names:tc:xliff:document:1.2"
       xmlns:okp="okapi-framework:xliff-extensions"
       xmlns:its="http://www.w3.org/2005/11/its"
       its:version="2.0">
    <file original="word/document.xml" source-language="en" target-language="id" datatype="x-undefined" \
okp:inputEncoding="UTF-8">
        <body>
            <trans-unit id="NF-tu1" xml:space="preserve">
\t\t\t\t<source xml:lang="en">A short note. It has two parts.</source>
                <seg-source>
\t\t\t\t\t<mrk mid="0" mtype="seg">A short note.</mrk>
                    <mrk mid="1" mtype="seg"> It has two parts.</mrk>
\t\t\t\t</seg-source>
                <target xml:lang="id">
\t\t\t\t\t<mrk mid="0" mtype="seg"></mrk>
                    <mrk mid="1" mtype="seg"/>
\t\t\t\t</target>
\t\t\t</trans-unit>
        </body>
    </file>
</xliff>
""",
    ),
    "Okapi, codes with end tags": Shape(
        "7",
        first("""      <trans-unit id="7"><source xml:lang="en"><x ctype="x-x" equiv-text="&lt;run1/&gt;" id="1"></x>\
<bx ctype="x-empty" equiv-text="&lt;run2&gt;" id="2"></bx>A first <g id="3">note</g>.<x id="4"></x><ex id="2"></ex>\
</source><seg-source><x ctype="x-x" equiv-text="&lt;run1/&gt;" id="1"></x><bx ctype="x-empty" \
equiv-text="&lt;run2&gt;" id="2"></bx><mrk mid="1" mtype="seg">A first <g id="3">note</g>.</mrk><x id="4"></x>\
<ex id="2"></ex></seg-source><target xml:lang="id"><mrk mid="1" mtype="seg"></mrk></target></trans-unit>"""),
    ),
    "2.0, groups in groups with metadata": Shape(
        "title p",
        second("""    <group id="d" name="document">
      <mda:metadata xmlns:mda="urn:oasis:names:tc:xliff:metadata:2.0">
        <mda:metaGroup category="XMLattribute">
          <mda:meta type="status">draft</mda:meta>
        </mda:metaGroup>
      </mda:metadata>
      <group id="s" name="section">
        <unit id="title" name="title"><segment><source>Fish of the sea</source></segment></unit>
        <unit id="empty" name="subHeading"><segment><source></source></segment></unit>
        <unit id="p">
          <originalData>
            <data id="d1">&lt;strong&gt;</data>
            <data id="d2">&lt;/strong&gt;</data>
          </originalData>
          <segment>
            <source>There are many <pc id="1" canCopy="no" canDelete="no" dataRefEnd="d2" dataRefStart="d1" \
subType="xlf:b" type="fmt">small</pc> fish. They
            like warm water.</source>
          </segment>
        </unit>
      </group>
    </group>"""),
    ),
    "2.0, change tracking and size restriction": Shape(
        "1",
        second(
            """    <slr:profiles xmlns:slr="urn:oasis:names:tc:xliff:sizerestriction:2.0" \
generalProfile="xliff:codepoints"/>
    <unit id="1" slr:sizeRestriction="40" xmlns:slr="urn:oasis:names:tc:xliff:sizerestriction:2.0">
      <ctr:changeTrack xmlns:ctr="urn:oasis:names:tc:xliff:changetracking:2.0">
        <ctr:revisions appliesTo="target"><ctr:revision><ctr:item property="content">Alt</ctr:item></ctr:revision>\
</ctr:revisions>
      </ctr:changeTrack>
      <notes><note id="n1" appliesTo="source">A note</note></notes>
      <segment canResegment="no">
        <source>The sum of <ph id="1" canReorder="firstNo" subType="xlf:var" type="ui"/> and \
<sc id="2" isolated="yes" canOverlap="yes"/>more</source>
        <target></target>
      </segment>
    </unit>
    <unit id="2">
      <segment state="translated"><source>A part</source><target order="1">Ein Teil</target></segment>
    </unit>""",
        ),
    ),
    "finished": Shape(
        "",
        first("""      <trans-unit id="a"><source>Cat</source><target>Katze</target></trans-unit>
      <trans-unit id="b"><source>1.5</source></trans-unit>
      <trans-unit id="c"><source>{name}</source><target/></trans-unit>
      <trans-unit id="d"><source>Dog</source><target><![CDATA[Hund]]></target></trans-unit>"""),
    ),
}
