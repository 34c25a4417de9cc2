"""A copy of the database is one that some commit left, whatever the writer does meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from paribus.errors import StoreError
from paribus.store.database import FILE
from paribus.store.untouched import copy_file, open_untouched

ROWS = 400
WRITER = """
import random, sqlite3, sys
number = 0
while True:  # a connection that is closed removes the log; one that goes on begins it again after each checkpoint
    with sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("PRAGMA synchronous = OFF")
        store.execute(f"PRAGMA wal_autocheckpoint = {random.choice([5, 50, 1000])}")
        for _ in range(random.choice([1, 20])):
            number += 1
            store.execute("BEGIN IMMEDIATE")
            store.execute("UPDATE row SET number = ?, text = ?", (number, str(number) * 200))
            store.execute("COMMIT")
            if number == 1:
                print("begun", flush=True)
    store.close()
"""


def test_copies_beside_a_writer_are_whole(tmp_path):
    """Every copy passes SQLite's check, and all rows of it are those of one transaction; later copies are newer."""
    home, target = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    with closing(sqlite3.connect(home / FILE)) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, number INTEGER, text TEXT)")
        store.executemany("INSERT INTO row VALUES (?, 0, '0')", [(n,) for n in range(ROWS)])
        store.commit()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(home / FILE)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "begun\n"
        seen = []
        for _ in range(25):
            target.mkdir()
            try:
                copy_file(home, target)
            except StoreError:  # it changed too fast in each try: then nothing is read
                shutil.rmtree(target)
                continue
            with closing(sqlite3.connect(target / FILE)) as copy:
                assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                found = copy.execute("SELECT number, text, COUNT(*) FROM row GROUP BY number, text").fetchall()
            assert [(n, text) == (n, str(n) * 200 if n else "0") for n, text, _ in found] == [True]
            assert found[0][2] == ROWS
            seen.append(found[0][0])
            shutil.rmtree(target)
    finally:
        writer.kill()
        writer.communicate()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1


def test_no_store_and_no_file_are_errors(tmp_path):
    """A folder without a store, and a file of another kind, say so; nothing is created."""
    with pytest.raises(StoreError, match="there is no store in"), open_untouched(tmp_path):
        pass
    (tmp_path / FILE).write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="cannot be used: file is not a database"), open_untouched(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
