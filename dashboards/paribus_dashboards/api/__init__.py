"""What other machines ask of a server with a token: submit, status, report, cancel, retry, as JSON below ``/api/``.

The commands of :mod:`paribus.cli` are its clients (:mod:`paribus.remote.client`). A request without a token, or with
one of another scope, reaches no route: :mod:`~paribus_dashboards.api.guard` stands before all of them.
"""
