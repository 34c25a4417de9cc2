"""One file that holds a study: its rows of the store, the folders of its runs and its report.

``tar_file`` is the format and its reader, which believes nothing; ``export`` and ``restore`` know what a study is.
"""
