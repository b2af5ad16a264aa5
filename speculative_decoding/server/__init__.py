"""Serves one model to many clients over HTTP. Requires the dependencies of the extra `server`."""
