"""``dlcp policy``: write, show and check policy files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlcp.errors import ConfigError
from dlcp.policy import Policy

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  dlcp policy init > job.toml           a file with every key, its default and what it accepts
  dlcp policy check job.toml            says what is wrong and where, or prints the digest
  dlcp policy show job.toml             the policy in full, defaults filled in
  dlcp policy show job.toml --changed   only what differs from the defaults
  dlcp policy show --json | jq .policy.loss

All ranks of a job compare the digest of their policies when they meet.
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``policy`` with its verbs."""
    parser = subparsers.add_parser(
        "policy",
        help="write, show and check policy files",
        description="A policy (TOML) says how gradients are tagged, how much may be lost, and how the transport behaves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)

    init = verbs.add_parser("init", help="print a commented file with the defaults, or write it")
    init.add_argument("file", nargs="?", type=Path, help="write here instead of standard output; never overwrites")

    show = verbs.add_parser("show", help="print a policy in full")
    show.add_argument("file", nargs="?", type=Path, help="policy file (the defaults if left out)")
    show.add_argument("--changed", action="store_true", help="only what differs from the defaults")
    show.add_argument("--json", action="store_true", help="one JSON document: source, digest, changed, policy")

    check = verbs.add_parser("check", help="check a file; exit code 2 if anything is wrong")
    check.add_argument("file", type=Path, help="policy file")
    check.add_argument("--json", action="store_true", help="one JSON document: source, valid, and digest or error")


def run(args: argparse.Namespace) -> int:
    """Runs a verb."""
    verb = {"init": _init, "show": _show, "check": _check}[args.verb]
    return verb(args)


def _init(args: argparse.Namespace) -> int:
    text = Policy().to_toml(comments=True)
    if args.file is None:
        sys.stdout.write(text)
        return 0
    try:
        with args.file.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(args.file, "(file)", "is there already", "a name that is not taken") from None
    except OSError as error:
        raise ConfigError(args.file, "(file)", f"cannot be written: {error.strerror}", "a writable place") from None
    print(f"wrote {args.file}")
    return 0


def _show(args: argparse.Namespace) -> int:
    policy = Policy() if args.file is None else Policy.from_toml(args.file)
    changed = Policy().difference(policy)
    if args.json:
        _print_json({"source": _name(args.file), "digest": policy.digest(), "changed": changed, "policy": policy.to_dict()})
    elif args.changed:
        plain = policy.to_dict()
        for key in changed:
            head, leaf = key.split(".")
            print(f"{key} = {json.dumps(plain[head][leaf])}")
    else:
        print(f"# {_name(args.file)}, digest {policy.digest()}\n")
        sys.stdout.write(policy.to_toml())
    return 0


def _check(args: argparse.Namespace) -> int:
    try:
        policy = Policy.from_toml(args.file)
    except ConfigError as error:
        if not args.json:
            raise
        wrong = {"key": error.key, "problem": error.problem, "accepted": error.accepted}
        _print_json({"source": error.source, "valid": False, "error": wrong})
        return 2
    if args.json:
        _print_json({"source": str(args.file), "valid": True, "digest": policy.digest()})
    else:
        print(f"{args.file}: valid, digest {policy.digest()}")
    return 0


def _name(file: Path | None) -> str:
    return "defaults" if file is None else str(file)


def _print_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    print()
