"""The web server: it assembles the pages into an application, guards and serves it, or exports it to one file.

No page may import it, and it computes nothing: pages read :mod:`paribus_dashboards.data`.
"""
