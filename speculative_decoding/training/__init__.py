"""Trains a draft for a target and a particular type of text, on the target's own outputs and distributions."""
