"""Conformance suites for runners and engines, and a fake runner to test the platform with. Public.

``runner_suite.RunnerTestCase`` is what a runner must pass, ``engine_suite.EngineTestCase`` what an engine must pass,
and ``fake_runner`` stands in for a runner.

Only tests import this package; it may import every other package of the platform but the command line.
"""
