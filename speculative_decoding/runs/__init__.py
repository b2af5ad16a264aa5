"""Crash-safe output: logs of finished work, and files and folders that appear whole or not at all."""
