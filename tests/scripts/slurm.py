"""A real Slurm of two nodes for tests, in a folder of its own; nothing of it is left."""

import getpass
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.scripts.hosts import Hosts, no_hosts, wait
from tests.scripts.notebook import outside

# cred_expire: a job that is requeued waits for that long.
CONF = """\
ClusterName=two
SlurmctldHost=host1(10.77.0.1)
SlurmUser=USER
SlurmdUser=USER
AuthType=auth/munge
AuthInfo=socket=FOLDER/munge.socket,cred_expire=5
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/spool.%n
SlurmctldPidFile=FOLDER/slurmctld.pid
SlurmdPidFile=FOLDER/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2
KillWait=30
ReturnToService=2
NodeName=host1 NodeAddr=10.77.0.1 CPUs=4 RealMemory=1000
NodeName=host2 NodeAddr=10.77.0.2 CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def no_slurm() -> str:
    """Why this machine cannot have a Slurm of two nodes; "" where it can."""
    commands = ("slurmctld", "slurmd", "sbatch", "munged")
    if missing := [name for name in commands if not shutil.which(name)]:
        return f"{missing[0]} is missing (Debian's packages slurm-wlm and munge)"
    return no_hosts()


class Slurm:
    """Two nodes, host1 and host2; on host1 the controller runs, too, and jobs are sent from it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hosts = folder, Hosts()
        (folder / "munge.key").write_bytes(os.urandom(128))
        for file, mode in ((folder / "munge.key", 0o400), (folder, 0o755)):
            file.chmod(mode)
        conf = CONF.replace("FOLDER", str(folder)).replace("USER", getpass.getuser())
        (folder / "slurm.conf").write_text(conf)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # nothing here uses it
        for name in ("state", "spool.host1", "spool.host2"):
            (folder / name).mkdir()
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._daemons()
        except BaseException:
            self.close()
            raise

    def _daemons(self) -> None:
        munge = self.folder / "munge"
        files = [f"--{kind}-file={munge}.{kind}" for kind in ("key", "pid", "log", "seed")]
        socket = f"--socket={munge}.socket"
        self._start("munge", 1, "munged", "--foreground", "--force", socket, *files)
        wait(Path(f"{munge}.socket").exists, self.said)
        self._start("slurmctld", 1, "slurmctld", "-D", "-c")
        for host in (1, 2):
            self._start(f"slurmd{host}", host, "slurmd", "-D", "-N", f"host{host}")
        wait(lambda: self.command("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], self.said)

    def _start(self, name: str, host: int, *words: str) -> None:
        self.hosts.start(host, *words, said=self.folder / f"{name}.txt", **self.env)

    def command(self, *words: str, cwd: Path | None = None, **more: str) -> str:
        done = subprocess.run(
            self.hosts.command(1, *words),
            cwd=cwd,
            env=outside(**self.env, **more),
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.stdout + done.stderr

    def state(self, job: str) -> str:
        """RUNNING, COMPLETED, … as the controller has it."""
        found = re.search(r"JobState=(\w+)", self.command("scontrol", "show", "job", job))
        return found[1] if found else ""

    def said(self) -> str:
        files = self.folder.glob("*.txt")
        return "\n".join(f"{file.name}: {file.read_text()[-1000:]}" for file in files)

    def close(self) -> None:
        self.hosts.close()
