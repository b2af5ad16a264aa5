"""The errors a user can cause. Each message is one line that names what was given, what is wrong and the way out."""


class InputError(ValueError):
    """Something the caller gave cannot be used: an option, a prompt, a folder, a file."""


class CheckpointError(InputError):
    """A checkpoint file or folder is missing, damaged or of an unknown kind; the message names it."""
