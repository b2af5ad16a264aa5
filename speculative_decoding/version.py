"""The version, in its own file so that packaging reads it without importing MLX."""

__version__ = "0.3.0"

# Loaded at import to speed MLX up; measurements depend on them. "equal_rows" is set if a matmul in that data type gives
# a row the same bits in any batch.
native_libraries: dict[str, str] = {}
