"""The batch script of the documentation, on a Slurm of one node that the test starts."""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import programs
import pytest

import dpfy

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "jobs.md"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=5
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SETTINGS = "epochs = 100\nbatch_size = 500\ndelta = 1e-3\n"
PATIENCE = 300  # seconds until something that does not happen is a failure


def until(happened, what):
    for _ in range(5 * PATIENCE):
        if found := happened():
            return found
        time.sleep(0.2)
    pytest.fail(f"{what} did not happen in {PATIENCE} seconds")


class Cluster:
    """One node: its daemons are children of the test, and its files are in one folder."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), programs.PATH]),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def start(self):
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(2)]
            ports = [each.getsockname()[1] for each in sockets]
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(host=host, ports=ports, folder=self.folder)
        )
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = {"key": key, "socket": "munge.socket", "pid": "munged.pid", "seed": "munged.seed"}
        options = [
            f"--{name}{'' if name == 'socket' else '-file'}={self.folder / file}"
            for name, file in files.items()
        ]
        self.daemon("munged", "--foreground", "--force", *options)
        until((self.folder / "munge.socket").exists, "the start of munged")
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D")
        until(lambda: "idle" in self("sinfo", "--noheader", "--format=%T"), "an idle node")

    def daemon(self, *command):
        with (self.folder / f"{command[0]}.log").open("w") as log:
            self.daemons.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=subprocess.STDOUT
                )
            )

    def cancel(self):
        """End the jobs of a test that has failed, while there is a daemon that can do so."""
        self("scancel", "--user=root")
        until(lambda: not self("squeue", "--noheader"), "the end of all jobs")

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=60)

    def __call__(self, *command, cwd=None):
        done = subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=60
        )
        return done.stdout + done.stderr

    def state(self, job):
        """The state of a job and how often it was started again."""
        told = self("scontrol", "show", "job", job)
        found = re.search(r"JobState=(\w+).*Restarts=(\d+)", told, re.DOTALL)
        return (found[1], int(found[2])) if found else (told, -1)


@pytest.fixture
def cluster(tmp_path):
    programs.need("slurm", "munged", "slurmctld", "slurmd", "sbatch")
    if os.geteuid():
        pytest.skip("daemons that start jobs need root")
    folder = tmp_path / "slurm"
    folder.mkdir()
    subject = Cluster(folder)
    try:
        subject.start()
        yield subject
        subject.cancel()
    finally:
        subject.stop()


@pytest.mark.slow
def test_a_job_that_is_stopped_and_requeued_ends_with_every_step_paid_for_once(cluster, tmp_path):
    script = re.search(
        r"^```bash\n(#!/bin/bash\n.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S
    )[1]
    (tmp_path / "nightly.sh").write_text(script, encoding="utf-8")
    (tmp_path / "nightly.toml").write_text(SETTINGS, encoding="utf-8")
    ledger, log = tmp_path / "runs" / "nightly" / "ledger.dpl", tmp_path / "job.log"

    def steps():
        assert cluster.state(job)[0] != "FAILED", log.read_text(encoding="utf-8")
        return dpfy.Ledger.read(ledger).count if ledger.exists() else 0

    submitted = cluster("sbatch", f"--output={log}", "nightly.sh", cwd=tmp_path)
    job = re.fullmatch(r"Submitted batch job (\d+)\n", submitted)[1]

    until(lambda: steps() >= 20, "the first 20 steps")
    cluster("scancel", "--batch", "--signal=TERM", job)  # what --signal=B:TERM@120 does in the end
    until(lambda: cluster.state(job)[1] == 1, "the requeue by the script itself")
    first = steps()

    until(lambda: steps() >= first + 20, "20 more steps")
    cluster("scontrol", "requeue", job)  # as Slurm does for a preempted job: all processes are told
    until(lambda: cluster.state(job)[1] == 2, "the requeue from outside")

    until(lambda: steps() and cluster.state(job) == ("COMPLETED", 2), "the end of the job")
    told = log.read_text(encoding="utf-8")
    assert told.count("Ended by SIGTERM; the state is saved") == 2, told
    assert "lost" not in told  # every step that was paid for is in the model
    assert told.count("-differential privacy") == 1
    read = dpfy.Ledger.read(ledger)
    assert read.count == read.header.plan["steps"] > first + 20
    assert dpfy.account(read).claim(1e-3) <= 3.0
    assert (ledger.parent / "model.safetensors").exists()
