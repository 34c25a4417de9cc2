"""The warm server of a local engine whose supervisors wait as long for everything as a short lease allows."""

from __future__ import annotations

import sys

from faults.world import LEASE_S
from paribus.engines import warm
from paribus.health import alive
from paribus.schedule import ask

if __name__ == "__main__":
    alive.DEAD_AFTER_S = 2 * LEASE_S  # type: ignore[misc]
    ask.PATIENCE_S = LEASE_S / 6  # type: ignore[misc]
    sys.exit(warm.main(sys.argv[1:]))
