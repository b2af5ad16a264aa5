"""Predicts the speed of models on Macs; see __main__.py."""
