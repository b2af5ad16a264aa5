"""Speculative decoding from the command line: `python main.py --help`."""

from speculative_decoding_program import start

if __name__ == "__main__":
    start("main")
