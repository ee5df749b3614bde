"""Image, compose file, chart and systemd unit agree with the settings, and their tools accept them.

What a tool alone can tell is skipped where the tool is absent; all else is checked without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml

from headstart import __version__
from headstart.config.loading import load_settings
from headstart.settings import (
    DRAIN_S,
    CacheSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)
from headstart.sidecar import build_sidecar
from support.repository import ROOT
from support.serving import serving_in_thread

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "headstart"
UNIT = DEPLOY / "systemd" / "headstart.service"
SERVER = ServerSettings()
KEYS = {
    "OPENAI_API_KEY": "sk-provider",
    "HEADSTART_CLIENT_KEY": "sk-caller",
    "HEADSTART_ADMIN_TOKEN": "token",
}
OF_IMAGE = {
    "HEADSTART_SERVER__HOST": "0.0.0.0",
    "HEADSTART_CACHE__STORE": "sqlite:////var/lib/headstart/headstart.db",
}


def needs(tool: str) -> pytest.MarkDecorator:
    """Skip a test where a tool is not installed."""
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the image -------------------------------------------------------------------------------


CONTAINERFILE = (DEPLOY / "Containerfile").read_text("utf-8")


def test_the_image_runs_as_a_user_of_its_own_and_serves_the_default_port() -> None:
    last = CONTAINERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(rf"^EXPOSE {SERVER.port}$", last, re.MULTILINE)
    assert f"http://127.0.0.1:{SERVER.port}/_headstart/health" in last
    assert 'ENTRYPOINT ["headstart"]' in last
    assert "pip install" not in last, "the last stage holds no tools of the build"


def test_the_health_check_passes_while_a_server_runs_and_fails_without_one() -> None:
    (code,) = re.findall(r'CMD \["python", "-c", "(.+)"\]', CONTAINERFILE)
    settings = Settings(
        cache=CacheSettings(store="memory:", mode="exact-only"),
        upstream=(UpstreamSettings(base_url="http://127.0.0.1:9/v1", name="one"),),
    )
    with serving_in_thread(build_sidecar(settings)) as url:
        check = [sys.executable, "-c", code.replace(f"http://127.0.0.1:{SERVER.port}", url)]
        assert subprocess.run(check, check=False, capture_output=True).returncode == 0
    assert subprocess.run(check, check=False, capture_output=True).returncode == 1


def test_the_images_variables_are_settings() -> None:
    for name, value in OF_IMAGE.items():
        assert f"{name}={value}" in CONTAINERFILE
    settings = load_settings(DEPLOY / "headstart.toml", {**OF_IMAGE, **KEYS})
    assert not settings.server.is_loopback
    assert settings.server.port == SERVER.port
    assert settings.server.named_client_keys == (("app", "sk-caller"),)
    assert settings.cache.store == OF_IMAGE["HEADSTART_CACHE__STORE"]


def test_every_file_that_the_image_copies_exists() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    assert "deploy/requirements.txt" in names
    sent = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {f"!{name}" for name in names} <= set(sent)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_lock_of_the_image_has_the_package_its_extras_and_its_builder() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"], *extras["otel"], *extras["google"],
        *project["build-system"]["requires"],
    ]  # fmt: skip
    lock = (DEPLOY / "requirements.txt").read_text("utf-8")
    pinned = dict(re.findall(r"^([\w.-]+(?:\[.*\])?)==([^\s;]+)", lock, re.MULTILINE))
    assert {re.split(r"[\[<>=;! ]", line)[0].lower() for line in wanted} <= pinned.keys()
    tested = (ROOT / "requirements-dev.txt").read_text("utf-8")
    other = [name for name, number in pinned.items() if f"\n{name}=={number}" not in f"\n{tested}"]
    assert other == [], "the image would run versions that the tests do not run"


@needs("hadolint")
def test_hadolint_accepts_the_containerfile() -> None:
    run("hadolint", str(DEPLOY / "Containerfile"))


def _can_build() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    asked = subprocess.run([docker, "info"], check=False, capture_output=True)
    return asked.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not _can_build(), reason="no Docker daemon answers")
def test_the_image_builds_and_serves_with_a_read_only_root() -> None:
    run("docker", "build", "--file", str(DEPLOY / "Containerfile"), "--tag", "headstart:test", ".")
    shown = run("docker", "run", "--rm", "--read-only", "--cap-drop", "ALL", "headstart:test", "-h")
    assert "serve" in shown


# --- compose ---------------------------------------------------------------------------------

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def test_compose_runs_headstart_without_privileges_and_on_loopback() -> None:
    service = COMPOSE["services"]["headstart"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["ports"] == [f"127.0.0.1:{SERVER.port}:{SERVER.port}"]
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > DRAIN_S + SERVER.shutdown_s


def test_composes_variables_make_a_valid_configuration() -> None:
    service = COMPOSE["services"]["headstart"]
    given = {
        name: KEYS.get(name, value) if value.startswith("$") else value
        for name, value in service["environment"].items()
    }
    settings = load_settings(DEPLOY / "headstart.toml", {**OF_IMAGE, **given})
    assert settings.cache.store == "redis://redis:6379/0"
    assert "redis" in COMPOSE["services"]


def test_composes_files_exist_and_its_volumes_are_declared() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_prometheus_asks_the_service_and_gets_the_token_as_a_file() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"headstart:{SERVER.port}"]}]
    (secret,) = COMPOSE["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert COMPOSE["secrets"][secret] == {"environment": "HEADSTART_ADMIN_TOKEN"}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards.yaml").read_text())["providers"]
    mounted = [each.split(":") for each in COMPOSE["services"]["grafana"]["volumes"]]
    places = {source: target for source, target, *_ in mounted}
    folder = places["./grafana/headstart.json"].rpartition("/")[0]
    assert provider["options"]["path"] == folder


# --- the chart -------------------------------------------------------------------------------

VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
TEMPLATES = {path.name: path.read_text("utf-8") for path in (CHART / "templates").iterdir()}


def _paths(values: dict[str, Any], before: str = "") -> set[str]:
    """Return the dotted names of all values, and of the tables that hold them."""
    found: set[str] = set()
    for name, value in values.items():
        found.add(before + name)
        if isinstance(value, dict):
            found |= _paths(value, f"{before}{name}.")
    return found


def test_templates_use_values_that_exist_and_every_value_is_used() -> None:
    used = {
        name.rstrip(".")
        for text in TEMPLATES.values()
        for name in re.findall(r"\.Values\.([\w.]+)", text)
    }
    known = _paths(VALUES)
    assert used - known == set()
    tables = {name for name in known if any(each.startswith(f"{name}.") for each in known)}
    unused = {
        name
        for name in known - tables - used
        if not any(name.startswith(f"{table}.") for table in used)
    }
    assert unused == set()


def test_every_block_of_a_template_is_closed() -> None:
    for name, text in TEMPLATES.items():
        opened = re.findall(r"{{-? *(if|with|range|define)\b", text)
        assert len(opened) == len(re.findall(r"{{-? *end\b", text)), name


def test_probes_and_port_are_those_of_the_server() -> None:
    deployment = TEMPLATES["deployment.yaml"]
    assert f"containerPort: {SERVER.port}" in deployment
    assert set(re.findall(r"path: (/_headstart/\w+)", deployment)) == {
        "/_headstart/health",
        "/_headstart/ready",
    }
    assert VALUES["terminationGracePeriodSeconds"] > DRAIN_S + SERVER.shutdown_s
    assert VALUES["autoscaling"]["callsInFlight"] < SERVER.max_concurrency
    assert "headstart_upstream_calls_in_flight" in TEMPLATES["autoscaler.yaml"]


def test_new_settings_and_new_keys_of_the_chart_make_new_pods() -> None:
    annotations = TEMPLATES["deployment.yaml"].partition("annotations:")[2].partition("spec:")[0]
    assert "{{ .Values.config | sha256sum }}" in annotations
    assert "{{ .Values.secret.values | toJson | sha256sum }}" in annotations


def test_the_charts_configuration_is_valid_and_the_containers() -> None:
    document = tomllib.loads(VALUES["config"])
    assert document == tomllib.loads((DEPLOY / "headstart.toml").read_text("utf-8"))
    assert VALUES["store"].startswith("redis://")


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__


@needs("helm")
@pytest.mark.parametrize(
    "chosen",
    [
        [],
        ["autoscaling.enabled=true", "serviceMonitor.enabled=true"],
        ["secret.existing=mine", "store=", "networkPolicy.enabled=false"],
    ],
    ids=["default", "more", "less"],
)
def test_helm_renders_the_chart(chosen: list[str]) -> None:
    run("helm", "lint", str(CHART))
    options = [word for each in chosen for word in ("--set", each)]
    rendered = run("helm", "template", "mine", str(CHART), *options)
    parts = {each["kind"]: each for each in yaml.safe_load_all(rendered) if each}
    assert {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"} <= parts.keys()
    assert ("HorizontalPodAutoscaler" in parts) == ("autoscaling.enabled=true" in chosen)
    assert ("NetworkPolicy" in parts) != ("networkPolicy.enabled=false" in chosen)
    tomllib.loads(parts["ConfigMap"]["data"]["headstart.toml"])
    spec = parts["Deployment"]["spec"]
    assert ("replicas" in spec) != ("autoscaling.enabled=true" in chosen)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"headstart:{__version__}"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    name = container["envFrom"][0]["secretRef"]["name"]
    assert name == (
        "mine" if "secret.existing=mine" in chosen else parts["Secret"]["metadata"]["name"]
    )
    labels = parts["Service"]["spec"]["selector"].items()
    assert labels <= spec["template"]["metadata"]["labels"].items()


# --- the unit --------------------------------------------------------------------------------


def unit_keys() -> dict[str, dict[str, list[str]]]:
    """Return the values of the unit by section and key; a key may stand there several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in UNIT.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return sections


def test_the_unit_starts_reloads_and_stops_as_the_server_wants() -> None:
    service = unit_keys()["Service"]
    (start,) = service["ExecStart"]
    assert start.endswith("headstart serve --config /etc/headstart/headstart.toml")
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert float(service["TimeoutStopSec"][0]) > DRAIN_S + SERVER.shutdown_s
    (variable,) = service["Environment"]
    name, _, value = variable.partition("=")
    settings = load_settings(DEPLOY / "headstart.toml", {**KEYS, name: value})
    assert settings.cache.store == f"sqlite:////var/lib/{service['StateDirectory'][0]}/headstart.db"


@needs("systemd-analyze")
def test_systemd_knows_every_key_of_the_unit_and_finds_it_hardened() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(UNIT)], check=False, capture_output=True, text=True
    )
    complaints = [
        line
        for line in done.stderr.splitlines()
        if UNIT.name in line and "headstart is not executable" not in line
    ]
    assert complaints == []
    shown = run("systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT))
    assert "Overall exposure level" in shown
