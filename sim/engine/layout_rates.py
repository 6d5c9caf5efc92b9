"""Where things are in the records of senders with a rate and of receivers with a deadline; see :mod:`sim.engine.layout`."""

from __future__ import annotations

from typing import Final

# of senders with a rate, behind the words of window transports
V_SPEND: Final = 64
V_DECAY: Final = 68
V_RISE: Final = 72
V_DEADLINE: Final = 76
V_RATE: Final = 80
V_TARGET: Final = 81
V_ALPHA: Final = 82
V_LINE: Final = 83
V_NEXT: Final = 84
V_BYTES: Final = 85
V_BY_BYTES: Final = 86
V_BY_TIME: Final = 87
V_NOTICED: Final = 88
V_EXPECTED: Final = 89
V_NAKED: Final = 90
V_HIGHEST: Final = 91
V_BOUND: Final = 92
V_LAST: Final = 93
V_WARM: Final = 94
V_WORDS: Final = 96

# What receivers with a deadline know of messages of about one size
L_COUNT: Final = 0
L_BOUND: Final = 1
L_EARLY: Final = 2
L_SHARE: Final = 3
L_SAMPLES: Final = 8
L_WORDS: Final = 768
