"""The warm server of a local engine whose supervisors take a run for dead after two leases without a metric line."""

from __future__ import annotations

import os
import sys

from faults.world import LEASE_S
from paribus.engines import warm
from paribus.health import alive
from paribus.schedule import ask

PATIENCE = "FAULTS_PATIENCE_S"
"""Environment variable: seconds that supervisors wait for an answer."""

if __name__ == "__main__":
    alive.DEAD_AFTER_S = 2 * LEASE_S  # type: ignore[misc]
    ask.PATIENCE_S = float(os.environ.get(PATIENCE, ask.PATIENCE_S))  # type: ignore[misc]
    sys.exit(warm.main(sys.argv[1:]))
