"""Switches: what topology and policy mean for each, and getting it there.

The pure part (``entities``, ``forwarding``, ``treatment``, ``intent``, ``diff``, ``drain``) imports neither gRPC nor asyncio;
the part that talks to switches (``program``, ``codec``, ``session``, ``transaction``, ``deploy``, ``counters``) needs the
extra ``p4``."""
