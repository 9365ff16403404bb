"""Methods on the settings in effect: read them, and load the configuration file again."""

from __future__ import annotations

import logging

from hobnob import checks, redact
from hobnob.api import Services
from hobnob.api.rpc import Call, Payload, method
from hobnob.checks import Finding
from hobnob.config import Config, masked_changes, masked_leaves
from hobnob.config.reload import Reload
from hobnob.errors import BadConfig

_log = logging.getLogger(__name__)


@method("config.get", scope="operator.read")
async def config_get(call: Call) -> Payload:
    """The settings in effect, without secrets: `config` without defaults, `settings` all with their origin.

    `unapplied` lists those in which the file differs by now, `needsRestart` those of them that a reload does
    not change; `problem` is what keeps the file from being loaded. They can only be changed in the file.
    """
    call.require_all_agents()
    loaded = call.services.config
    leaves, _ = redact.data(dict(masked_leaves(loaded.settings)))
    return {
        "path": str(loaded.source) if loaded.source else None,
        "home": str(loaded.home),
        "exists": loaded.source is not None,
        "valid": True,
        "readOnly": True,
        "config": redact.data(masked_changes(loaded.settings))[0],
        "settings": [
            {"path": path, "value": value, "origin": loaded.origin(path)} for path, value in leaves.items()
        ],
        "issues": [{"path": path, "message": note} for path, note in (*loaded.renamed, *loaded.ignored)],
        **_on_disk(loaded),
    }


@method("config.reload", scope="operator.admin")
async def config_reload(call: Call) -> Payload:
    """Load the configuration file again. `applied` took effect, `pending` needs a restart.

    `warnings` say which names in the settings do not exist.

    A file with errors is refused, and the settings stay as they are.
    """
    call.require_all_agents()
    done = reload_settings(call.services)
    source = call.services.config.source
    warnings = [finding.message for finding in log_findings(call.services)]
    return {
        "path": str(source) if source else None,
        "applied": done.applied,
        "pending": done.pending,
        "warnings": warnings,
    }


def reload_settings(services: Services, *, everywhere: bool = True) -> Reload:
    """Apply the changed settings that may change while turns run. Raises BadConfig.

    Other gateways load their own files again, too.
    """
    if everywhere:
        services.cluster.reloads += 1  # told with the next heartbeat
    try:
        done = services.config.reload()
    except BadConfig as problem:
        _log.error("settings not reloaded, the old ones stay in effect: %s", problem.message)
        raise
    _log.info("settings reloaded: %s", f"changed {', '.join(done.applied)}" if done.applied else "no change")
    if done.pending:
        _log.warning("these settings need a restart: %s", ", ".join(done.pending))
    services.chats.accounts.apply()
    services.scheduler.wake()
    if closed := services.clients.close_unless(services.auth.is_current, "the credential was withdrawn"):
        _log.info("connections closed because their credential is no longer valid: %d", closed)
    return done


def log_findings(services: Services) -> list[Finding]:
    """Log what the settings name and what does not exist or cannot be used."""
    found = checks.findings(services.config.settings, services.models, services.tools.facts)
    for finding in found:
        _log.warning("%s%s", finding.message, f" {finding.fix}" if finding.fix else "")
    return found


def _on_disk(loaded: Config) -> Payload:
    try:
        found = loaded.unapplied()
    except BadConfig as problem:
        return {"unapplied": [], "needsRestart": [], "problem": problem.message}
    return {"unapplied": sorted([*found.applied, *found.pending]), "needsRestart": found.pending}
