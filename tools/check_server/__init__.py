"""Checks that the server stays correct and safe; see __main__.py."""
