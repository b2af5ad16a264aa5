"""Crash-safe output: logs of finished work, and files and folders that appear complete or not at all."""
