"""A driver for tests to kill: builds a small network, says so, and waits.

python lab_script.py TARGET RUN_DIR [error]
"""

import sys
import time
from pathlib import Path

from dlcp.topology import Star
from dlcp.units import Delay, Rate
from testbed.lab.network import Lab
from testbed.lab.signals import Ended, unwinding

topology = Star(hosts=2, rate=Rate.parse("50 Mbit/s"), delay=Delay.parse("1 ms")).build()
print("begin", flush=True)
try:
    with unwinding(), Lab(topology, target=sys.argv[1], run_dir=Path(sys.argv[2])) as lab:
        lab.popen("h0", ["sleep", "1000"])
        lab.popen("h1", ["sh", "-c", "trap '' TERM; setsid sleep 1000"])  # ignores what it can
        print("up", *(host.pid for host in lab.hosts.values()), flush=True)
        if "error" in sys.argv:
            raise RuntimeError("as asked for")
        time.sleep(1000)
except Ended as ended:
    sys.exit(128 + ended.number)
