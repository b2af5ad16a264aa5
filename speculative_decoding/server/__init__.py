"""A target with its draft for many clients at once, over HTTP. Needs the extra `server`."""
