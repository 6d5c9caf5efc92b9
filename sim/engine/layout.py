"""Where things are: the words of the header and of every kind of record.

A record is a run of words; the names here are offsets into it.  Records that can have an event begin with, or contain, one.
"""

from __future__ import annotations

from typing import Final

# Header
H_NOW: Final = 1
H_UNTIL: Final = 2
H_SEQUENCE: Final = 3
H_SHIFT: Final = 4
H_SLOTS: Final = 5
H_SLOT: Final = 6
H_WHEEL: Final = 7
H_BITS: Final = 8
H_WAITING: Final = 9
H_NEAR: Final = 10
H_NEAR_COUNT: Final = 11
H_FAR: Final = 12
H_FAR_COUNT: Final = 13
H_FAR_ROOM: Final = 14
H_FREE: Final = 15
H_FREE_COUNT: Final = 16
H_RANDOM: Final = 17
H_HOPS: Final = 18
H_EVENTS: Final = 19
H_BUDGET: Final = 20
H_DONE: Final = 21
H_DONE_COUNT: Final = 22
H_TRIM: Final = 23
H_TRIM_BYTES: Final = 24
H_NO_ROUTE: Final = 25
H_PATIENCE: Final = 26
H_OPEN: Final = 27
H_CONTROL_BYTES: Final = 28
H_RULES: Final = 29
H_WORDS: Final = 64

# Event: part of another record
E_TIME: Final = 0
E_SEQUENCE: Final = 1
E_NEXT: Final = 2
E_KIND: Final = 3
E_WORDS: Final = 4

# Timer: an event that may be moved; E_NEXT is then when it is wanted, 0 never
T_WANTED: Final = 2

K_ARRIVE: Final = 0
K_FREE: Final = 1
K_START: Final = 2
K_WINDOW: Final = 3
K_PROBE: Final = 4
K_COMPLETE: Final = 5
K_FEEDBACK: Final = 6
K_PING: Final = 7
K_PACE: Final = 8
K_PULL: Final = 9
K_SPEND: Final = 10
K_DECAY: Final = 11
K_RISE: Final = 12
K_DEADLINE: Final = 13
K_REFRESH: Final = 14
K_EXPIRE: Final = 15
K_CREDIT: Final = 20

# Heap entry
HEAP_WORDS: Final = 3

# Arc: one direction of a link, with the port that feeds it
A_ARRIVE: Final = 0
A_LEAVE: Final = 4
A_BUSY: Final = 8
A_MASK: Final = 9
A_TICKS: Final = 10
A_DELAY: Final = 11
A_LOSS: Final = 12
A_TARGET: Final = 13
A_HEAD: Final = 14
A_TAIL: Final = 15
A_HOST: Final = 16
A_UP: Final = 17
A_LIMIT: Final = 18
A_LIMIT_BYTES: Final = 19
A_DROP_AT: Final = 20
A_MARK_AT: Final = 21
A_READY: Final = 22
A_PENDING: Final = 23
A_PACKETS: Final = 24
A_BYTES: Final = 25
A_MARKED: Final = 26
A_FULL: Final = 27
A_DROPPED: Final = 28
A_TRIMMED: Final = 29
A_ERRORS: Final = 30
A_DOWN: Final = 31
A_WAIT: Final = 32
A_DEEPEST: Final = 33
A_SWITCH: Final = 34
A_BACKLOG: Final = 35
A_WAITED: Final = 36
A_CLASSES: Final = 39
A_QUEUES: Final = 40
A_RINGS: Final = 72
# of priority flow control: at the end that the arc leads to, and, from A_EXPIRE on, at the one that it comes from
A_REVERSE: Final = 80
A_XOFF: Final = 81
A_XON: Final = 82
A_SPACE: Final = 83
A_ASKED: Final = 84
A_QUANTA: Final = 85
A_INGRESS: Final = 88
A_REFRESH: Final = 96
A_EXPIRE: Final = 100
A_PAUSES: Final = 104
A_PAUSED: Final = 105
A_PAUSED_AT: Final = 106
A_WORDS: Final = 112

# Bits of A_PENDING: an event is entered; a pause frame is to be sent; above, the classes that are paused
SERVICE: Final = 1
NOTIFY: Final = 2
PAUSED_SHIFT: Final = 8

# Statistics of one class of an arc, if it has any: its counters are those of the arc, in their order
C_WAIT: Final = A_WAIT - A_PACKETS
C_DEEPEST: Final = A_DEEPEST - A_PACKETS
C_FOUND: Final = 16
C_BINS: Final = 48
C_SHIFT: Final = 6
C_WORDS: Final = 1 << C_SHIFT

# Queue of an arc; the count's upper half is how many packets in a row were turned away
Q_HEAD: Final = 0
Q_TAIL: Final = 1
Q_COUNT: Final = 2
Q_BYTES: Final = 3

# Node
N_SWITCH: Final = 0
N_CLASS: Final = 1
N_LAST: Final = 2
N_ROUTES: Final = 3
N_ROOM: Final = 4
N_USED: Final = 5
N_ALPHA: Final = 6
N_SALT: Final = 7
N_PULL: Final = 8
N_PULL_RING: Final = 12
N_PULL_GAP: Final = 13
N_SENDERS: Final = 14
N_WORDS: Final = 16

# In N_ROOM: room is what each of its ports has for what comes in there
BY_INGRESS: Final = -1

# Group of next hops
G_COUNT: Final = 0
G_TURN: Final = 1
G_ARCS: Final = 2

# Packet
P_NEXT: Final = 0
P_TIME: Final = 1
P_FLOW: Final = 2
P_SEQ: Final = 3
P_FLAGS: Final = 4
P_SENT: Final = 5
P_TO: Final = 6
P_EXTRA: Final = 7
P_WORDS: Final = 8

# Flags of a packet; the frame's bytes stand above them
CLASS_MASK: Final = 7
KEPT: Final = 8
ECT: Final = 16
CE: Final = 32
CUT: Final = 64
AGAIN: Final = 128
SPRAY_SHIFT: Final = 8
DEAD: Final = 1024
RANKED: Final = 2048
KIND_MASK: Final = 15
KIND_SHIFT: Final = 12
SIZE_SHIFT: Final = 20

SPRAY_HASH: Final = 0
SPRAY_TURN: Final = 1
SPRAY_RANDOM: Final = 2
SPRAY_LEAST: Final = 3

DATA: Final = 0
ACK: Final = 1
PROBE: Final = 2
FEEDBACK: Final = 3
STATUS: Final = 4
STOP: Final = 5
PING: Final = 6
PULL: Final = 7
PAUSE: Final = 8
NOTICE: Final = 9
NAK: Final = 10

# Flow: one message with its sender and its receiver
F_TIMER: Final = 0
F_KIND: Final = 4
F_FROM: Final = 5
F_TO: Final = 6
F_ARC: Final = 7
F_BACK: Final = 8
F_CLASS: Final = 9
F_PACKETS: Final = 10
F_FULL: Final = 11
F_TAIL: Final = 12
F_FLAGS: Final = 13
F_NEXT: Final = 14
F_LISTED: Final = 15
F_START: Final = 16
F_END: Final = 17
F_WAITS: Final = 18
F_AFTER: Final = 19
F_EDGES: Final = 20
F_EDGE_COUNT: Final = 21
F_HASH: Final = 22
F_NUMBER: Final = 23
F_GOT: Final = 24
F_MISSING: Final = 25
F_RESENT: Final = 26
F_LOST: Final = 27
F_MARKS: Final = 28
F_CUTS: Final = 29
F_ENDED: Final = 30
F_PAIR: Final = 31
F_GATE: Final = 62
F_EXTRA: Final = 61
# 61 to 63 are of all flows
# of window transports
F_SENT: Final = 32
F_CUM: Final = 33
F_HIGH: Final = 34
F_FLIGHT: Final = 35
F_WINDOW: Final = 36
F_THRESHOLD: Final = 37
F_ALPHA: Final = 38
F_ROUND: Final = 39
F_ACKED: Final = 40
F_MARKED: Final = 41
F_RECOVER: Final = 42
F_SCAN: Final = 43
F_GAPS: Final = 44
F_SRTT: Final = 45
F_RTTVAR: Final = 46
F_BACKOFF: Final = 47
F_ACKS: Final = 48
F_HOLES: Final = 49
F_RETRY: Final = 50
F_GAIN: Final = 51
F_RTO: Final = 52
F_DUPS: Final = 53
F_GREATEST: Final = 54
F_EPOCH: Final = 55
F_TOP: Final = 56
F_ORIGIN: Final = 57
F_CREDIT: Final = 58
F_PULLS: Final = 59
F_PULL_NEXT: Final = 60
F_LOST_BYTES: Final = 63
F_WORDS: Final = 64

# of DLCP
D_COMPLETE: Final = 32
D_PROTECTED: Final = 36
D_ALLOWED: Final = 37
D_PROTECTED_MISSING: Final = 38
D_SENT: Final = 39
D_AGAIN: Final = 40
D_AGAIN_COUNT: Final = 41
D_AGAIN_FROM: Final = 42
D_REPORT: Final = 43
D_PROBED: Final = 44
D_PROBED_AT: Final = 45
D_ECHO: Final = 46
D_LAST: Final = 47
D_GAP: Final = 48
D_REPORTED: Final = 49
D_SETTLED: Final = 50
D_FORGONE: Final = 51
D_PROBE_ROUND: Final = 52
D_ATTEMPT: Final = 53
D_PROBE_NUMBER: Final = 54
D_PROBE_DUE: Final = 55
D_LINK: Final = 56
D_PROBE_CLASS: Final = 57
D_NUDGES: Final = 58
D_URGENCY: Final = 59
D_SEEN: Final = 60
D_ORDER: Final = 64
D_WORDS: Final = 72

# Pair: a rank and a peer, in one direction; its flow control, and what the peer counts
R_FEEDBACK: Final = 0
R_PING: Final = 4
R_PACE: Final = 8
R_FLOWS: Final = 12
R_NEXT: Final = 13
R_ACKED: Final = 14
R_PASSED: Final = 15
R_REPORTED: Final = 16
R_REPORTED_MARKS: Final = 17
R_LATE: Final = 18
R_LEAST: Final = 19
R_ROUND_END: Final = 20
R_CLEAN: Final = 21
R_HASH: Final = F_HASH
R_WINDOW: Final = 23
R_ALPHA: Final = 24
R_THRESHOLD: Final = 25
R_CC_END: Final = 26
R_DELIVERED: Final = 27
R_LOST: Final = 28
R_MARKED: Final = 29
R_LIMITED: Final = 30
R_SRTT: Final = 31
R_RTTVAR: Final = 32
R_RTTMIN: Final = 33
R_UNANSWERED: Final = 34
R_QUIET: Final = 35
R_RELEASE: Final = 36
R_BLOCKED: Final = 37
R_BURST: Final = 38
R_PENDING: Final = 39
R_LAST_CLASS: Final = 40
R_HISTORY_LOST: Final = 41
R_HISTORY: Final = 42
R_HIGHEST: Final = 43
R_RECEIVED: Final = 44
R_MARKS: Final = 45
R_ECHO: Final = 46
R_ECHO_AT: Final = 47
R_UNREPORTED: Final = 48
R_LAST: Final = 49
R_PACKETS: Final = 50
R_LOST_AT: Final = 51
R_IN_ORDER: Final = 52
R_EXTENT: Final = 53
R_PATIENCE: Final = 54
R_GAPS: Final = 55
R_GAP_AT: Final = 56
R_INCOMING: Final = 57
R_BACK: Final = 58
R_FORTH: Final = 59
R_FROM: Final = 60
R_TO: Final = 61
R_REVERSE: Final = 62
R_SPRAY: Final = 63
R_CLASS_HIGH: Final = 64
R_CLASS_DELAY: Final = 72
R_OUT: Final = 80
R_WORDS: Final = 88

# Gate: what a sender lets out while it has credit; bytes
S_CREDIT: Final = 0
S_OUT: Final = 1
S_COUNT: Final = 2
S_NEXT: Final = 3
S_HEAP: Final = 4
S_WORDS: Final = 8

# Ticket of a flow that goes through a gate; begins with the timer that brings the credit back
B_FLOW: Final = 4
B_GATE: Final = 5
B_BYTES: Final = 6
B_URGENCY: Final = 7
B_RETURN: Final = 8
B_WORDS: Final = 16

# Rules of DLCP, times in picoseconds
U_EVERY: Final = 0
U_LEAST_DELAY: Final = 1
U_MOST_DELAY: Final = 2
U_UNKNOWN: Final = 3
U_SHORTEST: Final = 4
U_GRACE_FLOOR: Final = 5
U_GRACE_FACTOR: Final = 6
U_PROBE_LEAST: Final = 7
U_PROBE_MOST: Final = 8
U_QUANTUM: Final = 9
U_GAIN: Final = 10
U_TOLERANCE: Final = 11
U_GREATEST: Final = 12
U_FIRST_RTT: Final = 13
U_LONG_DELAY: Final = 14
U_WORDS: Final = 16

RAW: Final = 0
TCP: Final = 1
DCTCP: Final = 2
CUBIC: Final = 3
DLCP: Final = 4
NDP: Final = 5
ROCE: Final = 6
DCQCN: Final = 7
PFABRIC: Final = 8
TIMEOUT: Final = 9
WARMUP: Final = 10

# Verdicts of run()
PAUSED: Final = 0
QUIET: Final = 1
MORE_PACKETS: Final = 2
MORE_EVENTS: Final = 3

RESERVE: Final = 4096
"""Packets and events that one event may use up; run() returns for more before there are fewer."""
