"""Write transcript_formats.json: synthetic transcripts, and the files that openai-whisper writes for them.

Requires the source distribution of openai-whisper 20250625: `python tools/goldens/make_transcript_formats.py
openai_whisper-20250625/whisper/utils.py`. torch is not required.
"""

import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"max_line_width": 17},
    {"max_line_width": 17, "max_line_count": 1},
    {"max_line_width": 17, "max_line_count": 2},
    {"max_words_per_line": 1},
    {"max_words_per_line": 3},
]
NARROW = {"max_line_width": 8, "max_line_count": 2}
EVERY = [("srt", layout | marked) for layout in LAYOUTS for marked in ({}, {"highlight_words": True})]
PLAIN = [(name, {}) for name in ("txt", "srt", "vtt", "tsv", "json")]

Row = tuple[str, float, float]  # a word, its start and its end in seconds


def segment(start: float, end: float, text: str, **words: Any) -> dict[str, Any]:
    values = {"id": 0, "seek": 0, "start": start, "end": end, "text": text, "tokens": [50364, 440]}
    scores = {"temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.1}
    return values | scores | words


def spoken(*rows: Row) -> dict[str, Any]:
    """A segment with words."""
    words = [{"word": word, "start": start, "end": end, "probability": 0.5} for word, start, end in rows]
    return segment(rows[0][1], rows[-1][2], "".join(word for word, *_ in rows), words=words)


TRANSCRIPTS = {
    "words": [
        spoken((" The", 0.0, 0.3), (" café", 0.3, 0.7), (" opens", 0.7, 1.2), (" at", 1.3, 1.4), (" nine.", 1.4, 2.0)),
        segment(2.0, 2.0, "", words=[]),
        spoken((" a", 2.0, 2.0), (" -->", 2.25, 2.6), (" [x]\ty,", 5.25, 5.9), (" -", 8.3, 8.1), (" ", 8.3, 8.4)),
        spoken((" Supercalifragilistic", 8.4, 10.0), (" words", 3598.7, 3599.9996), ("!", 3600.0, 3600.5)),
        segment(3600.5, 3601.0, "", words=[]),
        spoken((" It", 3600.5, 3601.0), ("'s", 3601.0, 3601.2), (" over.", 3603.99, 3604.5)),
    ],
    "no spaces": [
        segment(0.0, 0.0, "", words=[]),
        spoken(("今日は", 0.5, 1.0), ("いい", 1.0, 1.5), ("天気", 1.5, 2.0), ("ですね", 2.0, 2.5), ("。", 2.5, 2.5)),
        spoken(("はい", 2.5, 3.0), ("、", 3.0, 3.0), ("そうです", 6.01, 7.0)),
    ],
    "wide": [spoken(*((" " + "long" * 90, number, number + 0.5) for number in range(3)))],
    "plain": [
        segment(0.0, 2.5, " Hello, wörld."),
        segment(2.5, 3.0005, " a --> b\tc "),
        segment(3.5, 3.5, "", words=[]),
        segment(59.9996, 3599.9996, " "),
        segment(3600.0, 360001.0, "終わり"),
    ],
    "silence": [],
}
FILES = {
    "words": [*PLAIN, *EVERY[1:], ("vtt", EVERY[7][1])],
    "no spaces": [
        ("vtt", {}),
        ("vtt", {"max_line_width": 8}),
        ("srt", NARROW),
        ("vtt", NARROW | {"highlight_words": True}),
    ],
    "wide": [("srt", {})],
    "plain": PLAIN,
    "silence": PLAIN,
}

if __name__ == "__main__":
    get_writer = runpy.run_path(sys.argv[1])["get_writer"]
    files = []
    for name, choices in FILES.items():
        result = {"text": "".join(each["text"] for each in TRANSCRIPTS[name]), "segments": TRANSCRIPTS[name]}
        for format, options in choices:
            file = io.StringIO()
            get_writer(format, "").write_result(result | {"language": "en"}, file=file, options=options)
            files.append([name, format, options, file.getvalue()])
    rows = (json.dumps(each, ensure_ascii=False) for each in files)
    content = json.dumps(TRANSCRIPTS, ensure_ascii=False).replace('{"id"', '\n{"id"')
    text = f'{{"transcripts": {content},\n"files": [\n' + ",\n".join(rows) + "\n]}\n"
    (GOLDENS / "transcript_formats.json").write_text(text, encoding="utf-8")
