"""Texts that reveal differences between tokenizers that agree on plain sentences. Used in conversion and tests."""

from __future__ import annotations

from collections.abc import Iterable

HARD_TEXTS = (
    "",
    " ",
    "   ",
    "The house is wonderful.",
    "UPPER Case, lower case and Title Case",
    "He does n't know , do n't you ? I 'm sure they 've 3 . 5 ! it 's ' so '",
    " leading",
    "trailing ",
    "  both  ends  and   runs    inside  ",
    "line\nbreaks\r\nof\rall\n\nkinds\n",
    "\n",
    "\ttabs\tand\x0bvertical\x0cfeeds\t",
    "naïve café — Ärger über Größe, İstanbul ßẞ",
    "e\u0301 a\u0308 o\u0302\u0323 combined, \u00e9 \u00e4 \u1ed9 composed, \u0301alone",
    "emoji 🎉, 👩\u200d👩\u200d👧, 🇩🇪, 👍🏽 and ❤\ufe0f.",
    "שלום עולם, مرحبا بالعالم \u202bright to left\u202c",
    "漢字とカナ 한국어 ㄱㅏ 这座房子很漂亮。 ｶﾞ",
    "हिन्दी ไทย தமிழ் ქართული",
    "control \x00\x01\x1f\x7f\x85 characters",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff joiners, soft\u00adhyphen",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space, line\u2028separator",
    "\uff26\uff35\uff2c\uff2c \uff57idth ﬁrst ½ ² ™ … № Ⅷ ㎏",
    "x_1 = foo(bar[0]) // 100,000.5 \\n %s {} <b>&amp;</b> a@b.c",
    "▁ is SpaceSymbol▁of ▁▁ pieces, <0x41><0xE4> of bytes, ## of words, Ġ and Ċ of bytes",
    "say </s> and <s>, <unk>, <pad>, <mask>, [SEP], [UNK], <extra_id_0>, <|endoftext|> or <bos>",
    ">>deu<< <2de> __de__ deu_Latn de_DE translate it",
    "\ufffd replaced \U0010ffff \ue000 private",
    "a" * 5000,
    "letters" * 40 + " " + "漢" * 300,
)


def texts_with(tokens: Iterable[str]) -> list[str]:
    """Return a text for each of these added tokens, which contains it between spaces and between letters."""
    return [f"a {token} b{token}c  {token}  d" for token in tokens]
