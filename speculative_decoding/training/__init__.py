"""Making a draft for a target and a kind of text: the target's own outputs, its distributions, a loss, a trainer."""
