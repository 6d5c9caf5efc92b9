"""A fork server for tests: its children print, fail or sleep, as the request says."""

import os
import signal
import sys
import time

from testbed.lab.forks import serve


def work(request):
    print("hello from", request["name"], os.getpid(), flush=True)
    print("standard input holds", repr(sys.stdin.read()), flush=True)
    print("Ctrl-C is", signal.getsignal(signal.SIGINT).__name__, flush=True)
    if request["do"] == "sleep":
        time.sleep(600)
    if request["do"] == "fail":
        raise ValueError("as asked for")
    if request["do"] == "leave":
        sys.exit(3)
    return request["code"]


def main():
    return serve(lambda: None, work, lambda request: f"work-{request['name']}")
