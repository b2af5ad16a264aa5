"""Compares names of languages as files, models and people write them: en-US, eng_Latn, en_XX, English."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import InputError, Name
from ..models.speech_languages import code_of_language

# Codes of three letters (ISO 639-2 and 639-3, with the members that stand for a macrolanguage) and former codes -> the
# code of two letters
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
CHINESE_SCRIPTS = {"tw": "hant", "hk": "hant", "mo": "hant", "cn": "hans", "sg": "hans"}
NO_REGION = ("xx", "zz")
MAX_SHOWN = 20


class Language(NamedTuple):
    """A language, and its script and region as far as they are known, in lower case."""

    code: str
    script: str = ""
    region: str = ""

    def includes(self, other: Language) -> bool:
        """Whether texts in the other language can be used for this one: en includes en-US, and the reverse."""
        return self.code == other.code and (self.script == other.script or not (self.script and other.script))


def language_of(name: str) -> Language:
    """Parse a name of a language. An unknown name is a language of its own."""
    name = name.strip().strip("_").lower()
    first, *others = re.split("[-_]+", name)
    code = code_of_language(first if others else name)
    script = next((each for each in others if len(each) == 4 and each.isalpha()), "")
    regions = (each for each in others if re.fullmatch("[a-z]{2}|[0-9]{3}", each) and each not in NO_REGION)
    region = next(regions, "")
    code = SHORT.get(code, code)
    if code == "zh" and not script:
        script = CHINESE_SCRIPTS.get(region, "")
    return Language(code, script, region)


def closeness(wanted: str, name: str) -> int:
    """Return how well a text's language fits the wanted one: 0 if not at all, more for the same region or name."""
    one, other = language_of(wanted), language_of(name)
    if not one.includes(other):
        return 0
    return 1 + (one.region == other.region) + (wanted.lower() == name.lower())


def choose_languages(found: Iterable[str], source: str | None, target: str | None, said: str | None) -> tuple[str, str]:
    """Return the languages of sources and targets in a file.

    Args:
        found: The names of the languages in the file.
        source: The wanted language of the sources, if there is one.
        target: The wanted language of the targets, if there is one.
        said: The language of the sources according to the file.

    Raises:
        InputError: They are unknown, or the file lacks one of them.
    """
    found = sorted(set(found))
    for name, wanted in (("src_lang", source), ("tgt_lang", target)):
        if wanted is not None and not any(closeness(wanted, each) for each in found):
            raise InputError(
                f"has no texts in {wanted}, only in {listed(found)}", "memory", ("name another ", Name(name))
            )
    different = [each for number, each in enumerate(found) if not any(closeness(each, b) for b in found[:number])]
    if source is None and target is None and said is not None:
        source = next((each for each in different if closeness(said, each)), None)
    if len(different) == 2:
        if source is None and target is not None:
            source = next((each for each in different if not closeness(target, each)), None)
        elif target is None and source is not None:
            target = next((each for each in different if not closeness(source, each)), None)
    if source is None or target is None:
        problem = (
            f"has texts in {listed(found)}"
            if len(different) != 2
            else (f"does not say which of its languages {listed(found)} is that of the sources")
        )
        raise InputError(problem, "memory", ("name ", Name("src_lang"), " and ", Name("tgt_lang")))
    return source, target


def listed(names: Sequence[str]) -> str:
    if not names:
        return "no language"
    more = f", ... ({len(names)} languages)" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
