"""Convert a Hugging Face checkpoint to a folder of this package: `python convert.py --help`."""

from speculative_decoding_program import start

if __name__ == "__main__":
    start("convert")
