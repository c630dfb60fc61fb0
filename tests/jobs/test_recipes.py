"""The manifests of the documentation are well-formed, and all recipes start the same command."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dpfy.cli.train import train

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "jobs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MANIFESTS = [
    manifest
    for language, text in BLOCKS
    if language == "yaml"
    for manifest in yaml.safe_load_all(text)
]
(SCRIPT,) = (text for language, text in BLOCKS if language == "bash")
JOB, CLAIM, PYTORCH_JOB = MANIFESTS


def pods():
    yield "job", JOB["spec"]["template"]["spec"]
    for role, replica in PYTORCH_JOB["spec"]["pytorchReplicaSpecs"].items():
        yield role, replica["template"]["spec"]


@pytest.mark.parametrize("pod", [pod for _, pod in pods()], ids=[role for role, _ in pods()])
def test_a_pod_starts_the_command_that_can_be_repeated(pod):
    (container,) = pod["containers"]
    program, command, *options = container["command"]
    assert (program, command) == ("dpfy", "train") and "--resume-if-exists" in options
    known = {f"--{name.replace('_', '-')}" for name in train.__signature__.parameters} | {
        "--config"
    }
    assert {option for option in options if option.startswith("--")} <= known
    assert pod["terminationGracePeriodSeconds"] > 30  # Kubernetes' own would do for no large step
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_ledger_is_on_the_claim_of_one_pod():
    claimed = [
        role
        for role, pod in pods()
        for volume in pod["volumes"]
        if volume.get("persistentVolumeClaim") == {"claimName": CLAIM["metadata"]["name"]}
    ]
    assert claimed == ["job", "Master"] and CLAIM["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert PYTORCH_JOB["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] == 1


def test_the_job_is_started_again_by_its_own_rules():
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    assert JOB["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # which such rules need
    names = [each["name"] for each in JOB["spec"]["template"]["spec"]["containers"]]
    assert rules[0]["onExitCodes"]["containerName"] in names
    assert rules[0]["onExitCodes"]["values"] == [2]  # and neither 143 nor 1


def test_the_script_parses_and_leaves_time_for_the_save():
    subprocess.run(["bash", "-n"], input=SCRIPT, text=True, check=True)
    (warning,) = re.findall(r"--signal=B:TERM@(\d+)", SCRIPT)
    (patience,) = re.findall(r"--shutdown-timeout (\d+)", SCRIPT)
    assert int(patience) < int(warning)
