"""Which model a server of chat completions serves: looked at before any work."""

from __future__ import annotations

from retcon.core.errors import EngineError, InfrastructureFault, nearest
from retcon.models.remote import Refused, RemoteModel, Unreadable

LISTED = 8
"""Names of models that a message has room for."""


async def served_by(remote: RemoteModel) -> tuple[str, str]:
    """The name of the model, found where it was not given, and who owns it. Raises EngineError.

    Where the URL lists no models, that with /v1 behind it is tried. A model that is not listed is asked for a word:
    some servers list none, and Azure's deployments and OpenRouter's variants are in no list."""
    cards, why = await _cards(remote)
    if cards is None and not remote.url.endswith("/v1"):
        base, remote.url = remote.url, f"{remote.url}/v1"
        cards, _ = await _cards(remote)
        if cards is None:
            remote.url = base
    if cards is None and not remote.model:
        raise EngineError(f"{why}: it does not say what it serves; {_base(remote)}, and name the model") from why
    listed = cards or {}
    names = ", ".join(list(listed)[:LISTED]) or "none"
    if len(listed) > LISTED:
        names += f" and {len(listed) - LISTED} more"
    wanted = remote.model
    if not wanted:
        if len(listed) == 1:
            return next(iter(listed.items()))
        what = "several models: name one by engine.model" if listed else "no model"
        raise EngineError(f"the server at {remote.url} serves {what}; there are: {names}")
    if wanted in listed:
        return wanted, listed[wanted]
    try:
        await remote.message([{"role": "user", "content": "Say yes."}], max_tokens=16)
    except Refused as refused:
        if refused.said.status in (401, 403):
            raise
        if cards is None:
            raise EngineError(f"{refused}: {_base(remote)}") from refused
        raise EngineError(
            f"the server at {remote.url} serves no model '{wanted}'{nearest(wanted, listed)}; there are: {names} "
            f"({refused})"
        ) from refused
    except InfrastructureFault as fault:
        raise EngineError(f"{fault}: {_base(remote)}" if cards is None else str(fault)) from fault
    owners = set(listed.values())
    return wanted, owners.pop() if len(owners) == 1 else ""


def _base(remote: RemoteModel) -> str:
    return f"is {remote.url} the base of its API? That often ends in /v1"


async def _cards(remote: RemoteModel) -> tuple[dict[str, str] | None, EngineError | InfrastructureFault | None]:
    """Of each model that is listed its name and who owns it; None, and why, for what is no list. Raises EngineError for
    a server that does not answer, and for a key that it does not take."""
    try:
        listed = await remote.get("/models")
    except Refused as refused:
        if refused.said.status in (401, 403):
            raise
        return None, refused
    except Unreadable as fault:
        return None, fault
    except InfrastructureFault as fault:
        raise EngineError(str(fault)) from fault
    try:
        cards = listed["data"] if isinstance(listed, dict) else listed  # Together's is a list
        return {str(card["id"]): str(card.get("owned_by") or "") for card in cards or ()}, None
    except (LookupError, TypeError, AttributeError):
        return None, remote.no_answer("no list of models")
