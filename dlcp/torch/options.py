"""How a process group is told what it needs to know: options, then the environment, then defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from dlcp.policy import Policy
from dlcp.torch.arrays import setting_error
from dlcp.udp.faults import FaultPlan

HOST: Final = "DLCP_HOST"
PORT: Final = "DLCP_PORT"
POLICY: Final = "DLCP_POLICY"
FAULTS: Final = "DLCP_FAULTS"


@dataclass(frozen=True, slots=True)
class ProcessGroupOptions:
    """What ``init_process_group("dlcp", pg_options=...)`` takes; what is None comes from the environment.

    Groups made by ``new_group`` take over the default group's options, but for the port.

    Attributes:
        policy: Bounds, tags and transport settings, the same on all ranks.  ``DLCP_POLICY`` names a TOML file.  Of its timeouts
            ``connect_s`` and ``operation_s`` are replaced by the group's own, which torch knows as ``timeout``.
        host: Address of this host to bind, and under which the other ranks reach it; ``DLCP_HOST``, else 127.0.0.1, which serves
            ranks on one machine only.
        port: UDP port, 0 for any; ``DLCP_PORT``.
        faults: Loss, delay and so on to inject into outgoing packets, for tests; ``DLCP_FAULTS``.
    """

    policy: Policy | None = None
    host: str | None = None
    port: int | None = None
    faults: FaultPlan | str | None = None

    def completed(self, environment: Mapping[str, str] = os.environ) -> ProcessGroupOptions:
        """Returns options in which all is decided; for this rank.

        Raises:
            ConfigError: The environment holds nonsense.
        """
        policy = self.policy
        if policy is None:
            path = environment.get(POLICY)
            policy = Policy.from_toml(Path(path)) if path else Policy()
        port = self.port
        if port is None:
            text = environment.get(PORT) or "0"
            if not text.isdecimal() or int(text) > 65535:
                raise setting_error(PORT, repr(text), "0 to 65535")
            port = int(text)
        return ProcessGroupOptions(
            policy=policy,
            host=self.host if self.host is not None else environment.get(HOST) or "127.0.0.1",
            port=port,
            faults=self.faults if self.faults is not None else environment.get(FAULTS) or None,
        )

    def for_subgroup(self) -> ProcessGroupOptions:
        """Returns the options of a group that exists beside this one."""
        return replace(self, port=0)


def with_timeout(policy: Policy, timeout: timedelta) -> Policy:
    """Returns a policy with a group's timeout: nothing waits longer, neither for ranks to meet nor for a call to end."""
    seconds = timeout.total_seconds()
    times = policy.timeouts
    if seconds <= 0:
        raise setting_error("timeout", f"{seconds:g} s", "more than 0 s")
    # A silent peer is found out sooner than a call times out, if it can be.
    silence = max(min(times.peer_s, seconds), times.probe_max_ms / 1000 * 1.01)
    connect = min(seconds, 86_400.0)
    operation = min(seconds, 604_800.0)
    return replace(policy, timeouts=replace(times, connect_s=connect, operation_s=operation, peer_s=silence))
