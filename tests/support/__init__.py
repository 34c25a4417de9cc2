"""Made-up plans, studies, home folders and databases for the tests. Nothing here is a measurement."""
