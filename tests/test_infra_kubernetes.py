"""The Kubernetes manifests and the work pool's base job template, offline.

Manifests are held against the API's own schemas, unknown fields refused; the template against Prefect's server-side
check and its Kubernetes worker, and the Job that comes out against the schemas again. Each check is also shown a broken
file, which it must refuse.
"""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import kubernetes_validate
import pytest
import yaml

INFRA = Path(__file__).parents[1] / "infra"
TEMPLATE = json.loads((INFRA / "kubernetes/base-job-template.json").read_text())
# Oldest and newest Kubernetes that the files are held against.
KUBERNETES = ["1.31", "1.37"]


def manifests() -> list[dict[str, Any]]:
    files = sorted((INFRA / "kubernetes").glob("*.yaml"))
    return [m for f in files if f.name != "kustomization.yaml" for m in yaml.safe_load_all(f.read_text())]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("manifest", manifests(), ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_manifests_keep_the_schema(manifest: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True).startswith(version)


@pytest.mark.parametrize("manifest", manifests(), ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_a_broken_manifest_is_refused(manifest: dict[str, Any]) -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest | {"sepc": {}}, KUBERNETES[-1], strict=True)


def test_kustomization_lists_the_files_that_are_there() -> None:
    folder = INFRA / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert {f.name for f in folder.glob("*.yaml")} == {"kustomization.yaml", *kustomization["resources"]}
    for generator in kustomization["configMapGenerator"]:
        assert all((folder / f).exists() for f in generator.get("envs", []) + generator.get("files", []))


def test_the_worker_runs_the_prefect_that_is_installed() -> None:
    import prefect

    (deployment,) = [m for m in manifests() if m["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"prefecthq/prefect:{prefect.__version__}-python3.11-kubernetes"


# --- the base job template


def job(template: dict[str, Any] = TEMPLATE, **variables: Any) -> dict[str, Any]:
    """The Job that a Kubernetes worker submits for a flow run with these job variables."""
    from prefect.client.schemas.objects import FlowRun
    from prefect.server.schemas.actions import WorkPoolCreate
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    WorkPoolCreate(name="pool", type="kubernetes", base_job_template=template)
    schema = template["variables"]
    jsonschema.validate({k: v["default"] for k, v in schema["properties"].items()} | variables, schema)
    # A client that could reach no server: the template must resolve without one.
    made = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, variables, client=object()))
    made.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="quick-fox"))
    return made.job_manifest


def strict(manifest: dict[str, Any], version: str = KUBERNETES[-1]) -> None:
    plain = copy.deepcopy(manifest)
    # Prefect demands these two in the Pod, where the API has no such field and drops them.
    assert [plain["spec"]["template"]["spec"].pop(key) for key in ("parallelism", "completions")] == [1, 1]
    kubernetes_validate.validate(plain, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_worker_makes_a_valid_job_from_the_template(version: str) -> None:
    manifest = job()
    strict(manifest, version)
    assert "{{" not in json.dumps(manifest)


def test_job_variables_reach_the_job() -> None:
    manifest = job(gpus=2, cache_claim="other", deadline_seconds=60, env={"A": "b"}, node_selector={"pool": "gpu"})
    strict(manifest)
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "other"
    assert manifest["spec"]["activeDeadlineSeconds"] == 60
    assert {"name": "A", "value": "b"} in container["env"]
    assert pod["nodeSelector"] == {"pool": "gpu"}


def test_the_job_is_not_privileged_and_finds_its_names() -> None:
    pod = job()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    named = {(m["kind"], m["metadata"]["name"]) for m in manifests()}
    assert ("ServiceAccount", pod["serviceAccountName"]) in named
    assert ("PersistentVolumeClaim", pod["volumes"][0]["persistentVolumeClaim"]["claimName"]) in named
    assert container["image"] == yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["worker"]["image"]
    assert container["workingDir"] == "/project"


def test_every_variable_of_the_template_is_used() -> None:
    text = json.dumps(TEMPLATE["job_configuration"])
    assert {name for name in TEMPLATE["variables"]["properties"] if f"{{{{ {name} }}}}" not in text} == set()


def changed(*path: Any, value: Any) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    place: Any = template
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return template


MANIFEST = ("job_configuration", "job_manifest")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (changed(*MANIFEST, "spec", "activeDeadlineSeconds", value="{{ deadlin }}"), "deadlin"),
        (changed(*MANIFEST, "kind", value="Pod"), "must have value 'Job'"),
        (changed(*MANIFEST, "spec", "activeDeadline", value=3), "activeDeadline"),
        (changed(*MANIFEST, "spec", "ttlSecondsAfterFinished", value="{{ name }}"), "is not of type 'integer'"),
        (changed("variables", "properties", "gpus", "default", value="one"), "is not of type 'integer'"),
    ],
)
def test_a_broken_template_is_refused(template: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        strict(job(template))
