"""The warm server of a local engine, whose supervisors take a run for dead after two leases without a metric line."""

from __future__ import annotations

import sys

from faults.world import LEASE_S
from paribus.engines import warm
from paribus.health import alive

if __name__ == "__main__":
    alive.DEAD_AFTER_S = 2 * LEASE_S  # type: ignore[misc]
    sys.exit(warm.main(sys.argv[1:]))
