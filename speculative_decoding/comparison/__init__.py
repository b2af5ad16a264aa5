"""Lists the decoding modes to compare, and finds where two outputs differ."""
