"""What survives a run that is killed: the log of its finished work, and files that appear whole or not at all."""
