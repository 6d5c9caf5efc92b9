"""What shares the network with a job: TCP flows, constant rates, bursts and incasts; see :mod:`testbed.traffic.cross`."""
