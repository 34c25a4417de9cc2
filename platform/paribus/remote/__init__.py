"""A server for a team, and the commands that reach it from another machine.

``tokens`` says who may do what; ``bundle`` is what travels; ``submission`` is what both `paribus submit` and the server
do with a study file; ``client`` makes the requests, and ``received`` checks their answers. The server itself is a part
of the dashboard (:mod:`paribus_dashboards.api`): nothing here listens.
"""
