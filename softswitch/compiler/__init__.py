"""Turns a program into Python functions: one for ingress, one for egress, one that only parses.

Theory of operation.  Everything that the program says is known before the first packet, so nothing of it is interpreted at packet
time: header fields are local variables, tables and actions are inlined where they are applied, and control flow is the
program's own, as ``if`` and ``else``.  Only what matters is done: a field that nothing reads is never extracted, an assignment to
metadata that nothing reads is dropped, and bytes of a header that nothing writes are sliced from the packet as it came.

- ``layout``: which fields matter, and which local variable is which field;
- ``expressions``, ``actions``, ``calculations``, ``tables``: source text of the pieces;
- ``flow``: control-flow graphs to structured ``if``/``else``;
- ``parser``, ``deparser``: from bytes to fields and back;
- ``unit``: puts the functions together and makes them.

Names in the generated source are numbers behind a letter, and constants are ``repr`` of integers: nothing of the program's text
gets into it.
"""
