"""How supervisors report to the scheduler: one JSON request per connection.

The server and its handler run in the process that writes the store; the client is light, because every supervisor
loads it. Nothing else may write results to the store from outside the scheduler.
"""
