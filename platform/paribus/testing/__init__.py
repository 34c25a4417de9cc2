"""Conformance suites for runners and engines, and fakes to test the platform with. Public.

``engine_suite.EngineTestCase`` is what an engine must pass, ``fake_engine.FakeEngine`` stands in for an engine, and
``fake_runner`` for a runner.

Only tests import this package; it may import every other package of the platform but the command line.
"""
