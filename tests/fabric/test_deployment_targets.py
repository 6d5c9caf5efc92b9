"""Deployments to the softswitch and, where simple_switch_grpc is on PATH, to BMv2: once is enough, and a failure is undone."""

import asyncio
import json
import shutil
import socket
import subprocess
import time

import pytest

from dlcp.cli.main import main
from dlcp.fabric import program as compiled
from dlcp.fabric.deploy import Fabric
from dlcp.fabric.diff import Change, Operation
from dlcp.fabric.endpoints import targets
from dlcp.fabric.entities import Action, Entry
from dlcp.fabric.errors import DeploymentError
from dlcp.fabric.program import Program
from dlcp.policy import Policy, Switches
from dlcp.topology import Topology
from softswitch.server.testing import running_switches

NET = """
hosts = [{ name = "h0" }, { name = "h1" }, { name = "h2" }]
switches = [{ name = "s0" }, { name = "s1" }]
links = [
  { a = "h0", b = "s0" }, { a = "h1", b = "s0" }, { a = "h2", b = "s1" },
  { a = "s0", b = "s1" }, { a = "s0", b = "s1", parallel = true },
]
[link_defaults]
rate = "1 Gbit/s"
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(params=["softswitch", "bmv2"])
def switches(request, tmp_path):
    """Addresses of two switches without interfaces."""
    if request.param == "softswitch":
        with running_switches(2) as running:
            yield [switch.address for switch in running]
        return
    program = shutil.which("simple_switch_grpc")
    if program is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    processes, addresses = [], []
    try:
        for number in (1, 2):
            addresses.append(f"127.0.0.1:{free_port()}")
            command = [program, "--no-p4", "--device-id", str(number), "--thrift-port", str(free_port()), "--"]
            command += ["--grpc-server-addr", addresses[-1], "--cpu-port", "510", "--priority-queues", "8"]
            with (tmp_path / f"{number}.log").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        for address in addresses:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                with socket.socket() as probe:
                    host, _, port = address.rpartition(":")
                    if probe.connect_ex((host, int(port))) == 0:
                        break
                time.sleep(0.05)
        yield addresses
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def test_a_deployment_is_taken_once(switches, tmp_path, capsys):
    file = tmp_path / "net.toml"
    file.write_text(NET)
    at = [f"--at=s{index}={address}" for index, address in enumerate(switches)]

    def call(verb, *words):
        code = main(["switch", verb, str(file), *words, *at, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    assert call("deploy")["programs"] == 2
    assert call("deploy")["written"] == 0 and call("plan", "--check")["empty"]
    assert call("drain", "s0", "3")["written"] > 0
    assert {row["switch"]: row["drained"] for row in call("status", "--check")} == {"s0": [3], "s1": [2]}
    assert call("deploy")["written"] == 0
    call("undrain", "s1", "2")
    call("permit", "0x1234", "--rate", "1 Gbit/s")
    assert all(row["as_planned"] and row["jobs"] == 1 and not row["drained"] for row in call("status"))
    assert call("counters")["total"]["forwarded"]["ordinary"]["packets"] == [0] * 8
    call("remove", "--yes")
    assert call("remove", "--yes")["written"] == 0
    assert all(row["entries"] == 0 and row["program"] == "dlcp" for row in call("status"))


def test_a_failure_is_undone(switches, tmp_path):
    file = tmp_path / "net.toml"
    file.write_text(NET)
    topology = Topology.from_toml(file)
    at = {f"s{index}": address for index, address in enumerate(switches)}
    reached = targets(topology, at=at)
    program = compiled.load()
    older = Program("older", program.info, program.config + b"\n")
    route = Entry("ipv4_routes", (("dst_addr", (0x0A000000, 8)),), Action.of("to_group", group=5, salt=1))

    async def deploy(program, policy, *, spoilt=False, more=()):
        async with Fabric(topology, policy, reached, program) as fabric:
            await fabric.look()
            assert not fabric.failures
            plans = fabric.plans(fabric.intent())
            plans["s0"].changes[len(plans["s0"].changes) :] = [Change(Operation.INSERT, entry) for entry in more]
            if spoilt:  # the last of its updates is for an entry that is there already
                bridge = next(e for e in fabric.intent().entities("s0") if isinstance(e, Entry) and e.table == "bridge")
                plans["s0"].changes.append(Change(Operation.INSERT, bridge))
            await fabric.apply(plans, 1 << 64)

    async def held(program):
        async with Fabric(topology, Policy(), reached, program) as fabric:
            await fabric.look()
            return {name: (held.program, {e.key: e for e in held.entities}) for name, held in fabric.held().items()}

    async def run():
        await deploy(older, Policy(), more=[route])
        before = await held(older)
        assert before["s0"][0] == "same" and route.key in before["s0"][1]
        changed = Policy(switch=Switches(spray="random", mark_share=0.7))
        for newer in (older, program):
            with pytest.raises(DeploymentError, match=r"s0 .*ALREADY_EXISTS.*restored; changed: s1"):
                await deploy(newer, changed, spoilt=True)
            after = await held(older)
            assert after["s0"] == before["s0"]
        # The entry that is somebody else's moves to the new program too.
        await deploy(program, changed)
        assert route.key in (await held(program))["s0"][1]

    asyncio.run(run())
