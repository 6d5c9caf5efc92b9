"""The commands of docs/deployment.md, run as they stand there."""

import re
import shlex

import pytest

from dlcp.cli.main import main
from dlcp.topology import Topology
from softswitch.server.testing import running_switches

ELSEWHERE = ("shell", "--tls")
"""Commands that need more than switches: they have tests of their own."""


@pytest.fixture
def page(project):
    return (project / "docs" / "deployment.md").read_text()


def commands(page):
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("dlcp switch") and not any(word in line for word in ELSEWHERE):
                yield line.partition(" > ")[0]


def test_every_command_works_in_the_order_of_the_page(page, tmp_path, monkeypatch, capsys):
    (text,) = (block for block in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "hosts" in block)
    (tmp_path / "net.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    topology = Topology.from_toml("net.toml")
    lines = list(commands(page))
    assert len(lines) >= 18 and {line.split()[2] for line in lines} == {
        "plan", "deploy", "status", "counters", "drain", "undrain", "permit", "forbid", "export"
    }  # fmt: skip
    with running_switches(4) as switches:
        at = [f"--at={name}={switches[number - 1].address}" for name, number in topology.device_ids.items()]
        for line in lines:
            words = shlex.split(line)[1:]
            if "--watch" in words and "--count" not in words:
                words += ["--count", "1"]
            code = main([*words, *(at if words[1] != "export" else [])])
            out, err = capsys.readouterr()
            assert code == 0, f"{line}: {err}"
            assert out


def test_the_excerpt_of_a_plan_is_what_comes_out(page, tmp_path, capsys):
    (text,) = (block for block in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "hosts" in block)
    (tmp_path / "net.toml").write_text(text)
    (shown,) = re.findall(r"^\$ dlcp switch plan net.toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with running_switches(1) as switches:
        words = ["switch", "plan", str(tmp_path / "net.toml"), "--only", "leaf0", f"--at=leaf0={switches[0].address}"]
        assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in shown.splitlines()[1:]:
        assert line in lines or line.strip() == "..."
