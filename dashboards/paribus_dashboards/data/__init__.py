"""What the pages read: the store and the run folders of a home folder, cached, bounded, and safe for many threads.

It is read-only, and it imports no page and nothing of the web server.
"""
