"""Trains a draft for a target and a kind of text, from the target's own outputs and distributions."""
