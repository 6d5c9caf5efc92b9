"""Runnable examples; ``torchrun --nproc-per-node 4 examples/train.py --help`` is the one to start with."""
