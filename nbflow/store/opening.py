"""Open a store: make or check its file, take over the journals of the dead, become known to the others."""

from collections.abc import Callable
from contextlib import suppress

from nbflow import ids
from nbflow.errors import StoreCorruptError, StoreError
from nbflow.store import known, migrate, segments, shape
from nbflow.store import lease as leases
from nbflow.store.database import make_schema
from nbflow.store.desk import Opening
from nbflow.store.loader import Loader
from nbflow.store.session import Session
from nbflow.store.wholeness import wholeness


class Entrance:
    """One engine's way into a store.

    Attributes:
        created: whether the store was made here.
    """

    def __init__(self, loader: Loader, warn: Callable[[str], None]) -> None:
        self.created = False
        self._loader, self._desk = loader, loader.desk
        self._desk.warn = warn

    def open(self) -> None:
        """Make or check the file, take over the journals of the dead, become known."""
        layout = self._desk.layout
        with self._loader.session(opening=Opening(self._make, self._bring_up_to_date)) as session:
            wholeness(layout, session.rows, self._desk.meta)
            if not known.is_complete(session.rows):
                session.make_known_again()
                self._desk.warn(f"what is known of the instances in {str(layout.file)!r} was made again from their entries")
            artifacts = str(layout.artifacts)
            if session.rows("select value from nb.meta where key = 'artifacts'") != [(artifacts,)]:
                session.change("update nb.meta set value = $1 where key = 'artifacts'", [artifacts])
            self._desk.life = leases.LifeLock(layout.journal, self._desk.engine)
            session.register()
        try:
            self._loader.after(self._take_over_the_dead, Session.mend)
        except BaseException:
            with suppress(StoreError), self._loader.session() as session:
                session.unregister()  # it never worked here, so its journal is not to be missed
                self._desk.life.remove()
            raise

    def _first_meta(self) -> dict[str, str]:
        return {
            "schema": str(migrate.SCHEMA),
            "store": ids.new_uid(),
            "purged": "0",
            "artifacts": str(self._desk.layout.artifacts),
        }

    def _make(self) -> None:
        layout = self._desk.layout
        if layout.file.exists():
            return
        waiting = [engine for engine in segments.engines(layout.journal) if segments.journal_end(layout.journal, engine)]
        if waiting:
            msg = (
                f"{str(layout.file)!r} is not there, but the journal of {len(waiting)} engine(s) that worked with it is, in "
                f"{str(layout.journal)!r}: put the file back, or move the folder {str(layout.folder)!r} away to begin anew. "
                f"Nothing was changed"
            )
            raise StoreCorruptError(msg)
        self._desk.database.create(self._first_meta())
        self.created = True

    def _bring_up_to_date(self) -> None:
        """Give an empty DuckDB file its tables, and an old store the present ones.

        Journals that dead engines left behind are loaded afterwards: their format has a version of its own.
        """
        layout, database = self._desk.layout, self._desk.database
        tables = {name for (name,) in database.rows("select table_name from duckdb_tables() where database_name = 'nb'")}
        if not tables:
            make_schema(database.connection, self._first_meta())
            self.created = True
            return
        if "meta" not in tables:
            raise shape.no_history(layout)
        shape.nothing_acts(layout, database.rows)
        meta = database.meta()
        if "store" not in meta:
            raise shape.no_history(layout)
        if (version := migrate.check(layout.file, meta.get("schema", ""))) < migrate.SCHEMA:
            self._migrate(version)
        shape.tables_as_made(layout, database.rows)

    def _migrate(self, version: int) -> None:
        layout, database = self._desk.layout, self._desk.database
        living = [engine for engine in segments.engines(layout.journal) if leases.lives(layout.journal, engine)]
        if living:
            msg = (
                f"{str(layout.file)!r} has schema version {version} and {len(living)} other kernel(s) work with it: "
                f"close them, then open it again to bring it to version {migrate.SCHEMA}"
            )
            raise StoreError(msg)
        copy = migrate.bring_up_to_date(database, layout.file, version)
        self._desk.warn(
            f"{str(layout.file)!r} was brought to schema version {migrate.SCHEMA}; a copy as it was is {str(copy)!r}"
        )

    def _take_over_the_dead(self, session: Session) -> bool:
        folder = self._desk.layout.journal
        complete = True
        for engine in segments.engines(folder) - {self._desk.engine}:
            life = leases.lives(folder, engine)
            if life is False:
                complete &= session.bury(engine) is not False
                if (lost := session.lost(engine)) is not None:
                    self._desk.warn(lost)
            elif life is None:
                complete &= session.load(engine)
                session.clear(engine)
        return complete
