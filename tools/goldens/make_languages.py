"""Write speech_languages.json: the code for each language name and alias in openai-whisper.

Requires openai-whisper: `python tools/goldens/make_languages.py`
"""

import json
from pathlib import Path

import whisper
from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens" / "speech_languages.json"

if __name__ == "__main__":
    content = {"version": whisper.__version__, "languages": LANGUAGES, "codes": TO_LANGUAGE_CODE}
    OUTPUT.write_text(json.dumps(content) + "\n")
