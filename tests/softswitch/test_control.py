"""Changing a running switch's links through its control socket, and losses of what arrives."""

import json
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.control import MAX_REQUEST, ControlSocket
from softswitch.errors import BadValue, SwitchError
from softswitch.loop import SwitchLoop
from softswitch.options import parse_arguments, port_options
from softswitch.statistics import statistics
from softswitch.switch import Switch
from tests.softswitch.scripted import ScriptedPipeline, send


def two_ports(seed=1, **options):
    switch = Switch(seed=seed)
    switch.add_port(1, **options)
    switch.add_port(2)
    switch.set_pipeline(ScriptedPipeline())
    return switch


@given(st.floats(0, 1), st.integers(1, 300), st.integers(0, 3))
def test_what_is_lost_on_arrival_is_counted_and_the_rest_goes_on(loss, count, seed):
    switch = two_ports(seed, loss_in=loss)
    switch.receive_batch(1, [send(2, 0, tag=index) for index in range(count)], 0)
    kept = [int.from_bytes(data[:4], "big") for _, data in switch.transmit(1)]
    assert kept == sorted(kept)
    data = statistics(switch, 1)
    lost = data["drops"].get("link-loss", 0)
    assert (data["received"], data["transmitted"]) == (count, len(kept)) and lost == count - len(kept)
    assert data["ports"]["1"]["in_packets"] == len(kept) and data["ports"]["1"]["loss_in"] == loss
    assert lost == {0.0: 0, 1.0: count}.get(loss, lost)
    again = two_ports(seed, loss_in=loss)
    again.receive_batch(1, [send(2, 0, tag=index) for index in range(count)], 0)
    assert [int.from_bytes(data[:4], "big") for _, data in again.transmit(1)] == kept, "the same seed loses the same"


def test_arrivals_and_departures_lose_different_packets():
    switch = Switch(seed=4)
    for number in (1, 2):
        switch.add_port(number, loss=0.5, loss_in=0.5)
    port = switch.ports[1]
    arriving = [bool(port.arriving([b"x"])) for _ in range(200)]
    leaving = [port.link.send(b"x", 0) for _ in range(200)]
    assert 60 < sum(arriving) < 140 and arriving != leaving


@pytest.mark.parametrize("loss", [-0.1, 1.1, float("nan")])
def test_a_loss_is_a_probability(loss):
    switch = two_ports()
    with pytest.raises(BadValue, match="probability"):
        switch.set_link(1, loss_in=loss)
    with pytest.raises(BadValue, match="probability"):
        switch.add_port(3, loss_in=loss)
    assert switch.ports[1].loss_in == 0.0


def test_the_command_line_takes_losses_of_what_arrives():
    args = parse_arguments(["--no-p4", "-i", "1@a", "-i", "2@b", "--loss-in", "1%", "--loss-in", "2=0.5", "--control", "x.sock"])
    assert port_options(args, 1)["loss_in"] == 0.01 and port_options(args, 2)["loss_in"] == 0.5
    assert str(args.control) == "x.sock"


@pytest.fixture
def rig(tmp_path):
    """A running switch, and its control socket."""
    loop = SwitchLoop(two_ports())
    control = ControlSocket(loop, tmp_path / "control")
    with loop.running():
        yield loop, tmp_path / "control"
    control.close()
    loop.close()


def ask(path, *requests):
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(20)
        channel.connect(str(path))
        file = channel.makefile("rwb")
        answers = []
        for request in requests:
            file.write(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
            file.flush()
            answers.append(json.loads(file.readline()))
        file.close()
    return answers


def test_links_change_while_it_runs(rig):
    loop, path = rig
    request = {"do": "link", "port": 2, "rate_bps": 5_000_000, "delay_ns": 7, "loss": 0.25, "loss_in": 1}
    changed, told = ask(path, request, {"do": "statistics"})
    assert changed == {"ok": None}
    port = told["ok"]["ports"]["2"]
    assert (port["rate_bps"], port["delay_ns"], port["loss"], port["loss_in"]) == (5_000_000, 7, 0.25, 1)
    assert told["ok"]["start_ns"] == loop.switch.start
    ask(path, {"do": "link", "port": 2, "rate_bps": None})
    link = loop.switch.ports[2].link
    assert (link.rate_bps, link.delay_ns, link.loss) == (None, 7, 0.25), "what is left out stays"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (b"\n", "JSON object"),
        (b"[" * 4000 + b"\n", "JSON object"),
        (b"[]\n", '"statistics" or "link"'),
        (b'{"do": "dance"}\n', '"statistics" or "link"'),
        ({"do": "link"}, '"port"'),
        ({"do": "link", "port": True}, '"port"'),
        ({"do": "link", "port": 9, "loss": 0}, "no port 9"),
        ({"do": "link", "port": 1, "loss": "much"}, "loss = 'much'"),
        ({"do": "link", "port": 1, "loss": 7}, "within 0 and 1"),
        ({"do": "link", "port": 1, "delay_ns": -1}, "not negative"),
        ({"do": "link", "port": 1, "rate_bps": 0}, "at least 1"),
        ({"do": "link", "port": 1, "colour": 0}, "colour = 0"),
        (b'{"do": "link", "port": 1, "loss": NaN}\n', "within 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(rig, request_, error):
    loop, path = rig
    before = loop.call(lambda: statistics(loop.switch, 1)["ports"])
    answers = ask(path, request_, {"do": "statistics"})
    assert error in answers[0]["error"] and "ok" in answers[1], "the connection lives on"
    assert loop.call(lambda: statistics(loop.switch, 1)["ports"]) == before


@given(st.binary(max_size=64))
def test_no_request_ends_it(tmp_path_factory, data):
    loop = SwitchLoop(two_ports())
    path = tmp_path_factory.mktemp("control") / "s"
    control = ControlSocket(loop, path)
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(20)
            channel.connect(str(path))
            channel.sendall(data + b"\n")
            channel.recv(65536)
        assert "ok" in ask(path, {"do": "statistics"})[0]
    finally:
        control.close()
        loop.close()


def test_an_endless_request_is_cut_off(rig):
    _, path = rig
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(20)
        channel.connect(str(path))
        with pytest.raises(OSError):
            while True:
                channel.sendall(b"x" * MAX_REQUEST)
    assert "ok" in ask(path, {"do": "statistics"})[0]


def test_the_socket_is_the_users_alone_and_goes_with_the_switch(tmp_path):
    loop = SwitchLoop(two_ports())
    path = tmp_path / "s"
    path.write_text("left by another")
    control = ControlSocket(loop, path)
    assert stat.S_ISSOCK(path.stat().st_mode) and stat.S_IMODE(path.stat().st_mode) == 0o600
    control.close()
    assert not path.exists()
    with pytest.raises(SwitchError, match="No such file"):
        ControlSocket(loop, tmp_path / "no" / "folder")
    loop.close()
