"""Scripts that record reference results of Hugging Face for tests/parity. They require torch."""
