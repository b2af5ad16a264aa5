"""The version, in its own file so that packaging reads it without importing MLX."""

__version__ = "0.3.0"

native_libraries: dict[str, str] = {}  # loaded at import to speed MLX up; measurements depend on them
