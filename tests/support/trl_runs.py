"""Real runs of TRL's GRPOTrainer, as TRL left them: two arms, three seeds, on a tiny model.

``golden/trl/*.json.gz`` are the ``trainer_state.json`` of TRL 1.16.0 with transformers 5.23.0: 60 updates of the model
of ``benchmarks/health_trl_run.py``, ``loss_type`` ``grpo`` and ``dr_grpo`` (with ``scale_rewards=none``), an
evaluation every 20 updates. Nothing in them was written by Paribus.
"""

from __future__ import annotations

import gzip
from pathlib import Path

STORED = Path(__file__).resolve().parents[1] / "golden" / "trl"


def trl_folders(at: Path) -> list[Path]:
    """Write the six output folders of TRL, such as ``grpo-s1``, into a folder; return them in order of their names."""
    found = []
    for stored in sorted(STORED.glob("*.json.gz")):
        folder = at / stored.name.removesuffix(".json.gz")
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_bytes(gzip.decompress(stored.read_bytes()))
        found.append(folder)
    assert len(found) == 6
    return found
