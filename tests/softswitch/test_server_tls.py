"""TLS and mutual TLS, with certificates made for the test; the default is the loopback."""

import shutil
import socket
import subprocess

import grpc
import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r

from softswitch.errors import BadValue
from softswitch.server import DEFAULT_ADDRESS, P4RuntimeServer, TLSFiles
from softswitch.server.device import InMemoryDevice
from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import Controller, Failed

REQUEST = p4r.CapabilitiesRequest()


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A certificate authority, and a server and a client that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "rogue"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}")
    for name, signer in (("server", "ca"), ("client", "ca"), ("stranger", "rogue")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signing = ["-CA", f"{signer}.pem", "-CAkey", f"{signer}.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext"]
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return folder


def credentials(pki, name=None, ca="ca"):
    root = (pki / f"{ca}.pem").read_bytes()
    if name is None:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, (pki / f"{name}.key").read_bytes(), (pki / f"{name}.pem").read_bytes())


def works(address, channel_credentials):
    with Controller(address, credentials=channel_credentials) as controller:
        try:
            controller.rpc("Capabilities", REQUEST)
            return True
        except Failed:
            return False


def test_tls(pki):
    tls = TLSFiles(pki / "server.pem", pki / "server.key")
    with running_switches(tls=tls) as (switch,):
        assert works(switch.address, credentials(pki))
        assert works(switch.address, credentials(pki, "client"))
        assert not works(switch.address, credentials(pki, ca="rogue"))
        assert not works(switch.address, None)


def test_mutual_tls(pki):
    tls = TLSFiles(pki / "server.pem", pki / "server.key", pki / "ca.pem")
    with running_switches(tls=tls) as (switch,):
        assert works(switch.address, credentials(pki, "client"))
        assert not works(switch.address, credentials(pki))
        assert not works(switch.address, credentials(pki, "stranger"))
        assert not works(switch.address, None)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(BadValue, match="nothing"):
        P4RuntimeServer([], tls=TLSFiles(tmp_path / "nothing.pem", tmp_path / "nothing.key"))


def test_addresses():
    assert DEFAULT_ADDRESS.startswith("127.0.0.1:")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = P4RuntimeServer([InMemoryDevice()], f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BadValue, match="cannot serve"):
            server.start()
        server.stop()
    with pytest.raises(BadValue, match="two devices"):
        P4RuntimeServer([InMemoryDevice(1), InMemoryDevice(1)])


def test_a_server_can_stop_before_it_starts_and_under_open_streams():
    P4RuntimeServer([InMemoryDevice()]).stop()
    device = InMemoryDevice()
    server = P4RuntimeServer([device], "127.0.0.1:0")
    with Controller(f"127.0.0.1:{server.start()}") as controller:
        controller.bid(1)
        server.stop()
        with pytest.raises(Failed):
            controller.receive()
