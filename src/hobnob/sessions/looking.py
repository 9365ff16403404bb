"""What one can see of sessions, without changing anything."""

from __future__ import annotations

from collections.abc import Sequence

from hobnob import keys, policy
from hobnob.config import Config
from hobnob.errors import BadInput, SessionNotFound
from hobnob.policy import Caller, Operator, Verb
from hobnob.sandbox import Sandbox
from hobnob.sessions import queries, resolve, spawning
from hobnob.sessions.presentation import Row
from hobnob.sessions.queries import SessionQuery
from hobnob.sessions.spawning import AvailableTools
from hobnob.store import Store, Tx, deliveries, entries, index_words
from hobnob.store import usage as usage_rows
from hobnob.types import Delivery, Entry, Session, Usage


class Looking:
    """Each verb resolves what was named and asks the policy once, in one transaction."""

    def __init__(
        self, store: Store, config: Config, spawns: spawning.Spawner, tools: AvailableTools, sandbox: Sandbox
    ) -> None:
        self._store = store
        self._config = config
        self._settings = config.settings
        self._spawning = spawns
        self._tools = tools
        self._sandbox = sandbox

    async def list(self, caller: Caller, wanted: SessionQuery | None = None) -> Row:
        """A page of the sessions the caller may see."""
        wanted = wanted or SessionQuery()
        queries.check_kinds(wanted.kinds)
        return await self._store.read(queries.list_page, self._settings, self._config.home, caller, wanted)

    async def history(
        self,
        caller: Caller,
        reference: str,
        *,
        limit: int = queries.HISTORY_DEFAULT,
        include_tools: bool = False,
        cursor: str | None = None,
    ) -> Row:
        """A page of a transcript, the newest when no cursor is given."""
        return await self._store.read_small(
            queries.history,
            self._settings,
            caller,
            reference,
            limit=limit,
            include_tools=include_tools,
            cursor=cursor,
        )

    async def search(
        self,
        caller: Caller,
        query: str,
        *,
        session_key: str | None = None,
        limit: int = queries.SEARCH_DEFAULT,
    ) -> Row:
        """Full-text search over the sessions the caller may see."""
        if not query.strip():
            raise BadInput("The query is empty.")
        await index_words(self._store)
        return await self._store.read(
            queries.search, self._settings, caller, query, session_key=session_key, limit=limit
        )

    async def resolve(
        self,
        caller: Caller,
        reference: str | None = None,
        *,
        label: str | None = None,
        agent_id: str | None = None,
        verb: Verb = "list",
    ) -> Session:
        """The session that is meant. Raises SessionNotFound or NotAllowed."""
        if (reference is None) == (label is None):
            raise BadInput("Give a key or sessionId, or a label.")
        if label is not None:
            return await self._store.read_small(
                resolve.by_label, self._settings, caller, verb, label, agent_id
            )
        return await self._store.read_small(resolve.find, self._settings, caller, verb, str(reference))

    async def known_or_new(self, caller: Caller, reference: str) -> Session:
        """The session that is meant, or as it would be when it is first used. Raises NotAllowed."""
        known, key = await self._store.read_small(resolve.lookup, self._settings, caller, reference)
        session = known or Session.of(key)
        resolve.require(policy.may(self._settings, caller, "status", session))
        return session

    async def status(self, caller: Caller, reference: str) -> Row:
        return await self._store.read(queries.status, self._settings, self._config.home, caller, reference)

    async def spent(self, caller: Caller, first: str, last: str) -> Sequence[Usage]:
        """What was spent from one day to another, of the sessions the caller may see."""
        found = await self._store.read(usage_rows.between, first, last)
        return [usage for usage in found if self.sees(caller, usage.session_key)]

    async def exchanges(self, caller: Caller, *, limit: int = 50, cursor: str | None = None) -> Row:
        """Who told whom what, newest first."""
        return await self._store.read(queries.exchanges, self._settings, caller, limit=limit, cursor=cursor)

    async def exchange(self, caller: Caller, exchange_id: str) -> Row:
        """One exchange, step by step."""
        return await self._store.read(queries.exchange, self._settings, caller, exchange_id)

    async def posted(self, caller: Caller, reference: str, *, limit: int = 50) -> Sequence[Delivery]:
        """What was announced to a session's chat, oldest first."""

        def find(tx: Tx) -> Sequence[Delivery]:
            session = resolve.find(tx, self._settings, caller, "history", reference)
            return deliveries.of_session(tx, session.key, limit=limit)

        return await self._store.read(find)

    def sees(self, caller: Caller, session_key: str) -> bool:
        """Whether the caller may hear what happens in a session: whoever may read its history may."""
        if isinstance(caller, Operator) and caller.agents is None:
            return caller.holds("operator.read")
        session = Session.of(keys.parse(session_key))
        return policy.may(self._settings, caller, "history", session).allowed

    async def end_of(self, caller: Caller, reference: str) -> tuple[Session, int]:
        """A session and the number of the last message in it."""

        def find(tx: Tx) -> tuple[Session, int]:
            session = resolve.find(tx, self._settings, caller, "history", reference)
            return session, entries.last_seq(tx, session.session_id)

        return await self._store.read_small(find)

    async def said_since(
        self, caller: Caller, reference: str, after: int, *, limit: int = 200
    ) -> tuple[str, Sequence[Entry]]:
        """What came after a place in a session's transcript, oldest first, and the transcript's id."""

        def find(tx: Tx) -> tuple[str, Sequence[Entry]]:
            session = resolve.find(tx, self._settings, caller, "history", reference)
            return session.session_id, entries.after(tx, session.session_id, after, limit=limit)

        return await self._store.read(find)

    async def acting_for(self, caller: Caller, reference: str) -> Session:
        """The session a caller may act for: one it may send into. A main session begins with that."""
        try:
            return resolve.not_archived(await self.resolve(caller, reference, verb="send"))
        except SessionNotFound:
            return await self._store.write(resolve.find_or_begin_main, self._settings, caller, reference)

    async def tools_of(self, session: Session) -> dict[str, policy.Verdict]:
        """Which tools a session has, and by which rule. Only for a child the store has to be asked."""
        await self._settle()
        if session.spawned_by is None:
            return self._spawning.tools_of_agent(session)
        return await self._store.read_small(self._spawning.tools_of, session)

    async def _settle(self) -> None:
        """Wait until it is known which tools there are, and whether a sandbox works. Both are soon."""
        await self._tools.ready()
        await self._sandbox.ready()

    async def confinement(self, session: Session) -> policy.Confinement:
        """Where a session's tools run."""
        if session.spawned_by is None:
            return policy.confinement(self._settings, session)
        return await self._store.read_small(self._spawning.confinement, session)

    async def check_place(self, session: Session) -> None:
        """Raise NotAllowed when a session has to run in a sandbox and none works."""
        if (await self.confinement(session)).sandboxed and await self._sandbox.ready():
            spawning.refuse_without_sandbox(self._sandbox, "sandbox.unavailable")
