"""Experiments with the simulator: each a folder with its files, what came out, and what that says.

``python -m sim.experiments NAME`` runs one again and writes its results, its figure, and the table of its README.
"""
