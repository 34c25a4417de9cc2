"""The page that changes something: notes, tags, cancel, stop, retry, priority, archive, delete. Others only show.

It is served beside them, behind a token with the scope ``run``: its answers depend on who asks, so none of them is
shared between readers.
"""
