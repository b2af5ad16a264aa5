"""Write a tiny bpe.model, with the pieces and texts of Argos Translate's own tokenizer.

    pip install --no-deps argostranslate==1.11.1    (or a clone of its repository in PYTHONPATH)
    pip install sacremoses==0.2.0 subword-nmt==0.3.8 sentencepiece
    python make_argos_bpe.py

tests/parity/goldens/argos_bpe contains bpe.model, shared_vocabulary.txt and golden.json. For each pair of languages,
such as "en_de", the latter contains:

    texts       a list of [text, pieces, text of the pieces]
    decoded     a list of [random pieces, their text]
"""

import io
import json
import random
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subword_nmt.learn_bpe import learn_bpe

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens" / "argos_bpe"
PAIRS = ("en_de", "en_fr", "de_en", "cs_fi", "zh_ko", "en_cs", "it_ga")
CORPUS = """The quick brown fox jumps over the lazy dog . He said : &quot; I don &apos;t know . &quot; It costs $ 5.00 !
Das Haus ist groß . Er sagte , daß es nicht geht . Die Bücher sind teuer ( sehr teuer ) . Ça va ? Il n&apos; a pas .
the house is big and the houses are bigger , lower lowest newer newest wide wider widest
"""
TEXTS = [
    "The quick brown fox.",
    'He said: "I don\'t know."',
    "“Ça va ?” Il n'a pas l'eau.",
    "Das Haus (groß) kostet 5,00 € \u2013 sehr teuer…",
    "a & b < c > d | e [f]",
    "日本語 テスト 한국어",
    "  spaces\t and\nnewlines\u00a0",
    "...",
    "it's John's \"quoted 'inner'\" text",
    "x",
    " ",
    "50 % of $5, foo-bar http://a.b/c?d=e&f",
    "e-mail či-li 1.000,5 Dr. No. 7",
    "«\u00a0Bonjour\u00a0» \u201aa\u2018 `b` ''c''",
    "widest@@ lower @-@ &amp;",
]


def tokenizer_class() -> Any:
    """Import the class without the package's `__init__`, which needs its dependencies."""
    spec = find_spec("argostranslate")
    assert spec is not None and spec.submodule_search_locations is not None
    package = types.ModuleType("argostranslate")
    package.__path__ = [*spec.submodule_search_locations]
    sys.modules["argostranslate"] = package
    from argostranslate.tokenizer import BPETokenizer

    return BPETokenizer


def main() -> None:
    make = tokenizer_class()
    FOLDER.mkdir(exist_ok=True)
    learn_bpe(io.StringIO(CORPUS * 3), merges := io.StringIO(), 60, 1)
    (FOLDER / "bpe.model").write_text(merges.getvalue(), encoding="utf-8")
    tokenizers = {pair: make(FOLDER / "bpe.model", *pair.split("_")) for pair in PAIRS}
    # Some pieces are left out, and are unknown.
    known = sorted(
        {piece for each in tokenizers.values() for text in TEXTS for piece in each.encode(text)} - {"€", "7"}
    )
    (FOLDER / "shared_vocabulary.txt").write_text(
        "".join(f"{token}\n" for token in ["<blank>", "<unk>", "<s>", "</s>", *known]), encoding="utf-8"
    )
    rng = random.Random(0)
    golden = {}
    for pair, tokenizer in tokenizers.items():
        texts = [[text, pieces := tokenizer.encode(text), tokenizer.decode(pieces)] for text in TEXTS]
        runs = [rng.choices(known, k=rng.randint(1, 20)) for _ in range(20)]
        golden[pair] = {"texts": texts, "decoded": [[run, tokenizer.decode(run)] for run in runs]}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "golden.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
