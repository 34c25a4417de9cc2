"""A Slurm cluster of two nodes with two fake GPUs each, on this machine: no services, no containers.

``python slurm_cluster.py up FOLDER`` starts munged, slurmctld and two slurmd and prints the path of ``slurm.conf``, to
be exported as ``SLURM_CONF``; ``python slurm_cluster.py down FOLDER`` ends all of them and every job. What is missing
for it is told in one line, with exit status 3. On Debian::

    apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
"""

import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
MISSING = 3
PATIENCE_S = 60.0

# jobs are known for 15 s after their end only, as on clusters where nobody can ask later
SLURM_CONF = """
ClusterName=paribus
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=20
KillWait=5
MinJobAge=15
MailProg=/bin/true
GresTypes=gpu
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=2000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=2000 Gres=gpu:2
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=60 PriorityTier=1
PartitionName=high Nodes=n1,n2 MaxTime=60 PriorityTier=10
"""

# the files must be character devices; the flag makes Slurm set CUDA_VISIBLE_DEVICES
GRES_CONF = "NodeName=n[1-2] Name=gpu File=/dev/tty[1-2] Flags=nvidia_gpu_env\n"


def missing():
    """Return what this machine lacks for a cluster; empty if nothing."""
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    lacking = [p for p in PROGRAMS if shutil.which(p) is None]
    devices = [d for d in ("/dev/tty1", "/dev/tty2") if not Path(d).is_char_device()]
    return [*lacking, *devices]


def up(folder):
    """Start the cluster in an empty folder and wait until both nodes are idle."""
    folder.mkdir(parents=True, mode=0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(256))
    (folder / "munge.key").chmod(0o600)
    names = {"host": socket.gethostname(), "user": getpass.getuser(), "folder": folder, "ports": free_ports(3)}
    (folder / "slurm.conf").write_text(SLURM_CONF.format(**names))
    (folder / "gres.conf").write_text(GRES_CONF)
    munge = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    quiet("munged", "--force", *(f"--{option}={folder / f'munge.{name}'}" for option, name in munge.items()))
    quiet("slurmctld", folder=folder)
    for node in ("n1", "n2"):
        quiet("slurmd", "-N", node, folder=folder)
    end = time.monotonic() + PATIENCE_S
    while (
        said("sinfo", "--noheader", "--Node", "--format=%T", "--partition=low", folder=folder).split() != ["idle"] * 2
    ):
        if time.monotonic() > end:
            raise SystemExit(f"the nodes did not come up: see the logs in {folder}")
        time.sleep(0.2)


def down(folder):
    """End all jobs, then the daemons of this folder; by force what does not hear."""
    said("scancel", "--signal=KILL", f"--user={getpass.getuser()}", folder=folder)
    said("scancel", f"--user={getpass.getuser()}", folder=folder)
    end = time.monotonic() + 15
    while said("squeue", "--noheader", "--states=RUNNING,COMPLETING", folder=folder) and time.monotonic() < end:
        time.sleep(0.2)
    pids = [int(p.read_text()) for p in folder.glob("*.pid") if p.read_text().strip()]
    for number, wait_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + wait_s
        while any(Path(f"/proc/{p}").exists() for p in pids) and time.monotonic() < end:
            time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def free_ports(count):
    """Return ports that nobody listens on, and that the kernel gives to nobody while a daemon is away."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = []
    for port in random.sample(range(max(1024, first - 12000), first), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise SystemExit(f"no {count} free ports below {first}")


def quiet(*command, folder=None):
    """Run a command that must succeed."""
    result = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{command[0]}: {result.stderr.strip()}")


def said(*command, folder):
    """Run a command, whose failure shows in its empty output."""
    return subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, check=False, timeout=60
    ).stdout.strip()


def environment(folder):
    """Return the environment with the cluster's configuration."""
    return {**os.environ, **({} if folder is None else {"SLURM_CONF": str(folder / "slurm.conf")})}


if __name__ == "__main__":
    _, verb, where = sys.argv
    if lacking := missing():
        print(f"no Slurm cluster here: {', '.join(lacking)} not found; see {Path(__file__).name}")
        sys.exit(MISSING)
    place = Path(where).resolve()
    if verb == "up":
        try:
            up(place)
        except BaseException:
            down(place)
            raise
        print(place / "slurm.conf")
    else:
        down(place)
