"""Trains a draft for a target and one type of text, on the target's own outputs and distributions."""
