"""What is committed for users to import: up to date, and accepted by whoever is to read it."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

from trainvitals import catalog
from trainvitals.alerts.builtin import make_rules
from trainvitals.conditions import Conditions
from trainvitals.exporters.names import SPELLINGS, Spelling
from trainvitals.settings.kinds import parse_duration
from trainvitals.views import panels
from trainvitals.views.cli import gateway, serve
from trainvitals.views.cli.arguments import make_parser
from trainvitals.views.cli.stack import PACKAGE_VARIABLE
from trainvitals.views.deployment import kubernetes, rules
from trainvitals.views.deployment.__main__ import render_all
from trainvitals.views.deployment.files import find_deploy, folder_of, rules_file
from trainvitals.views.deployment.queries import queries_of

DEPLOY = Path(__file__).parents[2] / "deploy"
CONDITIONS = Conditions()


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def load_all(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def test_what_is_generated_is_up_to_date() -> None:
    for name, text in render_all().items():
        assert (DEPLOY / name).read_text(encoding="utf-8") == text, "run: python -m trainvitals.views.deployment"


def test_the_installed_package_has_the_files() -> None:
    for spelling in SPELLINGS:
        assert (find_deploy() / rules_file(spelling)).is_file()


# -- dashboards


def boards(spelling: Spelling = "mb") -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (DEPLOY / folder_of(spelling)).glob("*.json")}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_panel_is_in_the_training_dashboard(spelling: Spelling) -> None:
    board = json.dumps(boards(spelling)["gpu-training-dashboard"], ensure_ascii=False)
    for panel in panels.PANELS.own:
        for query in queries_of(panel, spelling):
            there = json.dumps(query.expression)[1:-1] in board
            assert there == (panel.group != "rl"), panel.id  # whose metrics have the names that were logged


def test_panels_have_a_place_of_their_own_and_a_data_source() -> None:
    for board in boards().values():
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"] if panel["type"] != "row"]
        assert len(places) == len(set(places))
        for panel in board["panels"]:
            assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_dashboards_know_each_other_and_ask_for_variables_they_have(spelling: Spelling) -> None:
    uids = {board["uid"] for board in boards(spelling).values()}
    assert len(uids) == 3
    for board in boards(spelling).values():
        assert board["links"][0]["tags"] == board["tags"][:1]
        known = {variable["name"] for variable in board["templating"]["list"]}
        text = json.dumps([panel.get("targets", []) for panel in board["panels"]])
        used = set(re.findall(r"\$([a-z_]+)", text)) - {"__rate_interval", "__range", "datasource"}
        assert {name for name in used if not name.startswith("__")} <= known
        for link in re.findall(r"/d/([a-z-]+)", json.dumps(board)):
            assert link in uids


def test_dashboards_of_both_spellings_can_be_in_one_grafana() -> None:
    found = [board for spelling in SPELLINGS for board in boards(spelling).values()]
    for field in ("uid", "title"):
        assert len({board[field] for board in found}) == len(found)
    assert len({board["tags"][0] for board in found}) == 2, "each links to those of its own spelling"


def test_a_link_to_a_panel_stays_when_others_come_and_go() -> None:
    for board in boards().values():
        ids = {panel["id"] for panel in board["panels"]}
        assert len(ids) == len(board["panels"]) and all(0 < number < 2**31 for number in ids)
    training = boards()["gpu-training-dashboard"]["panels"]
    assert next(panel["id"] for panel in training if panel["title"] == "Step duration") == 1920105040


def test_thresholds_of_the_gauges_are_those_of_the_panels() -> None:
    gauge = next(panel for panel in boards()["gpu-training-dashboard"]["panels"] if panel["type"] == "gauge")
    steps = [step["value"] for step in gauge["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert steps[1:] == [level.value for level in CONDITIONS.levels_of("gpu", "temperature_celsius")]


# -- rules


def test_alerting_rules_are_the_built_in_ones() -> None:
    known = {rule.name: rule for rule in make_rules(CONDITIONS)}
    alerts = [rule for rule in rules.build("mb", CONDITIONS)["groups"][1]["rules"] if "rule" in rule["labels"]]
    assert len(alerts) >= 20
    for alert in alerts:
        rule = known[alert["labels"]["rule"]]
        assert alert["labels"]["severity"] == rule.severity
        if rule.wait.steps is not None:
            assert f"increase(training_steps_total[2m]) >= {rule.wait.steps} or" in alert["expr"]
        else:
            assert parse_duration(alert.get("for", "0s")) == (rule.wait.seconds or 0)


def test_the_guards_of_a_built_in_rule_are_in_the_alerting_rule() -> None:
    known = {rule.name: rule.when for rule in make_rules(CONDITIONS)}
    alerts = {rule["labels"].get("rule"): rule["expr"] for rule in rules.build("mb", CONDITIONS)["groups"][1]["rules"]}
    for name in ("gpu_oom_soon", "disk_full_soon"):
        (limit,) = re.findall(r"correlation\(.*?\) ([<>] -?[\d.]+) and", known[name])
        assert re.search(rf"stddev_over_time.* - 1\)\)\) {re.escape(limit)}\b", alerts[name]), name
    assert "max(rank[*].step) > 100" in known["gpu_oom_soon"]
    assert alerts["gpu_oom_soon"].endswith("max by (host) (training_steps_total) > 100")


def test_no_alert_is_told_twice() -> None:
    alerts = {rule["alert"]: rule for rule in rules.build("mb", CONDITIONS)["groups"][1]["rules"]}
    (passed_on,) = re.findall(r'rule!~"([^"]*)"', alerts["TrainvitalsAlert"]["expr"])
    assert set(passed_on.split("|")) == {rule["labels"]["rule"] for rule in alerts.values() if "rule" in rule["labels"]}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_promtool_accepts_the_rules(spelling: Spelling) -> None:
    done = run("promtool", "check", "rules", DEPLOY / rules_file(spelling))
    assert done.returncode == 0, done.stderr


def test_promtool_accepts_the_configuration_of_the_stack(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "trainvitals.rules.yml", "machines.yml"):
        text = (DEPLOY / "prometheus" / name).read_text()
        (tmp_path / "token").write_text("x")
        (tmp_path / name).write_text(text.replace("/run/secrets/trainvitals_token", str(tmp_path / "token")))
    done = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_amtool_accepts_the_example() -> None:
    done = run("amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "people"), ("warning", "people"), ("info", "nobody")])
def test_warnings_and_critical_alerts_reach_the_example_receiver(severity: str, receiver: str) -> None:
    config = DEPLOY / "alertmanager" / "alertmanager.yml"
    done = run("amtool", "config", "routes", "test", f"--config.file={config}", f"severity={severity}")
    assert done.stdout.strip() == receiver, done.stderr


def test_the_units_test_of_the_rules_passes() -> None:
    done = run("promtool", "test", "rules", DEPLOY / "prometheus" / "trainvitals.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test() -> None:
    tested = (DEPLOY / "prometheus" / "trainvitals.rules.test.yml").read_text()
    for alert in rules.build("mb", CONDITIONS)["groups"][1]["rules"]:
        assert re.search(rf"alertname(=|: )\"?{alert['alert']}\b", tested), alert["alert"]


def test_a_wrong_expectation_would_be_noticed(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "trainvitals.rules.test.yml").read_text()
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(
        text.replace("trainvitals.rules.yml", str(DEPLOY / "prometheus" / "trainvitals.rules.yml")).replace(
            "alertname: GpuLost", "alertname: GpuMemoryHigh"
        )
    )
    assert run("promtool", "test", "rules", wrong).returncode != 0


# -- the stack


def test_the_compose_file_pins_images_keeps_ports_at_home_and_has_no_password() -> None:
    compose = load_all(DEPLOY / "compose" / "compose.yaml")[0]
    nvidia = load_all(DEPLOY / "compose" / "compose.nvidia.yaml")[0]
    services = {**compose["services"], "dcgm-exporter": nvidia["services"]["dcgm-exporter"]}
    assert set(services) >= {"prometheus", "grafana", "alertmanager", "node-exporter", "dcgm-exporter", "trainvitals"}
    for name, service in services.items():
        image = service["image"]
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", image) and not image.endswith(":latest"), name
        assert service["healthcheck"]["test"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|TOKEN|SECRET", variable):
                assert str(value).startswith(("/run/secrets/", "file:/run/secrets/")), variable
    for service in ("prometheus", "alertmanager", "grafana"):
        assert any(f"{service}-data:" in volume for volume in services[service]["volumes"])
    assert "deploy" not in compose["services"]["trainvitals"], "GPUs only where there are some"
    for secret in compose["secrets"].values():
        assert secret["file"].startswith("./secrets/")


@pytest.mark.parametrize("name", ["compose/compose.yaml", "compose/compose.nvidia.yaml", "fleet/compose.yaml"])
def test_the_compose_files_fit_the_schema_of_compose(name: str, tmp_path: Path) -> None:
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = run(*check, DEPLOY / name)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DEPLOY / name).read_text().replace("healthcheck:", "heathcheck:"))
    assert run(*check, wrong).returncode != 0


def test_a_fleet_listens_to_others_only_with_tls_and_tokens() -> None:
    services = load_all(DEPLOY / "fleet" / "compose.yaml")[0]["services"]
    open_to_others = [
        name
        for name, service in services.items()
        if any(not port.startswith("127.0.0.1:") for port in service.get("ports", []))
    ]
    assert open_to_others == ["gateway"]
    words = {word.partition("=")[0] for word in services["gateway"]["command"]}
    assert {"--tokens", "--certificate", "--key"} <= words
    parser = make_parser("trainvitals gateway", gateway, "", gateway.ACTIONS[0])
    assert words - {"gateway"} <= set(parser.flags())
    assert all(re.search(r":v?\d+\.\d+", service["image"]) for service in services.values() if "build" not in service)


def test_the_containers_of_a_fleet_see_tokens_that_are_removed() -> None:
    """The commands replace the file: a container that has the file itself mounted keeps the one before."""
    services = load_all(DEPLOY / "fleet" / "compose.yaml")[0]["services"]
    for part in ("gateway", "dashboard"):
        (file,) = (word.partition("=")[2] for word in services[part]["command"] if word.startswith("--tokens="))
        folders = {volume.split(":")[1]: volume.split(":")[0] for volume in services[part]["volumes"]}
        folder, _, name = file.rpartition("/")
        assert f"{folders[folder]}/{name}".removeprefix("./") in (DEPLOY.parent / "docs" / "fleet.md").read_text()


@pytest.mark.parametrize("folder", ["compose", "fleet"])
def test_what_the_compose_files_name_is_declared(folder: str) -> None:
    compose = load_all(DEPLOY / folder / "compose.yaml")[0]
    for name, service in compose["services"].items():
        assert set(service.get("secrets", [])) <= compose["secrets"].keys(), name
        assert set(service.get("depends_on", {})) <= compose["services"].keys(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith(("./", "/")) or source in compose["volumes"], volume


def test_provisioning_leads_to_the_files_of_the_stack() -> None:
    compose = load_all(DEPLOY / "compose" / "compose.yaml")[0]
    provider = load_all(DEPLOY / "grafana" / "provisioning" / "dashboards" / "trainvitals.yml")[0]["providers"][0]
    mounts = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts
    source = load_all(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")[0]["datasources"][0]
    assert source["url"] == "http://prometheus:9090" and source["type"] == "prometheus"


# -- Kubernetes


Objects = dict[tuple[str, str], dict[str, Any]]
PROGRAMS = Path(sys.executable).parent
CHART = DEPLOY / kubernetes.CHART
FLEET_CHART = DEPLOY / "helm" / "trainvitals-fleet"
IMAGE = "registry.example.com/trainvitals"


def by_name(text: str) -> Objects:
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(text) if item}


@functools.cache
def kustomize(platform: str) -> Objects:
    done = run(PROGRAMS / "kubectl", "kustomize", DEPLOY / "kubernetes" / platform)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def render_chart(**values: str) -> Objects:
    done = render_values(**{"image.repository": IMAGE, **values})
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def render_values(**values: str) -> subprocess.CompletedProcess[str]:
    given = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return run(PROGRAMS / "helm", "template", "trainvitals", CHART, "--namespace", "trainvitals", *given)


def validate(item: dict[str, Any]) -> None:
    import kubernetes_validate

    if not item["apiVersion"].startswith("monitoring.coreos.com/"):
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("platform", kubernetes.PLATFORMS, ids=lambda platform: platform.name)
def test_kubernetes_manifests_fit_together_and_fit_the_schema(platform: kubernetes.Platform) -> None:
    found = kustomize(platform.name)
    for item in found.values():
        validate(item)
    daemon = found["DaemonSet", "trainvitals"]["spec"]
    pod = daemon["template"]
    assert daemon["selector"]["matchLabels"] == pod["metadata"]["labels"]
    container = pod["spec"]["containers"][0]
    assert container["image"].startswith(f"{IMAGE}:")
    ports = {port["name"] for port in container["ports"]}
    service = found["Service", "trainvitals"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] in ports
    monitor = found["ServiceMonitor", "trainvitals"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert pod["spec"]["serviceAccountName"] == found["ServiceAccount", "trainvitals"]["metadata"]["name"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert mounts["pod-resources"] == {
        "name": "pod-resources", "mountPath": "/var/lib/kubelet/pod-resources", "readOnly": True
    }  # fmt: skip
    assert found["Role", "trainvitals-token-reader"]["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [kubernetes.TOKEN], "verbs": ["get"]}
    ]


def test_each_platform_reaches_the_gpus_in_its_own_way() -> None:
    pods = {
        row.name: kustomize(row.name)["DaemonSet", "trainvitals"]["spec"]["template"]["spec"]
        for row in kubernetes.PLATFORMS
    }
    assert {name: pod.get("runtimeClassName") for name, pod in pods.items()} == {
        "operator": "nvidia", "gke": None, "eks": None, "aks": None
    }  # fmt: skip
    for name, pod in pods.items():
        container = pod["containers"][0]
        security, libraries = container["securityContext"], [item["name"] for item in container["env"]]
        assert security["readOnlyRootFilesystem"] and "requests" in container["resources"]
        assert "nvidia.com/gpu" not in container["resources"]["limits"], "it must not take a GPU from a training"
        assert security.get("privileged", False) == (name == "gke") == ("LD_LIBRARY_PATH" in libraries)
        if name != "gke":
            assert security["capabilities"] == {"drop": ["ALL"]} and not security["allowPrivilegeEscalation"]


def test_no_pod_of_a_tenant_has_the_token_of_the_fleet() -> None:
    for name in ("training-pod", "training-monitor"):
        text = (DEPLOY / "kubernetes" / f"{name}.yaml").read_text()
        assert "trainvitals-training-token" in text and kubernetes.TOKEN not in text
    (example,) = load_all(DEPLOY / "kubernetes" / "training-pod.yaml")
    validate(example)
    (monitor,) = load_all(DEPLOY / "kubernetes" / "training-monitor.yaml")
    assert "namespaceSelector" not in monitor["spec"], "a token is for the pods of its own namespace"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= example["metadata"]["labels"].items()
    container = example["spec"]["containers"][0]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container["ports"]}
    fields = [item["valueFrom"]["fieldRef"]["fieldPath"] for item in container["env"] if "valueFrom" in item]
    assert {"metadata.name", "metadata.namespace", "spec.nodeName"} <= set(fields)


@pytest.mark.parametrize("platform", kubernetes.PLATFORMS, ids=lambda platform: platform.name)
def test_the_chart_makes_what_kustomize_makes(platform: kubernetes.Platform) -> None:
    made, plain = render_chart(platform=platform.name), kustomize(platform.name)
    for kind in ("DaemonSet", "Service", "ServiceMonitor"):
        assert made[kind, "trainvitals"]["spec"] == plain[kind, "trainvitals"]["spec"], kind
    for item in made.values():
        validate(item)


def test_the_chart_has_rules_dashboards_and_monitors_of_trainings() -> None:
    for spelling in SPELLINGS:
        made = render_chart(names=spelling, **{"trainings.namespaces": "{vision}"})
        rule = made["PrometheusRule", "trainvitals"]
        assert rule["spec"] == load_all(DEPLOY / rules_file(spelling))[0]
        shown = [item for (kind, _), item in made.items() if kind == "ConfigMap"]
        assert {json.loads(text)["uid"] for item in shown for text in item["data"].values()} == {
            board["uid"] for board in boards(spelling).values()
        }
        assert all(item["metadata"]["labels"]["grafana_dashboard"] == "1" for item in shown)
        monitor = made["PodMonitor", "trainvitals-trainings"]
        assert monitor["metadata"]["namespace"] == "vision"
        assert monitor["spec"] == load_all(DEPLOY / "kubernetes" / "training-monitor.yaml")[0]["spec"]
        (agent,) = made["DaemonSet", "trainvitals"]["spec"]["template"]["spec"]["containers"]
        given = {item["name"]: item.get("value") for item in agent["env"]}
        assert given.get("TRAINVITALS_PROMETHEUS_NAMES", "mb") == spelling


def test_values_of_the_chart_reach_the_pod() -> None:
    values = {
        "TRAINVITALS_PACKAGE": "trainvitals==0.1.0", "port": "9201", "token.existingSecret": "mine",
        "privileged": "true", "tolerations[0].key": "mine",
        "env[0].name": "TRAINVITALS_PROMETHEUS_COMPAT", "env[0].value": "dcgm",
        "monitors.labels.release": "stack", "priorityClassName": "high", "nodeSelector.pool": "gpu",
        "runtimeClassName": "none", "podAnnotations.team": "infra",
    }  # fmt: skip
    made = render_chart(**values)
    for item in made.values():
        validate(item)
    template = made["DaemonSet", "trainvitals"]["spec"]["template"]
    pod = template["spec"]
    assert template["metadata"]["annotations"] == {"team": "infra"} and "runtimeClassName" not in pod
    (install,), (agent,) = pod["initContainers"], pod["containers"]
    assert {"name": "TRAINVITALS_PACKAGE", "value": "trainvitals==0.1.0"} in install["env"]
    assert {"name": "TRAINVITALS_PROMETHEUS_COMPAT", "value": "dcgm"} in install["env"]  # as PIP_INDEX_URL would be
    assert install["image"] == agent["image"] == "python:3.13-slim-trixie"
    environ = {item["name"]: item.get("value") for item in agent["env"]}
    assert environ["TRAINVITALS_PROMETHEUS_PORT"] == "9201" and environ["TRAINVITALS_PROMETHEUS_COMPAT"] == "dcgm"
    assert agent["ports"] == [{"name": "metrics", "containerPort": 9201, "hostPort": 9201}]
    assert agent["securityContext"]["privileged"] and "capabilities" not in agent["securityContext"]
    assert {mount["name"] for mount in agent["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu", "sku", "mine"]
    assert pod["nodeSelector"] == {"pool": "gpu"} and pod["priorityClassName"] == "high"
    assert ("Secret", "trainvitals-token") not in made and pod["volumes"][0]["secret"]["secretName"] == "mine"
    monitor = made["ServiceMonitor", "trainvitals"]
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"]["name"] == "mine"
    assert monitor["metadata"]["labels"]["release"] == "stack"
    without = render_chart(**{f"{part}.enabled": "false" for part in ("monitors", "rules", "dashboards")})
    assert {kind for kind, _ in without} == {"DaemonSet", "Service", "ServiceAccount", "Secret"}


def test_helm_accepts_the_chart_and_says_what_is_wrong_with_values() -> None:
    done = run(PROGRAMS / "helm", "lint", "--strict", CHART, "--set", f"image.repository={IMAGE}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "set image.repository" in render_values().stderr
    for wrong in ({"platform": "gcp"}, {"names": "bytes"}, {"port": "0"}, {"imagee.repository": "x"}):
        assert "schema" in render_values(**{"image.repository": IMAGE, **wrong}).stderr, wrong
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert schema.keys() - {"global"} == load_all(CHART / "values.yaml")[0].keys()
    assert schema["platform"]["enum"] == [platform.name for platform in kubernetes.PLATFORMS]


# -- the chart of a fleet


def render_fleet(**values: str) -> subprocess.CompletedProcess[str]:
    given = {"image.repository": IMAGE, "tokens.existingSecret": "tokens", **values}
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    return run(PROGRAMS / "helm", "template", "fleet", FLEET_CHART, "--namespace", "fleet", *words)


def test_the_chart_of_a_fleet_fits_together_and_fits_the_schema() -> None:
    done = render_fleet(**{"gateway.tlsSecret": "tls", "gateway.keepDays": "365", "monitor.enabled": "true"})
    made = by_name(done.stdout)
    for item in made.values():
        validate(item)
    assert {kind for kind, _ in made} == {
        "Deployment", "StatefulSet", "Service", "Secret", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy",
        "ServiceMonitor",
    }  # fmt: skip
    secrets = {name: item["data"] for (kind, name), item in made.items() if kind == "Secret"}
    for (kind, name), item in made.items():
        if kind not in ("Deployment", "StatefulSet"):
            continue
        pod = item["spec"]["template"]
        assert item["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        service = made["Service", name]["spec"]
        assert service["selector"] == pod["metadata"]["labels"]
        (container,) = pod["spec"]["containers"]
        assert service["ports"][0]["targetPort"] in {port["name"] for port in container["ports"]}
        assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        claims = {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys() | claims
        for volume in volumes.values():  # what the chart makes has what is mounted of it
            secret = volume.get("secret", {})
            if secret.get("secretName") in secrets:
                assert {part["key"] for part in secret["items"]} <= secrets[secret["secretName"]].keys()
    assert base64.b64decode(secrets["fleet-clickhouse"]["store"]).decode() == (
        f"clickhouse://trainvitals:{base64.b64decode(secrets['fleet-clickhouse']['password']).decode()}"
        "@fleet-clickhouse:8123/trainvitals"
    )
    allowed = made["NetworkPolicy", "fleet-clickhouse"]["spec"]["ingress"][0]["from"]
    for part, who in zip(("gateway", "dashboard"), allowed, strict=True):
        labels = made["Deployment", f"fleet-{part}"]["spec"]["template"]["metadata"]["labels"]
        assert who["podSelector"]["matchLabels"] == labels


def test_what_the_pods_of_a_fleet_start_are_commands_that_there_are() -> None:
    """With everything switched on, the arguments are those that the commands take."""
    values = {
        "gateway.tlsSecret": "tls", "gateway.clientCaSecret": "ca", "gateway.keepDays": "9", "store.cluster": "prod",
        "dashboard.hosts": "{runs.example.com}",
    }  # fmt: skip
    made = by_name(render_fleet(**values).stdout)
    parsers = {
        "gateway": make_parser("trainvitals gateway", gateway, "", gateway.ACTIONS[0]),
        "serve": make_parser("trainvitals serve", serve, ""),
    }
    for name in ("gateway", "dashboard"):
        (container,) = made["Deployment", f"fleet-{name}"]["spec"]["template"]["spec"]["containers"]
        command, *words = container["args"]
        given = parsers[command].parse_args(words)
        paths = [str(value) for value in vars(given).values() if isinstance(value, Path) and value.is_absolute()]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(paths) > 1 and all(any(path.startswith(f"{mount}/") for mount in mounts) for path in paths)
    compose = load_all(DEPLOY / "fleet" / "compose.yaml")[0]["services"]
    (taking,) = made["Deployment", "fleet-gateway"]["spec"]["template"]["spec"]["containers"]
    flags = {word.partition("=")[0] for word in taking["args"] if word.startswith("--")}
    assert {word.partition("=")[0] for word in compose["gateway"]["command"] if word.startswith("--")} <= flags
    for part, image in (("clickhouse", "clickhouse"), ("victoria-metrics", "victoria-metrics")):
        (container,) = made["StatefulSet", f"fleet-{part}"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == compose[image]["image"], "one version of an engine everywhere"


def test_the_chart_of_a_fleet_takes_engines_of_ones_own_and_says_what_is_wrong() -> None:
    done = run(
        PROGRAMS / "helm", "lint", "--strict", FLEET_CHART,
        "--set", f"image.repository={IMAGE}", "--set", "tokens.existingSecret=t",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    own = {"clickhouse.enabled": "false", "victoriaMetrics.enabled": "false", "dashboard.enabled": "false",
           "gateway.replicas": "1"}  # fmt: skip
    made = by_name(
        render_fleet(**own, **{"store.existingSecret": "mine", "metricsUrl": "https://mimir.example"}).stdout
    )
    assert made.keys() == {("Deployment", "fleet-gateway"), ("Service", "fleet-gateway")}
    pod = made["Deployment", "fleet-gateway"]["spec"]["template"]["spec"]
    assert "--metrics=https://mimir.example" in pod["containers"][0]["args"]
    assert "mine" in {volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
    assert "set store.existingSecret" in render_fleet(**own).stderr
    assert "set image.repository" in render_fleet(**{"image.repository": ""}).stderr
    assert "set tokens.existingSecret" in render_fleet(**{"tokens.existingSecret": ""}).stderr
    for wrong in ({"gateway.replicas": "0"}, {"clickhouse.storage": "much"}, {"gatewy.replicas": "1"}):
        assert "schema" in render_fleet(**wrong).stderr, wrong
    schema = json.loads((FLEET_CHART / "values.schema.json").read_text())["properties"]
    assert schema.keys() - {"global"} == load_all(FLEET_CHART / "values.yaml")[0].keys()


def test_both_images_are_made_alike() -> None:
    """Only what they hold and how they start differs; each is built from a folder of its own."""
    agent, fleet = ((DEPLOY / name / "Dockerfile").read_text().splitlines() for name in ("compose", "fleet"))
    own = ("#", "EXPOSE", "ENTRYPOINT", '    && pip install --no-cache-dir "$TRAINVITALS_PACKAGE"')
    assert [line for line in agent if not line.startswith(own)] == [line for line in fleet if not line.startswith(own)]


def test_every_setting_named_in_deployment_files_exists() -> None:
    from trainvitals.settings import TABLE

    known = {row.variable for row in TABLE} | {"TRAINVITALS_RUNTIME_DIR", PACKAGE_VARIABLE}
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            for name in re.findall(r"TRAINVITALS_[A-Z_]+", path.read_text()):
                assert name in known, f"{name} in {path.name}"


def test_every_series_named_in_the_dashboards_exists() -> None:
    """No typing error can hide in a query that happens to be empty."""
    from trainvitals.exporters import names

    known = {
        export.series
        for table, rows in (*catalog.TABLES.items(), *catalog.COUNTERS.items())
        for row in rows
        if (export := names.export_of(table, row.name, "mb")) is not None
    }
    known |= {"training_steps_total", "training_phase_duration_seconds", "gpu_state", "gpu_info", "gpu_throttle_reason"}
    known |= {f"training_step_duration_seconds{end}" for end in ("", "_bucket", "_sum", "_count")}
    known |= {rules.fill(item.record, "mb", CONDITIONS) for item in rules.RECORDINGS}
    known |= {"trainvitals_alert_active", "trainvitals_run_info", "trainvitals_run_state"}
    for board in boards().values():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                for name in re.findall(r"\b([a-z][a-z0-9_:]*)\{", target["expr"]):
                    assert name in known, name


def read_terraform() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """File name -> its blocks by kind."""
    found = {}
    for path in sorted((DEPLOY / "terraform" / "gcp").glob("*.tf")):
        with path.open(encoding="utf-8") as file:
            found[path.name] = hcl2.load(file)
    return found


def test_terraform_files_use_only_what_they_declare() -> None:
    files = read_terraform()
    text = "".join((DEPLOY / "terraform" / "gcp" / name).read_text() for name in files)
    declared = {name.strip('"') for block in files["variables.tf"]["variable"] for name in block}
    assert set(re.findall(r"\bvar\.(\w+)", text)) == declared, "every variable is declared, and each is used"
    resources = {
        f"{kind}.{name}".replace('"', "")
        for block in files["main.tf"]["resource"]
        for kind, named in block.items()
        for name in named
    }
    for used in re.findall(r"(?<![\w.])google_\w+\.\w+", text):
        assert used in resources, used
    template = (DEPLOY / "terraform" / "gcp" / "startup.sh.tftpl").read_text()
    given = re.search(r"templatefile\([^,]+,\s*\{(.*?)\}\)", text, re.DOTALL)
    assert given is not None
    assert set(re.findall(r"\$\{(\w+)", template.replace("$${", ""))) == set(re.findall(r"(\w+)\s*=", given[1]))


def test_terraform_lets_in_the_operator_only() -> None:
    text = (DEPLOY / "terraform" / "gcp" / "main.tf").read_text()
    assert text.count('resource "google_compute_firewall"') == 1
    assert "source_ranges = [var.operator_cidr]" in text and "0.0.0.0/0" not in text


UNIT = DEPLOY / "systemd" / "trainvitals-agent.service"


@pytest.mark.parametrize("wrong", [False, True])
def test_systemd_accepts_the_unit(wrong: bool, tmp_path: Path) -> None:
    text = UNIT.read_text()
    here = text.replace("/opt/trainvitals/bin/python", sys.executable)
    (tmp_path / "trainvitals-agent.service").write_text(here.replace("ExecStart=", "ExecStrat=") if wrong else here)
    done = run("systemd-analyze", "verify", tmp_path / "trainvitals-agent.service")
    # It may have something to say about other units of the machine that ours waits for.
    assert (done.returncode != 0, "trainvitals-agent" in done.stderr) == (wrong, wrong), done.stderr


def test_the_service_exposes_little_and_needs_no_new_systemd() -> None:
    done = run("systemd-analyze", "security", "--offline=yes", UNIT)
    score = re.search(r"Overall exposure level.*: ([\d.]+)", done.stdout)
    assert score is not None and float(score[1]) < 4, done.stdout + done.stderr
    lines = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    assert not any("%d" in line for line in lines), "only from systemd 251 on"
    assert "DeviceAllow=char-195 rw" in lines and "DeviceAllow=char-nvidia* rw" in lines, "the GPUs are reached"


# -- what is installed


@pytest.mark.parametrize(
    "name",
    [
        "compose/Dockerfile", "compose/compose.yaml", "fleet/Dockerfile", "fleet/compose.yaml",
        "systemd/install.sh", "terraform/gcp/variables.tf",
        f"{kubernetes.CHART}/values.yaml", f"{kubernetes.CHART}/values.schema.json",
    ],
)  # fmt: skip
def test_one_variable_says_what_is_installed_and_nothing_is_taken_unasked(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert PACKAGE_VARIABLE in text
    assert not re.search(r"pip install [^|\n]* trainvitals\b", text), "whoever takes that name on PyPI is not asked"


def test_extras_that_are_installed_are_those_of_the_package() -> None:
    (requirement,) = re.findall(r"trainvitals\[([\w,]+)\]", (DEPLOY / "compose" / "Dockerfile").read_text())
    (in_chart,) = re.findall(r"trainvitals\[([\w,]+)\]", (CHART / "templates" / "daemonset.yaml").read_text())
    assert requirement == in_chart
    (of_fleet,) = re.findall(r"trainvitals\[([\w,]+)\]", (DEPLOY / "fleet" / "Dockerfile").read_text())
    known = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*requirement.split(","), *of_fleet.split(",")} <= known.keys()


def test_the_scripts_can_be_read_by_their_shells(tmp_path: Path) -> None:
    install = DEPLOY / "systemd" / "install.sh"
    assert run("sh", "-n", install).returncode == 0
    text = (DEPLOY / "terraform" / "gcp" / "startup.sh.tftpl").read_text().replace("$${", "\0{")
    for variable, value in {"package": "gs://bucket/x.whl", "stack": "true", "install": install.read_text()}.items():
        text = text.replace(f"${{{variable}}}", value.replace("${", "\0{"))
    assert "${" not in text
    (tmp_path / "startup.sh").write_text(text.replace("\0{", "${"))
    assert run("bash", "-n", tmp_path / "startup.sh").returncode == 0


def test_the_script_for_servers_installs_nothing_that_it_was_not_told() -> None:
    environ = {name: text for name, text in os.environ.items() if name != PACKAGE_VARIABLE}
    script = DEPLOY / "systemd" / "install.sh"
    done = subprocess.run(["sh", script], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 1 and ("set TRAINVITALS_PACKAGE" in done.stderr or "as root" in done.stderr)
