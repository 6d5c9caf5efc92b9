"""Set-up of a machine: what is missing is installed as root, and otherwise named with what is lost without it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "system.sh"
NEEDED = ("bash", "mktemp", "tail", "rm", "basename")
WANTED = ("tshark", "ip", "tc", "ethtool", "mnexec", "iperf3", "ping")


def program(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path):
    """A PATH with no more than the script itself needs, and an apt-get that writes down how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        (folder / name).symlink_to(shutil.which(name))
    program(folder / "python3", "exit 0\n")

    class Machine:
        bin = folder
        calls = tmp_path / "calls"

        def user(self, number):
            program(folder / "id", f"echo {number}\n")
            program(folder / "apt-get", f'echo "$DEBIAN_FRONTEND $@" >> {self.calls}\n')

        def run(self, python="python3", *more):
            # The script looks into the system's sbin as well; a stand-in keeps the answer the same on every machine.
            script = tmp_path / "system.sh"
            script.write_text(SCRIPT.read_text().replace('PATH="$PATH:/usr/sbin:/sbin"', ""))
            return subprocess.run(
                ["bash", str(script), python, *more],
                env={"PATH": str(folder), "TMPDIR": str(tmp_path)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        def installed(self):
            if not self.calls.exists():
                return None
            lines = self.calls.read_text().splitlines()
            assert lines[0] == "noninteractive update"
            assert all(line.startswith("noninteractive ") for line in lines)
            return [word for word in lines[1].split()[2:] if not word.startswith("-")]

    return Machine()


def test_nothing_is_done_when_nothing_is_missing(machine):
    machine.user(0)
    for name in WANTED:
        program(machine.bin / name, "")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.installed() is None


def test_root_gets_what_is_missing_and_each_package_once(machine):
    machine.user(0)
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.installed() == ["tshark", "iproute2", "ethtool", "mininet", "iperf3", "iputils-ping"]


def test_others_are_told_what_is_lost(machine):
    machine.user(1000)
    program(machine.bin / "tshark", "")
    done = machine.run()
    assert done.returncode == 0
    assert machine.installed() is None
    assert "sudo make system" in done.stdout
    assert "iproute2: no emulated networks" in done.stdout
    assert "tshark" not in done.stdout


def test_a_python_without_venv_gets_it(machine):
    machine.user(0)
    for name in WANTED:
        program(machine.bin / name, "")
    program(machine.bin / "python3.99", 'case "$*" in *ensurepip*) exit 1;; *) echo 3.99;; esac\n')
    assert machine.run("python3.99").returncode == 0
    assert machine.installed() == ["python3.99-venv"]


def test_no_python_at_all(machine):
    machine.user(0)
    for name in WANTED:
        program(machine.bin / name, "")
    (machine.bin / "python3").unlink()
    assert machine.run().returncode == 0
    assert machine.installed() == ["python3", "python3-venv"]


def test_an_installation_that_fails_is_shown_and_survived(machine):
    machine.user(0)
    program(machine.bin / "apt-get", "echo E: no such package >&2; exit 100\n")
    done = machine.run()
    assert done.returncode == 0
    assert "E: no such package" in done.stdout
    assert "tshark: the tests of the Wireshark dissector are skipped" in done.stdout


def test_a_browser_is_for_tests_only(machine):
    machine.user(0)
    for name in WANTED:
        program(machine.bin / name, "")
    assert machine.run("python3", "tests").returncode == 0
    assert machine.installed() == ["chromium"]


def test_a_package_that_is_unknown_keeps_no_other_away(machine):
    machine.user(0)
    text = f'case "$*" in *mininet*) echo E: what is mininet >&2; exit 100;; *) echo "$@" >> {machine.calls};; esac\n'
    program(machine.bin / "apt-get", text)
    done = machine.run()
    assert done.returncode == 0
    calls = [line.split()[-1] for line in machine.calls.read_text().splitlines()]
    assert calls == ["update", "tshark", "iproute2", "ethtool", "iperf3", "iputils-ping"]
    assert "E: what is mininet" in done.stdout and "mininet: no emulated networks" in done.stdout
    assert "tshark: " not in done.stdout


def test_an_old_python_is_refused_with_advice(tmp_path):
    old = tmp_path / "python3.9"
    program(old, "exit 1\n")
    (tmp_path / "scripts").mkdir()
    program(tmp_path / "scripts" / "system.sh", "exit 0\n")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        ["make", "venv", f"PYTHON={old}"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stdout
    assert not (tmp_path / ".venv").exists()
