"""`trainvitals prometheus`: the rules and the scrape configuration, for a Prometheus that is there already.
Tested in tests/views/cli/test_deployment_commands.py."""

from __future__ import annotations

import argparse
import ipaddress

from trainvitals.errors import nearest
from trainvitals.views.cli.arguments import Action, Parser, UsageError, number, resolve_settings
from trainvitals.views.cli.exporter_flags import add_spelling

DEFAULT_PORT = 9090


def _add_rules(parser: Parser) -> None:
    add_spelling(parser)
    parser.add_config()


def _rules(arguments: argparse.Namespace) -> int:
    from trainvitals.conditions import Conditions
    from trainvitals.views.deployment.rules import render

    conditions = Conditions(resolve_settings(arguments).alerts_thresholds)
    print(render(arguments.names, conditions), end="")
    return 0


def _add_scrape(parser: Parser) -> None:
    parser.add_argument("targets", nargs="*", metavar="HOST[:PORT]", help="machines to scrape (default: this machine)")
    parser.add_argument("--interval", type=number(1), default=5, metavar="SECONDS", help="scrape interval (default: 5)")
    parser.add_argument("--token-file", metavar="FILE", help="file with the token, on the Prometheus server")
    parser.add_argument("--tls", action="store_true", help="the exporters use TLS")
    parser.add_argument("--tls-ca", metavar="FILE", help="CA of the exporters' certificates (PEM)")
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="client certificate for Prometheus (PEM), if required"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="private key of the client certificate (PEM)")


def _scrape(arguments: argparse.Namespace) -> int:
    import yaml

    targets = [_with_port(target) for target in arguments.targets or ["127.0.0.1"]]
    job: dict[str, object] = {
        "job_name": "trainvitals",
        "scrape_interval": f"{arguments.interval:g}s",
        "honor_labels": True,
    }
    given = {"ca_file": arguments.tls_ca, "cert_file": arguments.tls_certificate, "key_file": arguments.tls_key}
    tls = {name: path for name, path in given.items() if path}
    if ("cert_file" in tls) != ("key_file" in tls):
        raise UsageError("--tls-certificate and --tls-key need each other")
    if arguments.tls or tls:
        job["scheme"] = "https"
    if tls:
        job["tls_config"] = tls
    if arguments.token_file:
        job["authorization"] = {"credentials_file": arguments.token_file}
    job["static_configs"] = [{"targets": targets}]
    for target in targets:
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"'{target}' is not a host and port{nearest(target, ())}", hint="such as: gpu-01:9090")
    print(yaml.safe_dump({"scrape_configs": [job]}, sort_keys=False), end="")
    return 0


def _with_port(target: str) -> str:
    """`gpu-01` -> `gpu-01:9090`, `::1` and `[::1]` -> `[::1]:9090`; one that has a port stays as it is."""
    try:
        address = ipaddress.ip_address(target.removeprefix("[").removesuffix("]"))
    except ValueError:
        return target if ":" in target else f"{target}:{DEFAULT_PORT}"
    return f"[{address}]:{DEFAULT_PORT}" if address.version == 6 else f"{address}:{DEFAULT_PORT}"


ACTIONS = (
    Action(
        "rules",
        "print recording and alerting rules, with your thresholds",
        "trainvitals prometheus rules > /etc/prometheus/trainvitals.rules.yml",
        _add_rules,
        _rules,
    ),
    Action(
        "scrape-config",
        "print a scrape configuration for prometheus.yml",
        "trainvitals prometheus scrape-config gpu-01:9090 gpu-02:9090 --token-file /etc/prometheus/trainvitals.token",
        _add_scrape,
        _scrape,
    ),
)
