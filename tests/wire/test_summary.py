"""Sums over captures: what went in must come out, bursts taken apart, strangers told from broken packets."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.wire import codec
from dlcp.wire.header import HEADER, HEADER_BYTES, PacketType, Phase
from dlcp.wire.pcap import Datagram, Frame, datagram_of
from dlcp.wire.summary import BATCH, Summary, Verdict


def datagram(payload, size=None, tos=0, ports=(40_000, 40_001), time=0.0):
    size = len(payload) if size is None else size
    ends = [b"\x7f\0\0\1" + port.to_bytes(2, "big") for port in ports]
    return Datagram(payload, size, tos, *ends, ports, time)


def summed(datagrams, **options):
    summary = Summary(**options)
    summary.add(datagrams)
    return summary


def verdicts(datagrams, **options):
    return [Verdict(v).name.lower() for v in summed(datagrams, **options).columns()["verdict"].tolist()]


@pytest.fixture(scope="module")
def sample(wire):
    rng = np.random.default_rng(23)
    return [wire.datagram(rng, PacketType(int(k))) for k in rng.integers(0, len(PacketType), 300)]


def test_every_packet_is_counted_once(sample):
    tos = [int(t) for t in np.random.default_rng(1).integers(0, 256, len(sample))]
    total = summed([datagram(p, tos=t, time=k / 4) for k, (p, t) in enumerate(zip(sample, tos, strict=True))])
    heads = [HEADER.decode_one(p) for p in sample]
    out = total.to_dict()
    assert out["verdicts"] == {v.name.lower(): len(sample) if v is Verdict.GOOD else 0 for v in Verdict}
    assert (out["datagrams"], out["packets"], out["bursts"]) == (len(sample), len(sample), 0)
    for key, name, spell in (("types", "type", lambda k: PacketType(k).name.lower()), ("classes", "priority", str)):
        assert {k: v["packets"] for k, v in out[key].items()} == Counter(spell(h[name]) for h in heads)
        for sums in ("bytes", "protected", "retransmissions", "trimmed", "marked"):
            assert (
                sum(v[sums] for v in out[key].values())
                == {
                    "bytes": sum(map(len, sample)),
                    "protected": sum(h["protected"] for h in heads),
                    "retransmissions": sum(h["retransmission"] for h in heads),
                    "trimmed": sum(h["trimmed"] for h in heads),
                    "marked": sum(t & 3 == 3 for t in tos),
                }[sums]
            )
    assert len(out["flows"]) == len({(h["cookie"], h["source"], h["destination"]) for h in heads})
    assert out["jobs"] == sorted(f"{h['cookie']:016x}" for h in heads)
    assert out["operations"] == len({h["operation"] for h in heads})
    assert out["seconds"] == (len(sample) - 1) / 4
    columns = total.columns()
    for name in ("sequence", "offset", "length", "phase", "part"):
        np.testing.assert_array_equal(columns[name], [h[name] for h in heads])


@given(st.data())
@settings(max_examples=30)
def test_bursts_are_taken_apart(sample, data):
    groups = data.draw(st.lists(st.lists(st.integers(0, len(sample) - 1), min_size=1, max_size=6), max_size=5))
    # Only what tells its own size can be followed by more.
    groups = [[k for k in group if sample[k][0] & 15 != PacketType.ABORT] for group in groups]
    groups = [group for group in groups if group]
    total = summed([datagram(b"".join(sample[k] for k in group)) for group in groups])
    out = total.to_dict()
    assert out["verdicts"]["good"] == out["packets"] == sum(map(len, groups))
    assert out["bursts"] == sum(len(group) > 1 for group in groups)
    assert sorted(total.columns()["bytes"].tolist()) == sorted(len(sample[k]) for group in groups for k in group)


def test_more_than_a_batch(sample):
    out = summed(datagram(sample[k % len(sample)]) for k in range(2 * BATCH + 5)).to_dict()
    assert out["verdicts"]["good"] == 2 * BATCH + 5


def test_nothing_at_all():
    out = summed([]).to_dict()
    assert (out["packets"], out["seconds"], out["flows"], out["types"]) == (0, 0.0, [], {})


def header(**fields):
    return codec.encode_headers(1, **({"type": PacketType.PING} | fields)).tobytes()


class TestVerdicts:
    def test_each(self):
        broken = bytearray(header())
        broken[9] ^= 4
        cases = {
            "good": header(),
            "truncated": header()[:47],
            "version": header(version=2),
            "type": header(type=10),
            "check": bytes(broken),
            "malformed": header() + b"x",
        }
        on_port = [datagram(payload, ports=(9753, 5)) for payload in cases.values()]
        assert verdicts(on_port) == list(cases)
        # Elsewhere the good one vouches for the others between the same ports, in both directions, and for nobody else.
        there = [
            datagram(payload, ports=(40_000, 40_001) if k % 2 else (40_001, 40_000)) for k, payload in enumerate(cases.values())
        ]
        assert verdicts(there) == list(cases)
        assert verdicts(there[1:]) == ["foreign"] * 5
        apart = [datagram(payload, ports=(40_000 + k, 50_000)) for k, payload in enumerate(cases.values())]
        assert verdicts(apart) == ["good"] + ["foreign"] * 5
        assert verdicts(apart[1:], ports=[50_000]) == list(cases)[1:]

    def test_an_offset_beyond_the_message(self):
        assert verdicts([datagram(header(type=PacketType.DATA, length=8, offset=16, stride=8))], ports=[40_000]) == ["malformed"]

    def test_another_jobs_cookie(self):
        two = [datagram(header(cookie=7)), datagram(header(cookie=8))]
        assert verdicts(two) == ["good", "good"]
        assert verdicts(two, cookie=8) == ["foreign", "good"]

    def test_random_datagrams_are_foreign(self):
        rng = np.random.default_rng(2)
        strangers = [datagram(rng.bytes(int(n)), ports=(10_000 + k, 2)) for k, n in enumerate(rng.integers(0, 300, 20_000))]
        assert set(verdicts(strangers)) == {"foreign"}

    def test_a_capture_that_holds_only_the_beginning(self, wire):
        payload = wire.datagram(np.random.default_rng(5), PacketType.DATA)
        for captured in range(len(payload)):
            expected = "good" if captured >= HEADER_BYTES else "cut" if captured >= 22 else "foreign"
            if HEADER.decode_one(payload)["phase"] > max(Phase) or HEADER.decode_one(payload)["dtype"] & 15 > 4:
                expected = "good" if captured >= HEADER_BYTES else "foreign"
            assert verdicts([datagram(payload[:captured], len(payload))]) == [expected]

    def test_the_beginning_of_sensible_packets_is_recognized(self):
        payload = header(phase=2, dtype=0x81)
        assert verdicts([datagram(payload[:22], 48), datagram(payload[:21], 48, ports=(1, 2))]) == ["cut", "foreign"]
        assert verdicts([datagram(header(phase=max(Phase) + 1)[:22], 48)]) == ["foreign"]
        assert verdicts([datagram(header(reserved=1)[:22], 48)]) == ["foreign"]

    def test_a_burst_whose_end_was_not_captured(self):
        burst = b"".join(header(type=PacketType.DATA, length=80, stride=40, offset=k * 40) + bytes(40) for k in range(2))
        for captured in range(HEADER_BYTES, len(burst)):
            found = verdicts([datagram(burst[:captured], len(burst))])
            assert found == (["good"] if captured < 88 + HEADER_BYTES else ["good", "good"])

    @given(st.lists(st.tuples(st.binary(max_size=150), st.integers(0, 10), st.booleans()), max_size=20))
    def test_no_bytes_do_harm(self, cases):
        payloads = [(header()[:2] + raw if begun else raw, more) for raw, more, begun in cases]
        out = summed([datagram(raw, len(raw) + more, ports=(9753, 1)) for raw, more in payloads]).to_dict()
        assert sum(out["verdicts"].values()) == out["packets"] >= len(cases)


@pytest.mark.root
def test_agrees_with_tshark_on_real_traffic(loopback, tshark, tmp_path, sample):
    for payload in sample[:40]:
        loopback.exchange(payload, tos=0xA2)
    loopback.exchange(bytes(50))
    capture = loopback.save(tmp_path / "real.pcap")
    found = summed([datagram_of(Frame(1, frame, len(frame), 0.0)) for frame in loopback.frames]).columns()
    rows = tshark.fields(capture, "dlcp.type", "dlcp.sequence", "dlcp.check.status", "udp.length", options=tshark.any_port)
    assert found["type"][:40].tolist() == [int(row["dlcp.type"][0]) for row in rows[:40]]
    assert found["sequence"][:40].tolist() == [int(row["dlcp.sequence"][0]) for row in rows[:40]]
    assert (found["bytes"] + 8).tolist() == [int(row["udp.length"][0]) for row in rows]
    assert found["verdict"].tolist() == [0] * 40 + [Verdict.VERSION]
