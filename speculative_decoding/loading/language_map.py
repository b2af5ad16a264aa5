"""Finds the code of a language in another tokenizer: eng_Latn (NLLB), en (M2M-100), en_XX (mBART), <2en> (MADLAD)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from .tokenizer_base import Vocabulary

TAG = re.compile(r"<2([A-Za-z]{2,3}(?:_[A-Za-z]+)?)>|>>([A-Za-z]{2,3}(?:_[A-Za-z]+)?)<<")  # MADLAD, multilingual Marian
# ISO 639-3 -> ISO 639-1. Where a model has only one member of a macrolanguage, the member has the macrolanguage's code.
PAIRS = """
afr:af aka:ak als:sq amh:am ara:ar arb:ar asm:as aze:az azj:az bak:ba bam:bm bel:be ben:bn bod:bo bos:bs bul:bg cat:ca
ces:cs cmn:zh cym:cy dan:da deu:de dzo:dz ekk:et ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fil:tl
fin:fi fra:fr fry:fy fuv:ff gaz:om gla:gd gle:ga glg:gl grn:gn guj:gu hat:ht hau:ha heb:he hin:hi hrv:hr hun:hu hye:hy
ibo:ig ind:id isl:is ita:it jav:jv jpn:ja kan:kn kas:ks kat:ka kaz:kk khk:mn khm:km kik:ki kin:rw kir:ky kmr:ku knc:kr
kon:kg kor:ko kur:ku lao:lo lav:lv lim:li lin:ln lit:lt ltz:lb lug:lg lvs:lv mal:ml mar:mr mkd:mk mlg:mg mlt:mt mon:mn
mri:mi msa:ms mya:my nep:ne nld:nl nno:nn nob:no nor:no npi:ne nya:ny oci:oc orm:om ory:or pan:pa pbt:ps pes:fa plt:mg
pol:pl por:pt pus:ps quy:qu ron:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slv:sl smo:sm sna:sn snd:sd som:so sot:st
spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv swh:sw tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tir:ti tsn:tn
tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk urd:ur uzb:uz uzn:uz vie:vi wol:wo xho:xh ydd:yi yid:yi yor:yo zho:zh zsm:ms
zul:zu iw:he in:id jw:jv nb:no
"""
SHORT = dict(pair.split(":") for pair in PAIRS.split())


def language_of(code: str) -> str:
    """Return the ISO 639-1 code of a tokenizer's language code if there is one, else the code without its script."""
    base = re.split("[_-]", code)[0].lower()
    return SHORT.get(base, base)


def matching_language(code: str, codes: Iterable[str]) -> str | None:
    """Return which of a tokenizer's codes means the language of `code`; None if there is none.

    The same script is preferred (zho_Hant), otherwise the first code (zho_Hans for zh).
    """
    known = [each for each in codes if language_of(each) == language_of(code)]
    script = re.split("[_-]", code)[-1].lower()
    same = (each for each in known if re.split("[_-]", each)[-1].lower() == script)
    return next(same, known[0] if known else None)


def tag_language(piece: str) -> str | None:
    """Return the language code of a piece that tells a model its output language, as <2de> or >>deu<<; else None."""
    match = TAG.fullmatch(piece.lstrip("▁"))
    return None if match is None else match[1] or match[2]


@lru_cache(4)  # a vocabulary may have 250,000 pieces, and a session asks for each request
def language_tags(vocabulary: Vocabulary) -> dict[str, str]:
    """Return the tags of a vocabulary, by language code."""
    tags = (piece.lstrip("▁") for piece in vocabulary.pieces.values() if "<" in piece)
    return {code: tag for tag in tags if (code := tag_language(tag)) is not None}
