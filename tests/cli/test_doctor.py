"""``dlcp doctor``: it tries things for real, believes nothing, survives a bare host, and leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from dlcp.cli import checks, checks_network, doctor
from dlcp.cli.main import main
from dlcp.compiler import llvm

ASKED = {
    *(f"udp.{name}" for name in ("segmentation", "receive_offload", "sendmmsg", "recvmmsg", "tos_cmsg", "recv_tos")),
    *("buffer.receive", "buffer.send", "root", "cap_net_admin", "cap_net_raw", "netns", "link.veth", "link.bridge", "tcp.bbr"),
    *(f"tc.{name}" for name in ("netem", "htb", "tbf", "prio", "fq", "red", "clsact")),
    *(f"tool.{name}" for name in ("ip", "tc", "ethtool", "mnexec", "tshark", "iperf3", "p4c", "bmv2")),
    *("python.torch", "python.numpy", "python.llvmlite", "compiled", "cuda"),
}


def doctor_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dlcp", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
        check=False,
    )


def namespaces():
    """Those that this process has made."""
    return [path.name for path in Path("/run/netns").glob(f"dlcp-doctor-{os.getpid()}-*")]


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_json_is_one_document_with_every_answer():
    done = doctor_process("--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    answers = {check["id"]: check for check in document["checks"]}
    assert len(answers) == len(document["checks"])
    assert set(answers) >= ASKED
    assert document["missing"] == [name for name, check in answers.items() if not check["ok"]]
    assert document["host"]["cpus"] >= 1
    for check in answers.values():
        assert all(check[part] for part in ("group", "what", "detail", "lost", "remedy")), check
    assert answers["root"]["ok"] == (os.geteuid() == 0)
    assert answers["tool.ip"]["ok"] == (shutil.which("ip") is not None)
    assert answers["python.numpy"]["ok"]


def test_a_bare_host_gets_answers_too(tmp_path):
    done = doctor_process("--json", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    answers = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    assert not any(answers[f"tool.{name}"]["ok"] for name in ("ip", "tc", "tshark", "mnexec"))
    assert not answers["netns"]["ok"]
    assert answers["netns"]["detail"] == "ip is not installed"
    assert "not tried" in answers["tc.htb"]["detail"]


def test_require_is_for_scripts(tmp_path):
    done = doctor_process("--require", "python.numpy")
    assert done.returncode == 0
    done = doctor_process("--require", "netns,tool.tc", "--json", PATH=str(tmp_path))
    assert done.returncode == 3
    json.loads(done.stdout)
    assert done.stderr.splitlines()[-1] == "dlcp: this host lacks netns, tool.tc"


def test_require_knows_its_words(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_STEPS", (("rights", checks.rights),))
    assert main(["doctor", "--require", "nonsense"]) == 2
    assert "--require: nonsense: no such check; accepted: root, cap_net_admin, cap_net_raw" in capsys.readouterr().err


def test_the_table_says_what_is_lost_only_where_something_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    have = checks.Check("a", "G", "thing [one]", True, "works", "lost-a", "remedy-a")
    lack = checks.Check("b", "G", "thing two", False, "refused", "lost-b", "remedy-b")
    monkeypatch.setattr(doctor, "_STEPS", (("x", lambda: [have, lack]),))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "thing [one]" in out and "lost-b" in out and "remedy-b" in out and "1 of 2 available" in out
    assert "lost-a" not in out and "remedy-a" not in out
    assert main(["doctor", "--missing"]) == 0
    out = capsys.readouterr().out
    assert "thing two" in out and "thing [one]" not in out


def test_a_probe_that_fails_is_an_answer(monkeypatch):
    def broken():
        raise OSError("no sockets today")

    monkeypatch.setattr(import_module("dlcp.udp.probe"), "probe", broken)
    answers = list(checks.udp())
    assert not any(check.ok for check in answers)
    assert all("no sockets today" in check.detail for check in answers)


def test_buffers_are_what_the_kernel_granted(monkeypatch):
    from dlcp.policy import Memory, Policy

    for wanted in (4096, (1 << 30) - 1):
        monkeypatch.setattr(checks, "Policy", lambda wanted=wanted: Policy(memory=Memory(receive_buffer_bytes=wanted)))
        receive = next(iter(checks.buffers()))
        assert receive.ok == (wanted == 4096 or os.geteuid() == 0)


@pytest.fixture
def afresh(monkeypatch):
    """Lets compilation be tried again, and leaves no answer behind that holds for one test only."""
    known = (import_module("dlcp.transport.arrivals").compiled, import_module("dlcp.udp.batch").compiled, llvm._loaded)
    for function in known:
        function.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for function in known:
        function.cache_clear()


def test_packets_are_handled_by_compiled_code(afresh):
    afresh.delenv("DLCP_COMPILED", raising=False)
    (found,) = checks.compiled()
    assert found.ok and version("llvmlite") in found.detail


def test_compiled_code_that_was_switched_off(afresh):
    afresh.setenv("DLCP_COMPILED", "0")
    (found,) = checks.compiled()
    assert not found.ok and "DLCP_COMPILED=0" in found.detail and "interpreted Python" in found.lost


def test_without_llvm_packets_are_handled_by_python(afresh):
    afresh.delenv("DLCP_COMPILED", raising=False)
    afresh.setitem(sys.modules, "llvmlite.binding", None)
    (found,) = checks.compiled()
    assert not found.ok and found.detail.startswith("packets received and sent are handled by interpreted Python")
    assert "pip install 'llvmlite>=0.44'" in found.remedy


def test_tools_that_hang_or_fail(tmp_path, monkeypatch):
    script(tmp_path / "tshark", "exit 3\n")
    script(tmp_path / "iperf3", "exec sleep 60\n")
    script(tmp_path / "ethtool", "echo no version; echo ethtool version 9.9\n")
    (tmp_path / "tc").write_text("not a program")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(checks, "TOOL_TIMEOUT_S", 0.2)
    answers = {check.id: check for check in checks.tools()}
    assert not answers["tool.tshark"].ok
    assert not answers["tool.iperf3"].ok
    assert "no answer" in answers["tool.iperf3"].detail
    assert not answers["tool.tc"].ok
    assert answers["tool.ethtool"].detail == "ethtool version 9.9"


def test_a_tc_that_lies_is_not_believed(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    script(tmp_path / "ip", f'echo "$@" >> {calls}\nexit 0\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    answers = {check.id: check for check in checks_network.network()}
    assert answers["netns"].ok
    assert not answers["tc.htb"].ok
    assert answers["tc.htb"].detail == "accepted, but not in effect"
    lines = calls.read_text().splitlines()
    made = lines[0].split()[-1]
    assert lines[0].startswith("netns add dlcp-doctor-")
    assert lines[-1] == f"netns del {made}"


@pytest.mark.root
@pytest.mark.skipif(shutil.which("tc") is None, reason="iproute2 is not installed")
def test_a_real_namespace_is_tried_and_removed_even_when_interrupted():
    answers = {check.id: check for check in checks_network.network()}
    assert answers["netns"].ok or answers["netns"].detail
    assert namespaces() == []
    with pytest.raises(KeyboardInterrupt), checks_network.namespace() as (name, failure):
        assert failure or name in namespaces()
        raise KeyboardInterrupt
    assert namespaces() == []


@pytest.mark.root
def test_without_rights_it_says_so():
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    code = """
import json
from dlcp.cli import checks, checks_network
answers = [*checks.rights(), *checks_network.network(), *checks.buffers()]
print(json.dumps({answer.id: answer.ok for answer in answers}))
"""
    done = subprocess.run(
        [setpriv, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert not any(answers[name] for name in ("cap_net_admin", "cap_net_raw", "netns", "link.veth", "tc.htb"))
