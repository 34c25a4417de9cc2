"""The database: studies, runs, attempts, leases, budgets and results; the only record of who may train what.

`store.Reader` and `store.Store` are the public classes. They open transactions and call the plain functions of the
other modules. Nothing here starts a process, reads a run folder or knows an engine.
"""
