"""Co-simulation: what the simulated network lost of each message, and how long each step took, drives a real training run."""
