"""Public fakes and conformance suites for runners, engines and stores."""
