"""Tables that others have published, and what their numbers can show: which steps exceed which noise.

Nothing here reads a store or trains: a table is a file, and its audit is arithmetic on what the file states.
"""
