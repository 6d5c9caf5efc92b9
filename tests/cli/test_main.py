"""The command line: what it says, and the exit code it says it with."""

import json
import os
import subprocess
import sys
import types

import pytest

from dlcp import __version__
from dlcp.cli import main as cli
from dlcp.errors import ConfigError, PeerLostError
from dlcp.policy import Policy


@pytest.fixture
def command(monkeypatch):
    """Installs a subcommand ``fake`` whose run() does what the test wants."""

    def install(run):
        module = types.ModuleType("dlcp_fake_command")
        module.add_parser = lambda subparsers: subparsers.add_parser("fake", help="fake").add_argument("--n", type=int)
        module.run = run
        module.__spec__ = types.SimpleNamespace(name="dlcp_fake_command")
        monkeypatch.setitem(sys.modules, "dlcp_fake_command", module)
        monkeypatch.setitem(cli.SUBCOMMANDS, "fake", ("dlcp_fake_command", "a fake"))

    return install


def raising(error):
    def run(args):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            ConfigError("a.toml", "loss.push", "2 is out of range", "0 to 0.5"),
            2,
            "dlcp: a.toml: loss.push: 2 is out of range; accepted: 0 to 0.5",
        ),
        (PeerLostError(3, "waiting for part 2", 10), 4, "dlcp: rank 3 has been silent for 10.0 s; waiting for part 2"),
        (ZeroDivisionError("a\nb"), 1, "dlcp: ZeroDivisionError: a b (run again with --debug for the traceback)"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_a_code(command, capsys, error, code, line):
    command(raising(error))
    assert cli.main(["fake"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (line + "\n" if line else "")


@pytest.mark.parametrize("arguments", [["--debug", "fake"], ["fake", "--debug"]])
def test_debug_shows_the_traceback(command, capsys, arguments):
    command(raising(ZeroDivisionError("x")))
    assert cli.main(arguments) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_code_of_a_subcommand_is_the_code_of_the_process(command):
    command(lambda args: args.n)
    assert cli.main(["fake", "--n", "3"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["nonsense"], 2), (["policy"], 2), (["policy", "check"], 2), (["--help"], 0)]
)
def test_usage(arguments, code, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == code
    out, err = capsys.readouterr()
    assert (out if code == 0 else err).strip()
    assert code == 0 or "--help" in err


def test_help_names_every_subcommand_and_imports_none(capsys):
    code = "import sys; from dlcp.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    text, loaded = " ".join(out.rsplit("\n", 2)[0].split()), out.splitlines()[-1].split()
    for name, (_, summary) in cli.available().items():
        assert name in text and summary in text
    assert "torch" not in loaded and "numpy" not in loaded


@pytest.mark.parametrize("name", sorted(cli.available()))
def test_every_subcommand_teaches(name, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == 0
    assert f"dlcp {name}" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"dlcp {__version__}\n"


def test_python_dash_m_and_a_reader_that_leaves():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", "dlcp", "policy", "init"], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_policy_init_show_check(tmp_path, capsys):
    path = tmp_path / "job.toml"
    assert cli.main(["policy", "init", str(path)]) == 0
    assert path.read_text() == Policy().to_toml(comments=True)
    assert cli.main(["policy", "init", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert cli.main(["policy", "init", str(tmp_path / "no" / "where")]) == 2
    assert "cannot be written" in capsys.readouterr().err

    assert cli.main(["policy", "init"]) == 0
    assert capsys.readouterr().out == path.read_text()

    assert cli.main(["policy", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: valid, digest {Policy().digest()}\n"

    path.write_text("[loss]\npush = 0.1\n[classes]\ndscp = [1, 1, 1, 1, 1, 1, 1, 1]\n")
    assert cli.main(["policy", "show", str(path), "--changed"]) == 0
    assert capsys.readouterr().out == "classes.dscp = [1, 1, 1, 1, 1, 1, 1, 1]\nloss.push = 0.1\n"
    assert cli.main(["policy", "show", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    policy = Policy.from_toml(path)
    assert document == {
        "source": str(path),
        "digest": policy.digest(),
        "changed": ["classes.dscp", "loss.push"],
        "policy": policy.to_dict(),
    }
    assert cli.main(["policy", "show", str(path)]) == 0
    shown = tmp_path / "shown.toml"
    shown.write_text(capsys.readouterr().out)
    assert Policy.from_toml(shown) == policy


def test_policy_check_refuses(tmp_path, capsys):
    path = tmp_path / "job.toml"
    path.write_text("[loss]\npsh = 0.1\n")
    assert cli.main(["policy", "check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err == f"dlcp: {path}: loss.psh: unknown key (did you mean 'push'?); accepted: push, push_by_class, bound, bound_window, "
        "evenness, pull, resync_steps, compensation\n"
    )
    assert cli.main(["policy", "check", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["valid"] is False
    assert document["error"]["key"] == "loss.psh"
    assert cli.main(["policy", "check", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
