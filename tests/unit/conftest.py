"""Properties have no deadline: how long an example takes says what else the machine does."""

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
