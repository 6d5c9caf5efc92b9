"""Deployments over gRPC: what is wanted is what is held, once is enough, and a failure leaves a switch as it was."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.fabric import program as compiled
from dlcp.fabric.codec import Codec
from dlcp.fabric.deploy import Fabric
from dlcp.fabric.diff import Operation, difference, owned, steps
from dlcp.fabric.endpoints import Target, targets
from dlcp.fabric.entities import Action, Default, Entry, Meter, MulticastGroup, Path, describe
from dlcp.fabric.errors import DeploymentError, ProgramMissing
from dlcp.fabric.intent import Intent
from dlcp.fabric.jobs import entries as job_entries
from dlcp.fabric.jobs import permitted, with_job, without_job
from dlcp.fabric.program import Program
from dlcp.policy import Policy, Switches
from dlcp.topology import LeafSpine, Star
from dlcp.units import Rate
from tests.fabric.fake_switch import FakeServer
from tests.topology.networks import networks

PROGRAM = compiled.load()
TOPOLOGY = LeafSpine(leaves=2, spines=2, hosts_per_leaf=2).build()
ELECTION = 1 << 64


class Lab:
    """Fake switches for a topology, and the usual calls."""

    def __init__(self, topology, address, server):
        self.topology, self.server = topology, server
        self.targets = targets(topology, at={switch.name: address for switch in topology.switches})
        self.elections = iter(range(ELECTION, ELECTION + 1000))

    def device(self, name):
        return self.server.devices[self.topology.device_ids[name]]

    def snapshots(self):
        return {name: self.device(name).snapshot() for name in self.topology.device_ids}

    @asynccontextmanager
    async def fabric(self, policy=None, program=PROGRAM, targets=None):
        async with Fabric(self.topology, policy or Policy(), targets or self.targets, program) as fabric:
            await fabric.look()
            yield fabric

    async def deploy(self, policy=None, program=PROGRAM):
        async with self.fabric(policy, program) as fabric:
            assert not fabric.failures
            outcomes = await fabric.apply(fabric.plans(fabric.intent()), next(self.elections))
        return sum(outcome.written for outcome in outcomes.values())

    async def plans(self, policy=None):
        async with self.fabric(policy) as fabric:
            return fabric.plans(fabric.intent())


def with_lab(test, topology=TOPOLOGY):
    async def run():
        server = FakeServer(topology.device_ids.values())
        async with server.run() as address:
            await test(Lab(topology, address, server))

    asyncio.run(run())


def wanted(switch, topology=TOPOLOGY):
    """What a switch should hold and does not by itself: the program permits jobs to begin with."""
    entities = {entity.key: entity for entity in Intent(topology, Policy()).entities(switch)}
    assert entities.pop(("default", "jobs")) == Default("jobs", Action.of("permit"))
    return entities


def other_program(change=b" "):
    """A newer build of the same program: another configuration, the same tables."""
    return Program("newer", PROGRAM.info, PROGRAM.config + change)


def foreign_program():
    """Somebody else's: one table of its own."""
    info = """
        tables { preamble { id: 33554999 name: "theirs" alias: "theirs" }
                 match_fields { id: 1 name: "x" bitwidth: 8 match_type: EXACT }
                 action_refs { id: 16777999 } size: 16 }
        actions { preamble { id: 16777999 name: "go" alias: "go" } }"""
    return Program("theirs", info, b"{}")


def test_what_is_wanted_is_what_is_held_and_the_second_time_nothing_is_written():
    async def test(lab):
        assert await lab.deploy() == sum(len(wanted(name)) for name in TOPOLOGY.device_ids)
        counts = {name: (lab.device(name).requests, lab.device(name).pipelines) for name in TOPOLOGY.device_ids}
        async with lab.fabric() as fabric:
            for name, held in fabric.held().items():
                assert {e.key: e for e in held.entities if owned(e) and e != Default("jobs", None)} == wanted(name)
        assert all(plan.empty for plan in (await lab.plans()).values())
        assert await lab.deploy() == 0
        assert {name: (lab.device(name).requests, lab.device(name).pipelines) for name in TOPOLOGY.device_ids} == counts

    with_lab(test)


def test_a_change_of_policy_writes_only_what_differs():
    async def test(lab):
        await lab.deploy()
        policy = Policy(switch=Switches(spray="random"))
        plans = await lab.plans(policy)
        assert {str(change.entity) for change in plans["leaf0"].changes} == {f"dlcp_classes[class {c}]" for c in range(8)}
        assert all(change.operation is Operation.MODIFY and change.before is not None for change in plans["leaf0"].changes)
        assert await lab.deploy(policy) == 8 * len(TOPOLOGY.device_ids)
        assert all(lab.device(name).pipelines == 1 for name in TOPOLOGY.device_ids)

    with_lab(test)


def test_what_does_not_belong_there_is_deleted_and_what_is_others_stays():
    async def test(lab):
        await lab.deploy()
        codec = Codec(PROGRAM.schema)
        stray = Entry("bridge", (("dst_addr", 0x0200DEADBEEF),), Action.of("to_port", port=1))
        route = Entry("ipv4_routes", (("dst_addr", (0x0A000000, 8)),), Action.of("discard"))
        group = MulticastGroup(77, (1, 2))
        device = lab.device("leaf0")
        for entity in (stray, route, group):
            device.entities[str(entity)] = codec.encode(entity)
        changes = (await lab.plans())["leaf0"].changes
        assert [(change.operation, change.entity) for change in changes] == [(Operation.DELETE, stray)]

    with_lab(test)


@pytest.mark.parametrize("start", ["nothing", "ours", "newer", "foreign"])
@pytest.mark.parametrize("at", [0, 1, 7, 20])
def test_a_switch_that_refuses_an_update_is_as_it_was(start, at):
    async def test(lab):
        policy = Policy()
        if start != "nothing":
            first = {"ours": PROGRAM, "newer": other_program(), "foreign": foreign_program()}[start]
            if start == "foreign":
                await plant(lab, first)
            else:
                await lab.deploy(program=first)
            policy = Policy(switch=Switches(spray="hash", drop_share=0.9, mark_share=0.5))
        before = lab.snapshots()
        device = lab.device("leaf1")
        device.refuse_update = at
        with pytest.raises(DeploymentError) as caught:
            await lab.deploy(policy)
        (failure,) = caught.value.failures
        assert failure.switch == "leaf1" and "RESOURCE_EXHAUSTED no room" in failure.problem
        after = lab.snapshots()
        if start == "nothing":
            # A program cannot be taken off, so that stays, empty.
            assert after["leaf1"][1:] == ([], []) and "holds no entries now" in failure.problem
        else:
            assert after["leaf1"] == before["leaf1"] and "restored" in failure.problem
        assert all(after[name] != before[name] for name in ("leaf0", "spine0", "spine1"))
        assert await lab.deploy(policy) > 0
        assert all(plan.empty for plan in (await lab.plans(policy)).values())

    with_lab(test)


async def plant(lab, program):
    """Has all switches run something else, with an entry."""
    message = Codec(program.schema).encode(Entry("theirs", (("x", 7),), Action.of("go")))
    for name in lab.topology.device_ids:
        lab.device(name).config = program.pipeline()
        lab.device(name).entities[("table_entry", message.table_entry.table_id, 0, "x")] = message


def test_a_program_that_cannot_be_loaded_leaves_the_former_one():
    async def test(lab):
        await plant(lab, foreign_program())
        before = lab.snapshots()
        lab.device("spine0").refuse_pipeline = True
        with pytest.raises(
            DeploymentError, match="setting its program: cannot load; its former program and entries are restored"
        ):
            await lab.deploy()
        assert lab.snapshots()["spine0"] == before["spine0"]

    with_lab(test)


@pytest.mark.parametrize("start", ["nothing", "ours", "foreign"])
@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupted_deployment_leaves_no_switch_half_changed(start, at):
    async def test(lab):
        if start == "foreign":
            await plant(lab, foreign_program())
        elif start == "ours":
            await lab.deploy()
        before = lab.device("spine0").snapshot()
        lab.device("spine0").hold = at
        task = asyncio.create_task(lab.deploy(Policy(switch=Switches(spray="hash", drop_share=0.9, isolation="refuse"))))
        await lab.device("spine0").held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = lab.device("spine0").snapshot()
        assert after == before if start != "nothing" else after[1:] == ([], [])

    with_lab(test)


def test_if_one_cannot_verify_the_program_no_switch_is_changed():
    async def test(lab):
        await plant(lab, foreign_program())
        before = lab.snapshots()
        lab.device("spine1").refuse_verify = True
        with pytest.raises(DeploymentError, match=r"spine1 .*unsupported construct.*no switch was changed"):
            await lab.deploy()
        assert lab.snapshots() == before

    with_lab(test)


def test_a_switch_that_accepts_but_does_not_hold_is_found_out():
    async def test(lab):
        await lab.deploy()
        lab.device("leaf0").lies = True
        with pytest.raises(DeploymentError, match="does not hold them"):
            await lab.deploy(Policy(switch=Switches(spray="random")))

    with_lab(test)


def test_without_cookie_the_program_itself_is_compared():
    async def test(lab):
        await lab.deploy()
        lab.device("leaf0").with_cookie = False
        assert all(plan.empty for plan in (await lab.plans()).values())
        lab.device("leaf0").config.p4_device_config += b" "
        assert (await lab.plans())["leaf0"].sets_program

    with_lab(test)


def test_a_newer_program_keeps_jobs_and_drained_ports():
    async def test(lab):
        await lab.deploy()
        job = job_entries(TOPOLOGY, "leaf0", cookie=0x1234, hosts=(), rate=Rate.parse("1 Gbit/s"))
        async with lab.fabric() as fabric:
            await fabric.apply(
                fabric.edits(lambda name, held: with_job(held, job) if name == "leaf0" else held), next(lab.elections)
            )
        async with lab.fabric() as fabric:
            intent = fabric.intent({("leaf0", 3), ("spine0", 1)})
            await fabric.apply(fabric.plans(intent), next(lab.elections))
        assert await lab.deploy(program=other_program()) > 0
        async with lab.fabric(program=other_program()) as fabric:
            assert permitted(fabric.held()["leaf0"].entities) == job
            assert fabric.drained() == {("leaf0", 3), ("spine0", 1)}
            assert all(plan.empty for plan in fabric.plans(fabric.intent()).values())

    with_lab(test)


def test_jobs_are_permitted_and_forbidden_and_deployments_leave_them():
    async def test(lab):
        policy = Policy(switch=Switches(isolation="refuse"))
        await lab.deploy(policy)
        slow = job_entries(TOPOLOGY, "leaf0", cookie=7, hosts=["h0", "h3"], rate=Rate.parse("1 Gbit/s"), hard=True)
        assert slow == [
            Entry(
                "jobs",
                (("cookie", (7, 2**64 - 1)), ("port", (1, 0x1FF))),
                Action.of("police", hard=1),
                10,
                Meter(125_000_000, 1_250_000, 125_000_000, 1_250_000),
            )
        ]
        fast = job_entries(TOPOLOGY, "leaf0", cookie=7, hosts=["h0"])
        for own in (slow, fast):
            async with lab.fabric(policy) as fabric:
                edits = fabric.edits(lambda name, held, own=own: with_job(held, own) if name == "leaf0" else held)
                await fabric.apply(edits, next(lab.elections))
            async with lab.fabric(policy) as fabric:
                assert permitted(fabric.held()["leaf0"].entities) == own
        assert await lab.deploy(policy) == 0
        async with lab.fabric(policy) as fabric:
            edits = fabric.edits(lambda name, held: without_job(held, slow))
            await fabric.apply(edits, next(lab.elections))
        async with lab.fabric(policy) as fabric:
            assert not permitted(fabric.held()["leaf0"].entities)
        with pytest.raises(ConfigError, match="COOKIE"):
            job_entries(TOPOLOGY, "leaf0", cookie=None, hosts=())
        with pytest.raises(ConfigError, match="no host 'h9'"):
            job_entries(TOPOLOGY, "leaf0", cookie=None, hosts=["h9"])

    with_lab(test)


def test_removing_leaves_the_program_and_no_entries():
    async def test(lab):
        await lab.deploy()
        lab.device("spine1").config = foreign_program().pipeline()
        async with lab.fabric() as fabric:
            removals = fabric.removals()
            assert set(removals) == {"leaf0", "leaf1", "spine0"}
            await fabric.apply(removals, next(lab.elections))
        for name in removals:
            _, entities, defaults = lab.device(name).snapshot()
            assert not entities and not defaults
        assert (await lab.plans())["leaf0"].changes and not (await lab.plans())["leaf0"].sets_program

    with_lab(test)


def test_a_controller_with_a_higher_election_id_is_respected():
    async def test(lab):
        await lab.deploy()
        lab.device("leaf1").streams["somebody"] = 1 << 100
        with pytest.raises(DeploymentError, match="another controller is its primary") as caught:
            await lab.deploy(Policy(switch=Switches(spray="hash")))
        assert "--election-id above" in str(caught.value) and "no switch was changed" in str(caught.value)

    with_lab(test)


def test_looking_needs_no_arbitration():
    async def test(lab):
        await lab.deploy()
        lab.device("leaf1").streams["somebody"] = 1 << 100
        assert all(plan.empty for plan in (await lab.plans()).values())
        assert await lab.deploy() == 0

    with_lab(test)


def test_a_switch_that_does_not_answer_is_named():
    async def test(lab):
        dead = [*lab.targets, Target("ghost", "127.0.0.1:1", 1)]
        async with lab.fabric(targets=dead) as fabric:
            (failure,) = fabric.failures
            assert (
                failure.switch == "ghost" and "127.0.0.1:1" in str(failure) and "is its P4Runtime server running" in str(failure)
            )
            assert len(fabric.held()) == 4

    with_lab(test)


def test_sixty_four_switches():
    topology = LeafSpine(leaves=48, spines=16, hosts_per_leaf=1).build()

    async def test(lab):
        assert await lab.deploy() == sum(len(wanted(name, topology)) for name in topology.device_ids)
        assert await lab.deploy() == 0

    with_lab(test, topology)


@given(networks())
@settings(max_examples=30)
def test_entities_survive_the_wire(topology):
    codec = Codec(PROGRAM.schema)
    intent = Intent(topology, Policy(switch=Switches(isolation="demote", trust_dscp=True)))
    for switch in topology.switches:
        entities = intent.entities(switch.name)
        assert codec.decode(codec.encode(entity) for entity in entities) == entities


ENTITIES = st.lists(
    st.one_of(
        st.builds(
            Entry,
            st.sampled_from(["paths", "bridge", "limits"]),
            st.tuples(st.tuples(st.just("x"), st.integers(0, 3))),
            st.one_of(st.builds(Action.of, st.sampled_from(["a", "b"])), st.just((Path(Action.of("path", port=1), 1),))),
        ),
        st.builds(MulticastGroup, st.integers(1, 3), st.tuples(st.integers(1, 9))),
        st.builds(Default, st.sampled_from(["bridge", "jobs"]), st.builds(Action.of, st.sampled_from(["a", "b"]))),
    ),
    unique_by=lambda entity: entity.key,
)


@given(ENTITIES, ENTITIES)
def test_a_difference_carried_out_gives_what_is_wanted(held, wanted):
    state = {entity.key: entity for entity in held}
    changes = difference(held, wanted)
    for change in changes:
        if change.operation is Operation.INSERT:
            assert change.entity.key not in state
        elif not isinstance(change.entity, Default):
            assert change.entity.key in state
        state[change.entity.key] = change.entity
        if change.operation is Operation.DELETE or (isinstance(change.entity, Default) and change.entity.action is None):
            del state[change.entity.key]
        assert str(change) and describe(change.entity)
    assert state == {entity.key: entity for entity in wanted}
    assert not difference(wanted, wanted)
    assert [change for step in steps(changes, 2) for change in step] == changes
    assert all(len(step) <= 2 for step in steps(changes, 2))


@given(ENTITIES, ENTITIES)
def test_groups_are_there_before_what_leads_to_them_and_as_long(held, wanted):
    order = [(change.operation, getattr(change.entity, "table", "group")) for change in difference(held, wanted)]
    deletions = [index for index, (operation, _) in enumerate(order) if operation is Operation.DELETE]
    assert deletions == list(range(len(order) - len(deletions), len(order)))
    places = [index for index, (operation, _) in enumerate(order) if operation is not Operation.DELETE]
    ranks = [{"group": 0, "paths": 1}.get(order[index][1], 2) for index in places]
    assert ranks == sorted(ranks)
    ranks = [{"group": 0, "paths": 1}.get(order[index][1], 2) for index in deletions]
    assert ranks == sorted(ranks, reverse=True)


def test_two_wishes_for_one_key_are_an_error():
    entry = Entry("bridge", (("x", 1),), Action.of("a"))
    with pytest.raises(ValueError, match="wanted twice"):
        difference([], [entry, entry])


def test_plain_text_stays_on_this_host():
    topology = Star().build()
    for address in ("127.0.0.1:9559", "localhost:9559", "[::1]:9559", "127.8.8.8:1"):
        assert targets(topology, at={"s0": address})[0].address == address
    for address in ("192.0.2.1:9559", "switch.example:9559", "[2001:db8::1]:9559"):
        with pytest.raises(ConfigError, match="plain text"):
            targets(topology, at={"s0": address})
        assert targets(topology, at={"s0": address}, insecure=True)
    with pytest.raises(ConfigError, match="s0 has no address"):
        targets(topology)
    with pytest.raises(ConfigError, match="no switch 's9'"):
        targets(topology, at={"s9": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match="not an address with a port"):
        targets(topology, at={"s0": "127.0.0.1"})


def test_a_missing_program_says_how_to_get_it(tmp_path):
    with pytest.raises(ProgramMissing, match="make p4"):
        compiled.load(tmp_path)
    (tmp_path / "dlcp.json").write_text("{}")
    (tmp_path / "dlcp.p4info.txtpb").write_text("nonsense {")
    with pytest.raises(ProgramMissing, match="holds no P4Info"):
        _ = compiled.load(tmp_path).p4info


def test_the_cookie_is_the_programs():
    assert PROGRAM.cookie == compiled.load().cookie != other_program().cookie
    assert 0 < PROGRAM.cookie < 1 << 64
