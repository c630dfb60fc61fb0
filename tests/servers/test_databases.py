"""What the tests of books believe about the databases that they are given."""

import pytest
import sqlalchemy


def test_a_database_is_new_and_takes_more_than_one_connection(database):
    engine = sqlalchemy.create_engine(database)
    try:
        with engine.begin() as first:
            assert not sqlalchemy.inspect(first).get_table_names()
            first.execute(sqlalchemy.text("CREATE TABLE kept (number INTEGER)"))
        with engine.connect() as one, engine.connect() as other:
            for each in (one, other):
                assert each.execute(sqlalchemy.text("SELECT count(*) FROM kept")).scalar() == 0
    finally:
        engine.dispose()


def test_a_killed_server_has_kept_what_was_committed(postgresql):
    engine = sqlalchemy.create_engine(postgresql.url(), poolclass=sqlalchemy.NullPool)
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE kept (number INTEGER)"))
            connection.execute(sqlalchemy.text("INSERT INTO kept VALUES (7)"))
        postgresql.kill()
        with pytest.raises(sqlalchemy.exc.OperationalError), engine.connect():
            pass
        postgresql.start()
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT number FROM kept")).scalar() == 7
    finally:
        engine.dispose()
