"""What `python -m speculative_decoding.benchmark` is made of. One file per concept; none of them prints."""
