"""Scripts that record reference results from Hugging Face for tests/parity. They require torch."""
