"""The engine: everything that happens packet by packet.

Plain functions over one memory of 64-bit words. As Python they run on a list; :mod:`sim.compiled` compiles the very same
functions to run on raw memory. Both give the same words.
"""
