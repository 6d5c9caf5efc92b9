"""finsy, unchanged, against the server."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy import (
    GRPCStatusCode,
    P4ActionProfileGroup,
    P4ActionProfileMember,
    P4ClientError,
    P4CloneSessionEntry,
    P4CounterData,
    P4CounterEntry,
    P4DigestEntry,
    P4DigestListAck,
    P4DirectCounterEntry,
    P4IndirectAction,
    P4Member,
    P4MeterConfig,
    P4MeterEntry,
    P4MulticastGroupEntry,
    P4PacketOut,
    P4RegisterEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
    P4ValueSetEntry,
    Switch,
    SwitchOptions,
)
from finsy.proto import stratum

from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import JSON, P4INFO
from tests.softswitch.test_server_streams import ethernet

OPTIONS = SwitchOptions(p4info=P4INFO, p4blob=JSON)
TIMEOUT = 30


@pytest.fixture(autouse=True)
def quiet(caplog):
    # finsy says that there is no gNMI.
    caplog.set_level(logging.CRITICAL, logger="finsy")


def run(scenario, count=1, **options):
    """Runs a scenario with the switches and, for each, a connected finsy switch."""

    async def main(switches):
        async with asyncio.timeout(TIMEOUT), AsyncExitStack() as stack:
            clients = []
            for number, switch in enumerate(switches):
                client = Switch(f"sw{number}", switch.address, OPTIONS(device_id=switch.device_id))
                clients.append(await stack.enter_async_context(client))
            await scenario(*switches, *clients)

    with running_switches(count, **options) as switches:
        asyncio.run(main(switches))


async def everything(client, *entities):
    return [entity async for entity in client.read(entities)]


def forward(key, port):
    return P4TableEntry("dmac", match=P4TableMatch(dst=key), action=P4TableAction("forward", port=port))


def test_entries_and_all_other_state():
    async def scenario(switch, client):
        assert client.is_primary
        assert client.p4info.get_pipeline_info()
        entries = [
            forward(1, 1),
            P4TableEntry(
                "acl",
                match=P4TableMatch({"ingress_port": 3, "type": (0x800, 0xFF00), "protocol": (6, 17), "hdr.ipv4.$valid$": 1}),
                priority=7,
                action=P4TableAction("permit"),
            ),
            P4TableEntry(
                "routes",
                match=P4TableMatch(dst="10.0.0.0/8"),
                action=P4TableAction("forward_to", port=1, dst="00:00:00:00:00:01"),
            ),
            P4TableEntry(
                "smac",
                match=P4TableMatch(src="00:00:00:00:00:09"),
                action=P4TableAction("count_direct"),
                idle_timeout_ns=10**15,
                metadata=b"note",
            ),
        ]
        await client.write(+entry for entry in entries)
        await client.write([+P4ActionProfileMember("balancer", member_id=1, action=P4TableAction("forward", port=2))])
        group = P4ActionProfileGroup("balancer", group_id=1, max_size=4, members=[P4Member(1, weight=2)])
        await client.write([+group])
        await client.write(
            [+P4TableEntry("balanced", match=P4TableMatch(src=5), action=P4IndirectAction(group_id=1))],
        )
        await client.write(
            [
                +P4MulticastGroupEntry(5, replicas=[1, 2, (3, 7)]),
                +P4CloneSessionEntry(100, replicas=[4], packet_length_bytes=64),
                +P4DigestEntry("learn_t", max_list_size=1),
                ~P4CounterEntry("port_counter", index=1, data=P4CounterData(byte_count=10, packet_count=1)),
                ~P4MeterEntry("port_meter", index=1, config=P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4)),
                ~P4RegisterEntry("last_type", index=1, data=77),
                ~P4ValueSetEntry("tunnel_types", members=[]),
                ~P4TableEntry("always", is_default_action=True, action=P4TableAction("forward", port=4)),
            ]
        )
        got = await everything(client, P4TableEntry())
        assert len(got) == len(entries) + 1 + 2
        assert (await everything(client, P4TableEntry("dmac"))) == [forward(1, 1)]
        for entry in entries:
            (same,) = await everything(client, P4TableEntry(entry.table_id, match=entry.match, priority=entry.priority))
            assert same.encode(client.p4info) == entry.encode(client.p4info)
        assert await everything(client, P4ActionProfileGroup()) == [group]
        (register,) = await everything(client, P4RegisterEntry("last_type", index=1))
        assert register.data == 77
        (counter,) = await everything(client, P4DirectCounterEntry("smac_counter"))
        assert counter.packet_count == 0
        assert len(await everything(client, P4MulticastGroupEntry(), P4CloneSessionEntry())) == 2

        await client.delete_all()
        assert len(await everything(client, P4TableEntry())) == 2
        # With const tables in the program, finsy's delete_all passes over all that is no table entry.
        for kind in (P4ActionProfileGroup(), P4ActionProfileMember(), P4MulticastGroupEntry()):
            await client.delete(await everything(client, kind))
            assert await everything(client, kind) == []

    run(scenario)


def test_errors():
    async def scenario(switch, client):
        await client.write([+forward(1, 1)])
        with pytest.raises(P4ClientError) as caught:
            await client.write([+forward(1, 1), +forward(2, 2), -forward(9, 1)])
        assert caught.value.code == GRPCStatusCode.UNKNOWN
        codes = {number: error.canonical_code for number, error in caught.value.details.items()}
        assert codes == {0: GRPCStatusCode.ALREADY_EXISTS, 2: GRPCStatusCode.NOT_FOUND}
        await client.delete([forward(9, 1)], strict=False)
        # 64 KiB of metadata is what finsy takes.
        with pytest.raises(P4ClientError) as caught:
            await client.write([+forward(1, 1)] * 500)
        assert len(caught.value.details) == 500

    run(scenario)


def test_packets_digests_and_notifications():
    async def scenario(switch, client):
        await client.write(
            [
                ~P4TableEntry("dmac", is_default_action=True, action=P4TableAction("to_controller", reason=3)),
                ~P4TableEntry("smac", is_default_action=True, action=P4TableAction("learn")),
                +P4DigestEntry("learn_t", max_list_size=1, ack_timeout_ns=10**15),
                +P4TableEntry(
                    "smac", match=P4TableMatch(src=1), action=P4TableAction("count_direct"), idle_timeout_ns=50_000_000
                ),
            ]
        )
        packets, digests, timeouts = client.read_packets(), client.read_digests("learn_t"), client.read_idle_timeouts()
        switch.receive(7, ethernet(source=9))
        packet = await anext(packets)
        assert packet.payload == ethernet(source=9)
        assert (packet["ingress_port"], packet["reason"]) == (7, 3)
        digest = await anext(digests)
        assert digest.data == [{"address": 9, "port": 7}]
        await client.write([P4DigestListAck("learn_t", digest.list_id)])
        note = await anext(timeouts)
        assert [entry.table_id for entry in note.table_entry] == ["smac"]
        await client.write([P4PacketOut(ethernet(), egress_port=4, flags=0)])
        sent = []
        while not sent:
            sent = switch.transmit()
            await asyncio.sleep(0.001)
        assert sent == [(4, ethernet())]

    run(scenario)


def test_a_backup_takes_over_when_the_primary_leaves():
    async def scenario(switch, first):
        async with AsyncExitStack() as stack:
            second = await stack.enter_async_context(Switch("second", switch.address, OPTIONS))
            assert first.is_primary
            assert not second.is_primary
            with pytest.raises(P4ClientError) as caught:
                await second.write([+forward(1, 1)])
            assert caught.value.code == GRPCStatusCode.PERMISSION_DENIED
            third = await stack.enter_async_context(Switch("third", switch.address, OPTIONS(initial_election_id=20)))
            assert third.is_primary
            while first.is_primary:
                await asyncio.sleep(0.001)
            await third.__aexit__(None, None, None)
            while not (first.is_primary or second.is_primary):
                await asyncio.sleep(0.001)
            winner = first if first.is_primary else second
            await winner.write([+forward(1, 1)])
            stack.pop_all()
            await second.__aexit__(None, None, None)

    run(scenario)


def test_several_switches_in_one_process():
    async def scenario(a, b, c, first, second, third):
        for number, client in enumerate((first, second, third), 1):
            await client.write([+forward(1, number)])
        for number, client in enumerate((first, second, third), 1):
            assert await everything(client, P4TableEntry("dmac")) == [forward(1, number)]

    for one_server in (False, True):
        run(scenario, count=3, one_server=one_server)


def test_roles():
    async def scenario(switch, client):
        dmac = client.p4info.tables["dmac"].id
        config = stratum.P4RoleConfig(shared_p4_ids=[dmac], can_push_pipeline=False, receives_packet_ins=True)
        options = SwitchOptions(role_name="edge", role_config=config)
        async with Switch("edge", switch.address, options) as edge:
            assert edge.is_primary
            await edge.write([+forward(1, 1)])
            with pytest.raises(P4ClientError) as caught:
                await edge.write([+P4TableEntry("smac", match=P4TableMatch(src=1), action=P4TableAction("learn"))])
            assert caught.value.details[0].canonical_code == GRPCStatusCode.PERMISSION_DENIED
            assert len(await everything(edge, P4TableEntry())) == 1
        assert len(await everything(client, P4TableEntry())) == 3

    run(scenario)


def test_a_pipeline_that_is_there_already_is_kept():
    async def scenario(switch, client):
        await client.write([+forward(1, 1)])
        async with Switch("again", switch.address, OPTIONS(initial_election_id=11)) as again:
            assert await everything(again, P4TableEntry("dmac")) == [forward(1, 1)]
        options = OPTIONS(initial_election_id=12, p4force=True)
        async with Switch("forced", switch.address, options) as forced:
            assert await everything(forced, P4TableEntry("dmac")) == []

    run(scenario)
