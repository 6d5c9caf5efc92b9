"""Readers of what other tools write: HPCC, htsim, Chakra, astra-sim and SimAI, and PyTorch's profiler."""
