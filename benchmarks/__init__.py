"""What `python -m benchmarks.main` is made of. One file per concept; none of them prints."""
