"""A Ray cluster on this machine: a head without GPUs and two nodes with two fake ones each, with token authentication.

``python ray_cluster.py FILE`` writes the cluster's address into FILE when it is up, and ends all of it when its
standard input is closed. A line ``raylet`` kills a node by force, and another one joins; a line ``head`` kills the
head's store of everything; ``hang`` stops that store until a line ``go on``. Each is answered by a line. Without Ray
it says so in one line, with exit status 3.
"""

import os
import signal
import sys
from pathlib import Path

MISSING = 3

if __name__ == "__main__":
    try:
        import ray
    except ImportError:
        print("no Ray cluster here: Ray is not installed")
        sys.exit(MISSING)
    from ray.cluster_utils import Cluster

    assert os.environ["RAY_AUTH_MODE"] == "token", "the tests are to show that the token is carried"
    free = {"dashboard_agent_listen_port": 0}  # Ray's own choice is one port for all nodes of a machine
    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": 0, **free}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=2, num_gpus=2, **free) for _ in range(2)]
    cluster.wait_for_nodes(timeout=240)
    file = Path(sys.argv[1])
    file.with_suffix(".new").write_text(cluster.address)
    file.with_suffix(".new").replace(file)
    for line in sys.stdin:
        if line.strip() == "raylet":
            victim = nodes.pop(0)
            victim.kill_raylet()
            cluster.remove_node(victim, allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=2, num_gpus=2, **free))
        elif line.strip() == "head":
            cluster.head_node.kill_gcs_server()
        else:
            number = signal.SIGSTOP if line.strip() == "hang" else signal.SIGCONT
            (gcs,) = cluster.head_node.all_processes["gcs_server"]
            os.kill(gcs.process.pid, number)
        print("done", flush=True)
    ray.shutdown()
    cluster.shutdown()
