"""One file a page, found by being here; :mod:`paribus_dashboards.web` says what a page is."""
