"""The version, in a separate file so that packaging tools can read it without importing MLX."""

__version__ = "0.3.0"

# Libraries that are loaded at import to speed up MLX; measurements depend on them. "equal_rows", if set, names the
# dtype in which a matmul computes the same bits for a row in any batch.
native_libraries: dict[str, str] = {}
