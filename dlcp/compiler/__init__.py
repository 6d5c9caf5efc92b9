"""Compiles functions written in a small part of Python: the transport's work per packet, and the simulator's engine.

Such functions know nothing of this: they run as Python too, which is their oracle in tests, and a way out where there is no LLVM.
"""
