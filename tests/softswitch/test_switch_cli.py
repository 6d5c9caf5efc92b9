"""The command: what it says about itself, how it fails, and what it does between captures and between interfaces."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from softswitch.ports.pcap import PcapWriter, read_pcap
from tests.softswitch import steer
from tests.softswitch.lab import make_lab

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "softswitch"]
SECOND = 10**9
_PR_CAPBSET_DROP = 24
_CAP_NET_RAW = 13


def run(*arguments, cwd=ROOT, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60, **options)


class Process:
    """A running switch; ``ready`` is the line that it says when it is."""

    def __init__(self, arguments, cwd, prefix=()):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*prefix, *COMMAND, *map(str, arguments)],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready = self.process.stdout.readline()

    def tell(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        """Ends it; returns exit code and what it wrote to standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextmanager
def started(*arguments, cwd=ROOT, prefix=()):
    process = Process(arguments, cwd, prefix)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate(timeout=30)


def wait_for(path, condition=lambda data: True):
    """Waits for a statistics file that satisfies ``condition`` and returns it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists():
            data = json.loads(path.read_text())
            if condition(data):
                return data
        time.sleep(0.01)
    raise AssertionError(f"{path} does not say so")


def test_help_teaches():
    done = run("--help")
    assert done.returncode == 0
    for word in ("examples:", "--rate 2=100M", "-i 1@veth1", "exit codes:", "SIGUSR1", "--grpc-server-addr", "CAP_NET_RAW"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which program?"),
        (["x.json", "--no-p4"], "exclude each other"),
        (["x.json", "--json", "y.json"], "named twice"),
        (["--no-p4", "-i", "veth1"], "not PORT@INTERFACE"),
        (["--no-p4", "-i", "1@a", "-i", "1@b"], "port 1 is given twice"),
        (["--no-p4", "-i", "1@a", "-i", "2@a"], "interface a is given twice"),
        (["--no-p4", "-i", "1@a", "--rate", "2=100M"], "there is no port 2"),
        (["--no-p4", "-i", "1@a", "--rate", "1=fast"], "write it like 100M"),
        (["--no-p4", "--rate", "x=1M"], "[PORT=]VALUE"),
        (["--no-p4", "--delay", "5"], "write it like 5ms"),
        (["--no-p4", "--loss", "1.5"], "not a probability"),
        (["--no-p4", "--priority-queues", "0"], "less than 1"),
        (["--no-p4", "-i", "510@a", "--cpu-port", "510"], "cannot be the CPU port"),
        (["--no-p4", "--tls-cert", "x.pem"], "go together"),
        (["--no-p4", "--grpc-server-ssl"], "TLS needs"),
        (["x.json", "--grpc", "127.0.0.1:0"], "name it with --p4info"),
        (["--no-p4", "--nonsense"], "unrecognized"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_is_wrong(arguments, message, capsys):
    from softswitch.cli import main

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert message in problem
    assert hint == "try: softswitch --help"


def failing(capsys, *arguments):
    from softswitch.cli import main

    code = main([str(word) for word in arguments])
    return code, capsys.readouterr().err


def test_wrong_files_are_errors_of_one_line(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text('{"parsers": 5}')
    for path, message in ((tmp_path / "none.json", "No such file"), (bad, "bad.json: ")):
        code, errors = failing(capsys, path)
        assert code == 2
        assert errors.startswith("softswitch: ") and message in errors and errors.count("\n") == 1
    code, errors = failing(capsys, steer.JSON, "--use-files", "0", "-i", f"1@{tmp_path}/none".replace("/", "_"))
    assert code == 2 and "_in.pcap: no such file" in errors


@pytest.mark.root
def test_an_interface_that_is_not_there_is_wrong_usage(capsys):
    code, errors = failing(capsys, steer.JSON, "-i", "1@nosuchif0")
    assert code == 2
    assert errors == "softswitch: there is no network interface 'nosuchif0' (see `ip link`)\n"


def test_without_the_capability_it_says_what_to_do():
    def drop():
        if os.geteuid() == 0:
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_NET_RAW, 0, 0, 0)

    done = run(steer.JSON, "-i", "1@lo", preexec_fn=drop)
    assert done.returncode == 3
    assert done.stderr.startswith("softswitch: capturing and sending frames needs CAP_NET_RAW: run as root")
    assert done.stderr.count("\n") == 1


def test_the_generated_code_can_be_read():
    done = run(steer.JSON, "--dump-code")
    assert done.returncode == 0
    compile(done.stdout, "generated", "exec")
    assert "def " in done.stdout


def test_captures_are_replayed_in_their_own_time(tmp_path):
    with PcapWriter(tmp_path / "a_in.pcap") as file:
        # Ten frames of 1000 bytes at once: at 8 Mbit/s they leave 1 ms apart, class 7 first.
        file.write(1000 * SECOND, [steer.frame(2, index % 2 * 7, tag=index, length=1000) for index in range(10)])
    PcapWriter(tmp_path / "b_in.pcap").close()
    ports = ["--use-files", "0", "-i", "1@a", "-i", "2@b", "--rate", "2=8M", "--delay", "2=5ms", "--stats", "stats.json"]
    results = []
    for _ in range(2):
        done = run(steer.JSON, *ports, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        results.append((tmp_path / "b_out.pcap").read_bytes())
    assert results[0] == results[1]
    out = [(at - 1000 * SECOND, steer.fields(data)["tag"]) for at, data in read_pcap(tmp_path / "b_out.pcap")]
    order = [0, 1, 3, 5, 7, 9, 2, 4, 6, 8]
    assert out == [((index + 1) * 1_000_000 + 5_000_000, tag) for index, tag in enumerate(order)]
    assert list(read_pcap(tmp_path / "a_out.pcap")) == []
    data = json.loads((tmp_path / "stats.json").read_text())
    assert data["received"] == data["transmitted"] == 10 and not data["drops"]


def test_bmv2_s_command_line_is_understood(tmp_path):
    words = "--no-p4 --device-id 7 --thrift-port 9091 --log-console --log-level debug -- --grpc-server-addr 127.0.0.1:0"
    with started(*words.split(), "--priority-queues", "8", "--cpu-port", "510", cwd=tmp_path) as process:
        assert process.ready.startswith("softswitch: device 7 is ready, ports none, P4Runtime on 127.0.0.1:")
        assert not process.ready.rstrip().endswith(":0")
        code, errors = process.end(signal.SIGINT)
    assert code == 0
    assert "--thrift-port is ignored" in errors and "SIGINT" in errors


@pytest.mark.root
def test_a_switch_between_interfaces(tmp_path):
    with make_lab(1, 2) as lab:
        prefix = ["ip", "netns", "exec", lab.name]
        arguments = [steer.JSON, "-i", "1@s1", "-i", "2@s2", "--rate", "2=800k", "--queue-depth", "2=20", "--device-id", "3"]
        arguments += ["--stats", "stats.json", "--trace", "trace.jsonl", "--trace-interval", "1ms", "--pcap", tmp_path]
        one, two = lab.host(1), lab.host(2)
        with started(*arguments, cwd=tmp_path, prefix=prefix) as process:
            assert process.ready == "softswitch: device 3 is ready, ports 1@s1 2@s2\n"
            # Port 2 takes a frame in 10 ms and holds 20: of 50 at once it loses some, but none of the few of class 7.
            begin = time.monotonic()
            for index in range(50):
                one.send(steer.frame(2, 7 if index % 10 == 9 else 0, tag=index, length=1000))
            process.tell(signal.SIGUSR1)
            first = wait_for(tmp_path / "stats.json")
            assert first["device_id"] == 3 and first["ports"]["2"]["interface"] == "s2"

            def is_through(data):
                process.tell(signal.SIGUSR1)
                return data["received"] == 50 and data["waiting"] == 0

            through = wait_for(tmp_path / "stats.json", is_through)
            seen = [steer.fields(two.recv(2048))["tag"] for _ in range(through["transmitted"])]
            assert time.monotonic() - begin >= len(seen) * 0.01
            assert [tag for tag in seen if tag % 10 == 9] == [9, 19, 29, 39, 49]
            lower = [tag for tag in seen if tag % 10 != 9]
            assert lower == sorted(lower) and 20 <= len(lower) < 45
            two.send(steer.frame(1, tag=77))
            assert steer.fields(one.recv(2048))["tag"] == 77

            # A link that goes down is seen, and comes back.
            for state, up in (("down", False), ("up", True)):
                lab.ip("link", "set", "h2", state)

                def is_so(data, up=up):
                    process.tell(signal.SIGUSR1)
                    return data["ports"]["2"]["up"] is up

                wait_for(tmp_path / "stats.json", is_so)

            # An interface that is deleted and made again is taken up again.
            two.close()
            lab.ip("link", "del", "s2")
            lab.pair(2)
            two = lab.host(2)
            deadline = time.monotonic() + 20
            while True:
                one.send(steer.frame(2, tag=5))
                if select.select([two], [], [], 0.1)[0]:
                    break
                assert time.monotonic() < deadline
            (tmp_path / "stats.json").unlink()
            code, errors = process.end()
        assert (code, errors) == (0, "")
        one.close()
        two.close()
    data = json.loads((tmp_path / "stats.json").read_text())
    assert data["received"] == data["transmitted"] + data["waiting"] + sum(data["drops"].values())
    assert data["drops"]["queue-full"] >= 45 - len(lower)
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    depths = [line["ports"]["2"]["depth"] for line in lines]
    assert max(depth[0] for depth in depths) == 20 and min(line["ports"]["2"]["depth"][0] for line in lines) == 0
    assert all(0 <= line["ports"]["2"]["utilisation"] <= 1.001 for line in lines)
    captured = [steer.fields(frame)["tag"] for _, frame in read_pcap(tmp_path / "s2_out.pcap")]
    assert captured[: len(seen)] == seen
    assert [steer.fields(frame)["tag"] for _, frame in read_pcap(tmp_path / "s1_in.pcap")][:50] == list(range(50))
