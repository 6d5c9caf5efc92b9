// What the switch remembers and several controls share.

counter(SLOTS, CounterType.packets_and_bytes)    forwarded;
counter(SLOTS, CounterType.packets_and_bytes)    dropped;
counter(SLOTS, CounterType.packets_and_bytes)    trimmed;
counter(SLOTS, CounterType.packets_and_bytes)    marked;
counter(DISCARDS, CounterType.packets_and_bytes) discarded;

// Cell port ++ queue: packets in that queue in the low 19 bits; above them, how many packets in a row were turned away because of it.
// Ingress knows no queue depths in v1model, so egress writes here what it finds, and ingress adds what it lets in between.
register<bit<32>>(DEPTH_CELLS) queue_depths;
