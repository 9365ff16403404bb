"""Read sessions: lists, history, search, status, exchanges. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import orjson

from hobnob import keys, policy
from hobnob.config import Config, Settings
from hobnob.errors import BadInput, NotAllowed
from hobnob.policy import Caller, Operator, authority, explanation, grants, trust
from hobnob.requests import HISTORY_MAX, SEARCH_MAX, HistoryQuery, SearchQuery, SessionQuery
from hobnob.sessions import exchange_log, listing, presentation, resolve
from hobnob.sessions.capabilities import Capabilities
from hobnob.sessions.presentation import Row
from hobnob.spending import BudgetAccount
from hobnob.store import Store, Tx, deliveries, entries, homes, index_words, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.store.costs import budgets as budget_rows
from hobnob.store.costs import usage as usage_rows
from hobnob.store.costs.usage import CostRow
from hobnob.types import Delivery, Entry, Session, Turn, Usage, text_of

_TOKEN = "token:"  # noqa: S105 - a prefix, no secret
_REFUSALS = 50  # in the ledger of trust
_HITS = 200  # search hits examined per narrowing
_SEARCHES = 20  # narrowings by grants; with more, all sessions are searched and the hits filtered
Counts = list[tuple[object, ...]]


class SessionQueries:
    """Each query resolves its session and asks the policy once, in one transaction."""

    def __init__(
        self, store: Store, config: Config, refusals: exchange_log.Refusals, capabilities: Capabilities
    ) -> None:
        self._capabilities = capabilities
        self._store = store
        self._config = config
        self._refusals = refusals

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    async def list(self, caller: Caller, query: SessionQuery | None = None) -> Row:
        """A page of the sessions the caller may see."""
        query = query or SessionQuery()
        read = self._store.read_small if listing.is_small(query) else self._store.read
        return await read(listing.list_page, self._settings, self._config.transcripts, caller, query)

    def check_writable(self) -> None:
        """Raise StoreError when the store takes no writes any more."""
        self._store.check_writable()

    async def check_store(self) -> None:
        """Read something small. Raises StoreError when the store does not answer."""
        await self._store.read_small(session_rows.find, "")

    async def recent(self, caller: Caller, limit: int) -> tuple[Sequence[Session], bool]:
        """The sessions used last that the caller may see, and whether there are more."""
        return await self._store.read_small(listing.recent, self._settings, caller, limit)

    async def history(self, caller: Caller, reference: str, query: HistoryQuery | None = None) -> Row:
        """A page of a transcript, the newest one without a cursor."""
        return (await self.history_of(caller, reference, query))[1]

    async def history_of(
        self, caller: Caller, reference: str, query: HistoryQuery | None = None
    ) -> tuple[Session, Row]:
        """The session, and a page of its transcript."""
        query = query or HistoryQuery()
        with self._refusals.noted(caller.key, "history") if isinstance(caller, Session) else nullcontext():
            return await self._store.read_small(_history, self._settings, caller, reference, query)

    async def search(self, caller: Caller, query: SearchQuery) -> Row:
        """Full-text search over the sessions the caller may see."""
        if not query.query.strip():
            raise BadInput("The query is empty.")
        await index_words(self._store)
        return await self._store.read(_search, self._settings, caller, query)

    async def status(self, caller: Caller, reference: str) -> Row:
        """A session as a row of the list, with what it is doing."""

        def find(tx: Tx) -> Row:
            session = resolve.find(tx, self._settings, caller, "status", reference)
            folder = self._config.transcripts
            ((row, _),) = listing.rows(tx, self._settings, folder, caller, [session], standing=True)
            return row

        return await self._store.read(find)

    async def usage(
        self, caller: Operator, first_day: str, last_day: str, reference: str | None = None, limit: int = 50
    ) -> tuple[Usage | None, Sequence[Usage]]:
        """The usage of the agents the caller may see, or of one session: in all, and per session."""

        def add_up(tx: Tx) -> tuple[Usage | None, Sequence[Usage]]:
            session = resolve.find(tx, self._settings, caller, "history", reference) if reference else None
            key = session.key if session else None
            return usage_rows.spent(
                tx, first_day, last_day, agents=caller.agents, session_key=key, limit=limit
            )

        return await self._store.read(add_up)

    async def costs(
        self, caller: Operator, by: str, first_day: str, last_day: str, limit: int
    ) -> Sequence[CostRow]:
        """Usage of the agents the caller may see, added up."""
        return await self._store.read(
            usage_rows.added_up, by, first_day, last_day, agents=caller.agents, limit=limit
        )

    async def budgets(self, day: str) -> Sequence[BudgetAccount]:
        """All budgets, those of agents for a day."""
        return await self._store.read(budget_rows.listed, day)

    async def exchanges(self, caller: Caller, *, limit: int = 50, cursor: str | None = None) -> Row:
        """A page of exchanges, newest first."""
        return await self._store.read(
            exchange_log.exchanges, self._settings, caller, limit=limit, cursor=cursor
        )

    async def exchange(self, caller: Caller, exchange_id: str) -> Row:
        """One exchange, step by step."""
        return await self._store.read(exchange_log.exchange, self._settings, caller, exchange_id)

    async def timeline(self, caller: Caller, *, limit: int, cursor: str | None) -> Row:
        """A page of exchanges with their steps."""
        return await self._store.read(
            exchange_log.timeline, self._settings, caller, limit=limit, cursor=cursor
        )

    async def traffic(self, caller: Caller, since_ms: int) -> Row:
        """Totals per pair of sessions since a time, and recent refusals."""
        refusals = [*self._refusals.newest]
        return await self._store.read(exchange_log.traffic, self._settings, caller, refusals, since_ms)

    async def deliveries(
        self, caller: Caller, reference: str, *, limit: int = 50
    ) -> tuple[Session, Sequence[Delivery]]:
        """A session and the newest deliveries to its chat, oldest first."""

        def find(tx: Tx) -> tuple[Session, Sequence[Delivery]]:
            session = resolve.find(tx, self._settings, caller, "history", reference)
            return session, deliveries.of_session(tx, session.key, limit=limit)

        return await self._store.read(find)

    async def last_position(self, caller: Caller, reference: str) -> tuple[Session, int]:
        """A session and the last sequence number of its transcript."""

        def find(tx: Tx) -> tuple[Session, int]:
            session = resolve.find(tx, self._settings, caller, "history", reference)
            return session, entries.last_seq(tx, session.session_id)

        return await self._store.read_small(find)

    async def entries_after(
        self, caller: Caller, reference: str, after: int, *, limit: int
    ) -> tuple[str, Sequence[Entry]]:
        """The id of a session's transcript and its entries after a sequence number, oldest first."""

        def find(tx: Tx) -> tuple[str, Sequence[Entry]]:
            session = resolve.find(tx, self._settings, caller, "history", reference)
            return session.session_id, entries.after(tx, session.session_id, after, limit=limit)

        return await self._store.read(find)

    async def turn(self, turn_id: str) -> Turn:
        """A turn as it is stored now. Raises NotFound."""
        return await self._store.read_small(turns.get, turn_id)

    async def why_waiting(self, turn: Turn) -> str | None:
        """Why no gateway runs a queued turn: the one that has its files does not run."""
        own = self._settings.home_name
        if own is None or turn.status != "queued":
            return None
        return await self._store.read(homes.why_waiting, turn, own)

    async def open_work(self) -> tuple[Counts, Counts, Counts]:
        """Numbers of open turns, exchanges and deliveries, for metrics."""

        def count(tx: Tx) -> tuple[Counts, Counts, Counts]:
            return turns.count_open(tx), exchange_rows.count_open(tx), deliveries.count_open(tx)

        return await self._store.read(count)

    async def explain(self, caller: Operator, action: policy.Verb, target: str, source: str | None) -> Row:
        """Whether `source` may do `action` to `target`, and by which rules. Without `source`: the caller."""
        await self._capabilities.ready()
        context = self._settings, self._capabilities
        return await self._store.read(_explain, *context, caller, action, target, source)

    async def trust(self) -> Row:
        """Who may do what to whom, and what agents were refused lately, newest first. For owners."""
        await self._capabilities.ready()

        def read(tx: Tx) -> Row:
            return trust.matrix(
                self._settings, lambda one, other: self._capabilities.authority_of(tx, one, None, other)
            )

        refused = [exchange_log.refusal_row(each) | {"verb": each.verb} for each in self._refusals.all]
        return await self._store.read(read) | {"refusals": refused[: -_REFUSALS - 1 : -1]}

    def may_receive_events(self, caller: Caller, session_key: str) -> bool:
        """Whether the caller may receive events of a session: as for reading its history."""
        if isinstance(caller, Operator) and caller.agents is None:
            return caller.holds("operator.read")
        session = Session.of(keys.parse(session_key))
        return policy.may(self._settings, caller, "history", session).allowed


def _history(
    tx: Tx, settings: Settings, caller: Caller, reference: str, query: HistoryQuery
) -> tuple[Session, Row]:
    target = resolve.lookup(tx, settings, caller, reference)
    session = resolve.authorise(settings, caller, "history", target)
    # An older transcript of the session can be read by its own id.
    session_id = target.transcript_id or session.session_id
    before = presentation.decode_cursor(query.cursor, int)[0] if query.cursor else entries.LAST
    limit = min(max(query.limit, 1), HISTORY_MAX)
    page: dict[str, Any] = {"before": before, "limit": limit, "tools": query.include_tools}
    shown = presentation.messages(entries.lines(tx, session_id, **page))
    count = entries.count(tx, session_id, **page) if shown.full else len(shown.messages)
    shown.dropped = count - len(shown.messages)
    row: Row = {
        "sessionKey": keys.display_stored(session.key, resolve.viewer(settings, caller)),
        "sessionId": session_id,
        "messages": shown.messages,
        **shown.flags(),
    }
    first = shown.messages[0]["seq"] if shown.messages else 1
    if first > 1 and (shown.dropped or count == limit):
        row["nextCursor"] = presentation.encode_cursor(first)
    return session, row


def _search(tx: Tx, settings: Settings, caller: Caller, query: SearchQuery) -> Row:
    """Entries with all the words, of sessions the caller may search."""
    limit = min(max(query.limit, 1), SEARCH_MAX)
    only = resolve.find(tx, settings, caller, "search", query.session_key) if query.session_key else None
    hits: dict[tuple[str, int], entries.Hit] = {}
    for narrow in _narrowings(settings, caller, only):
        for hit in entries.search(tx, query.query, limit=_HITS, **narrow):
            hits.setdefault((hit.entry.session_id, hit.entry.seq), hit)
    sessions = session_rows.by_keys(tx, [hit.session_key for hit in hits.values()])
    viewer = resolve.viewer(settings, caller)
    found: list[Row] = []
    size = 2
    for hit in hits.values():
        session = sessions.get(hit.session_key)
        if session is None or (only is not None and session.key != only.key):
            continue
        if not policy.may(settings, caller, "search", session).allowed:
            continue
        row = _hit_row(hit, keys.display_stored(session.key, viewer), query.query)
        size += len(orjson.dumps(row)) + 1
        if len(found) == limit or size > presentation.SEARCH_BYTES:
            return {"count": len(found), "results": found, "truncated": True}
        found.append(row)
    return {"count": len(found), "results": found}


def _hit_row(hit: entries.Hit, shown_key: str, query: str) -> Row:
    message = hit.entry.message
    row: Row = {
        "sessionKey": shown_key,
        "sessionId": hit.entry.session_id,
        "seq": hit.entry.seq,
        "timestamp": hit.entry.created_at_ms,
        "role": hit.entry.role,
        "snippet": presentation.snippet(text_of(message), query.split()),
    }
    if source := message.get("provenance"):
        row["provenance"] = {"kind": source.get("kind"), "sourceTool": source.get("sourceTool")}
    return row


def _narrowings(settings: Settings, caller: Caller, only: Session | None) -> list[dict[str, Any]]:
    """Where to search, so that hits the caller may not see do not displace those it may."""
    if only is not None:
        return [{"session_key": only.key}]
    if isinstance(caller, Operator):
        return [{}] if caller.agents is None else [{"agent_id": agent} for agent in caller.agents]
    match policy.visibility(settings, caller):
        case "self":
            own: list[dict[str, Any]] = [{"session_key": caller.key}]
        case "tree":
            own = [{"tree_of": caller}]
        case "agent":
            own = [{"agent_id": caller.agent_id}, {"tree_of": caller}]
        case _:
            return [{"agent_id": caller.agent_id}, {"tree_of": caller}, {}]
    return own + _granted_narrowings(settings, caller)


def _granted_narrowings(settings: Settings, caller: Session) -> list[dict[str, Any]]:
    if policy.is_clamped(settings, caller):
        return []
    found: list[dict[str, Any]] = []
    for agent, only in grants.targets(settings, caller, "history").items():
        if agent == "*":
            return [{}]
        found += [{"agent_id": agent}] if only is None else [{"session_key": key} for key in only]
    return found if len(found) <= _SEARCHES else [{}]


def _explain(
    tx: Tx,
    settings: Settings,
    capabilities: Capabilities,
    caller: Operator,
    action: policy.Verb,
    target: str,
    source: str | None,
) -> Row:
    viewer = resolve.viewer(settings, caller)

    def session(reference: str) -> tuple[Session, bool]:
        """The session as stored or as it would be created, and which. The caller must be able to list it."""
        key = keys.parse(reference, viewer)
        stored = session_rows.find(tx, str(key))
        found = stored or Session.of(key)
        resolve.require(policy.may(settings, caller, "list", found))
        return found, stored is not None

    who: Caller = caller
    verdict = None
    if source and source.startswith(_TOKEN):
        who = _token(settings, caller, source.removeprefix(_TOKEN))
    elif source:
        who, stored = session(source)
        verdict = explanation.missing(settings, who, stored=stored, verb=action)
    if action == "spawn" and ":" not in target:
        target = f"agent:{target}:{'acp:new' if target in settings.acp.harnesses else 'main'}"
    to, stored = session(target)
    if verdict is None and action != "spawn":
        first_message = action == "send" and isinstance(who, Operator)
        verdict = explanation.missing(settings, to, stored=stored, verb=action, created=first_message)
    verdicts = [verdict] if verdict else explanation.verdicts(settings, who, action, to)
    limit = None
    if action == "send" and isinstance(who, Session) and all(each.allowed for each in verdicts):
        limit = capabilities.authority_of(tx, who, None, to)
        if reduction := authority.verdict(settings, who, to, limit):
            verdicts.append(reduction)
    rules = [{"allowed": v.allowed, "code": v.code, "why": v.why} for v in verdicts]
    answer = explanation.report(who, action, to, verdicts) | {"rules": rules}
    narrow = explanation.narrow_grant(settings, who, action, to) if verdict is None else None
    if limit is not None:
        answer["authority"] = {"mode": limit["mode"], "withheld": limit["withheld"]}
    return answer | ({"grant": narrow} if narrow else {})


def _token(settings: Settings, caller: Operator, name: str) -> Operator:
    """The operator a named token stands for. Only owners of all agents may ask about tokens."""
    if not caller.is_owner or caller.agents is not None:
        raise NotAllowed(
            "Only an owner may ask about tokens.",
            rule="scope.agents" if caller.is_owner else "scope.missing",
            fix="Use a token with operator.admin for all agents.",
        )
    tokens = {token.name: token for token in settings.gateway.auth.tokens}
    if name not in tokens:
        known = ", ".join(tokens) or "none"
        raise BadInput(f"gateway.auth.tokens has no token {name!r} (configured: {known}).")
    agents = tokens[name].agents
    return Operator(name, tuple(tokens[name].scopes), None if agents is None else tuple(agents))
