"""The version, in its own file so that packaging reads it without importing MLX."""

__version__ = "0.3.0"

# Libraries that are loaded at import to speed up MLX; measurements depend on them. If set, "equal_rows" names the
# data type in which a matmul gives a row the same bits in any batch.
native_libraries: dict[str, str] = {}
