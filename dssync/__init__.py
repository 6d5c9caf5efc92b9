"""Divide-and-shuffle synchronization: ranks average parameters in small groups that change every round.

Public names are imported when they are first used, so that schedules cost neither numpy nor torch.
"""
