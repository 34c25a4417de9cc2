"""What `paribus import-config trl` takes for an option that is not given, beside the real defaults."""

import dataclasses

from trl import GRPOConfig

from paribus_runners.import_config.trl import AGGREGATIONS, DEFAULTS


def test_the_defaults_are_those_of_grpoconfig():
    """Each value equals the field's default, and TRL's help names every loss type of the table."""
    fields = {field.name: field for field in dataclasses.fields(GRPOConfig)}
    assert {name: fields[name].default for name in DEFAULTS} == dict(DEFAULTS)
    assert [name for name in AGGREGATIONS if name not in fields["loss_type"].metadata["help"]] == []
