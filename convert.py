"""Convert a Hugging Face checkpoint to this package's format: `python convert.py --help`."""

from speculative_decoding_program import start

if __name__ == "__main__":
    start("convert")
