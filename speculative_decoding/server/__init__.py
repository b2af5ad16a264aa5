"""Serves a target and its draft to many clients over HTTP. Needs the extra `server`."""
