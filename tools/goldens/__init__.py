"""Programs that record what Hugging Face computes, for tests/parity. They need torch."""
