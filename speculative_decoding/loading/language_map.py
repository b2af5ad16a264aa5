"""Maps the names that models, files and people use for languages: eng_Latn, en_XX, en-US, <2en>, English."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ..models.speech_languages import CODES, NAMES, code_of_language
from .tokenizer_base import Vocabulary

TAG = re.compile(r"<2([A-Za-z]{2,3}(?:_[A-Za-z]+)?)>|>>([A-Za-z]{2,3}(?:_[A-Za-z]+)?)<<")  # MADLAD, multilingual Marian
# Three-letter codes (ISO 639-2 and 639-3, including individual languages that stand for their macrolanguage) and former
# codes -> two-letter code
words = str.split
SHORT = dict(
    pair.split(":")
    for pair in words("""
aar:aa abk:ab afr:af aka:ak twi:ak alb:sq als:sq sqi:sq amh:am ara:ar arb:ar arg:an arm:hy hye:hy asm:as ava:av aym:ay
ayr:ay aze:az azj:az bak:ba bam:bm baq:eu eus:eu bel:be ben:bn bis:bi bod:bo tib:bo bos:bs bre:br bul:bg bur:my mya:my
cat:ca ces:cs cze:cs cha:ch che:ce chi:zh zho:zh cmn:zh chv:cv cor:kw cos:co cre:cr cym:cy wel:cy dan:da deu:de ger:de
div:dv dut:nl nld:nl dzo:dz ell:el gre:el eng:en epo:eo est:et ekk:et ewe:ee fao:fo fas:fa per:fa pes:fa fij:fj fin:fi
fra:fr fre:fr fry:fy ful:ff fuv:ff geo:ka kat:ka gla:gd gle:ga glg:gl glv:gv grn:gn guj:gu hat:ht hau:ha heb:he iw:he
her:hz hin:hi hmo:ho hrv:hr hun:hu ibo:ig ice:is isl:is ido:io iku:iu ind:id in:id ita:it jav:jv jw:jv jpn:ja kal:kl
kan:kn kas:ks kau:kr knc:kr kaz:kk khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku kmr:ku lao:lo lat:la
lav:lv lvs:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg mac:mk mkd:mk mah:mh mal:ml mao:mi mri:mi mar:mr may:ms msa:ms
zsm:ms mlg:mg plt:mg mlt:mt mon:mn khk:mn nau:na nav:nv nde:nd nbl:nr ndo:ng nep:ne npi:ne nno:nn nob:no nb:no nor:no
nya:ny oci:oc oji:oj ori:or ory:or orm:om gaz:om oss:os pan:pa pli:pi pol:pl por:pt pus:ps pbt:ps que:qu quy:qu roh:rm
ron:ro rum:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slo:sk slv:sl sme:se smo:sm sna:sn snd:sd som:so sot:st spa:es
srd:sc srp:sr ssw:ss sun:su swa:sw swh:sw swe:sv tah:ty tam:ta tat:tt tel:te tgk:tg tgl:tl fil:tl tha:th tir:ti ton:to
tsn:tn tso:ts tuk:tk tur:tr uig:ug ukr:uk urd:ur uzb:uz uzn:uz ven:ve vie:vi vol:vo wln:wa wol:wo xho:xh yid:yi ydd:yi
ji:yi yor:yo zha:za zul:zu
""")
)
ALIASES = {"zt": "zh-hant", "pb": "pt-br"}  # codes that only LibreTranslate uses
USUAL_SCRIPTS = {"zh": "hans"}  # language -> script, for codes that name none (CLDR's likely subtags)
CHINESE_SCRIPTS = {"tw": "hant", "hk": "hant", "mo": "hant", "cn": "hans", "sg": "hans"}
NO_REGION = ("xx", "zz")
INTO = ("to", "into")
KNOWN_CODES = NAMES.keys() | SHORT.keys() | set(SHORT.values())
# Languages that are written in several scripts, so their tags include the script.
SEVERAL_SCRIPTS = {"zh", "sr", "uz", "az", "pa", "ks", "kr", "ku", "ace", "bjn", "min", "taq"}


class Language(NamedTuple):
    """A language with its script and region, all in lower case. An unknown script or region is empty."""

    code: str
    script: str = ""
    region: str = ""

    def includes(self, other: Language) -> bool:
        """Whether texts in the other language can be used for this one: en includes en-US, and en-US includes en."""
        return self.code == other.code and (self.script == other.script or not (self.script and other.script))

    @property
    def usual_script(self) -> str:
        """The language's script, or else the one in which it is usually written. Empty if neither is known."""
        return self.script or USUAL_SCRIPTS.get(self.code, "")


def language_of(name: str) -> Language:
    """Parse a language name. An unknown name is treated as a separate language."""
    name = name.strip().strip("_").lower()
    name = ALIASES.get(name, name)
    first, *others = re.split("[-_]+", name)
    code = code_of_language(first if others else name)
    script = next((each for each in others if len(each) == 4 and each.isalpha()), "")
    regions = (each for each in others if re.fullmatch("[a-z]{2}|[0-9]{3}", each) and each not in NO_REGION)
    region = next(regions, "")
    code = SHORT.get(code, code)
    if code == "zh" and not script:
        script = CHINESE_SCRIPTS.get(region, "")
    return Language(code, script, region)


def language_tag(name: str) -> str:
    """Return a language's BCP 47 tag, as used in xml:lang: en for eng_Latn, zh-Hans for zho_Hans, pt-BR for pt_BR."""
    code, script, region = language_of(name)
    parts = (code, script.title() if code in SEVERAL_SCRIPTS else "", region.upper())
    return "-".join(part for part in parts if part)


def languages_named(prefix: str) -> tuple[str | None, str | None]:
    """Return the codes of the source and output languages that a prefix names, each None if it is not named.

    Names are recognized anywhere ("translate English to German: "), codes only in pairs ("en to de: ").
    """
    found = re.findall(r"\w+", prefix.lower())
    for source, between, target in zip(found, found[1:], found[2:], strict=False):
        if between in INTO and {source, target} <= KNOWN_CODES:
            return language_of(source).code, language_of(target).code
    named = [(before in INTO, CODES[word]) for before, word in pairwise(["", *found]) if word in CODES]
    source, target = (next((code for is_target, code in named if is_target == each), None) for each in (False, True))
    return source, target


def effective_languages(
    src_lang: str | None, tgt_lang: str | None, prefix: str, own: tuple[str | None, str | None]
) -> tuple[str | None, str | None]:
    """Return the source and output languages: the chosen ones, or else those that the prefix names, or else `own`."""
    source, target = languages_named(prefix)
    return src_lang or source or own[0], tgt_lang or target or own[1]


def matching_language(code: str, codes: Iterable[str]) -> str | None:
    """Return the tokenizer's code for the language of `code`, or None if the tokenizer has none.

    An identical code is preferred, then one with the same script (zho_Hant for zh-TW, zho_Hans for zh), then the first.
    """
    wanted = language_of(code)
    known = [each for each in codes if language_of(each).code == wanted.code]
    if code in known:
        return code

    def likeness(each: str) -> tuple[bool, bool]:
        language = language_of(each)
        return language.usual_script == wanted.usual_script, wanted.includes(language)

    return max(known, key=likeness, default=None)


def tag_language(piece: str) -> str | None:
    """Return the language code of a piece such as <2de> or >>deu<<, which selects the output language; else None."""
    match = TAG.fullmatch(piece.lstrip("▁"))
    return None if match is None else match[1] or match[2]


@lru_cache(4)  # a vocabulary may have 250,000 pieces, and a session calls this for each request
def language_tags(vocabulary: Vocabulary) -> dict[str, str]:
    """Return a vocabulary's language tags, keyed by language code."""
    tags = (piece.lstrip("▁") for piece in vocabulary.pieces.values() if "<" in piece)
    return {code: tag for tag in tags if (code := tag_language(tag)) is not None}
