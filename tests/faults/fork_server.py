"""The fork server of a local engine whose supervisors take a run for dead after two leases without a metric line."""

from __future__ import annotations

import os
import sys

from faults.world import LEASE_S
from paribus.engines import fork_server
from paribus.health import liveness
from paribus.rpc import client

PATIENCE = "FAULTS_PATIENCE_S"
"""Environment variable: seconds that supervisors wait for an answer."""

if __name__ == "__main__":
    liveness.DEAD_AFTER_S = 2 * LEASE_S  # type: ignore[misc]
    client.PATIENCE_S = float(os.environ.get(PATIENCE, client.PATIENCE_S))  # type: ignore[misc]
    sys.exit(fork_server.main(sys.argv[1:]))
