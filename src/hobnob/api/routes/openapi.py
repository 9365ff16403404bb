"""`GET /openapi.json`: the OpenAPI document, generated from the routes and RPC methods."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from hobnob import __version__, parameters
from hobnob.api.routing import ROUTES, HttpCall, Route, route
from hobnob.api.rpc import METHODS, Method
from hobnob.config.fields import Scope

_IN_PATH = re.compile(r"\{(\w+)(?::\w+)?\}")
_METHODS_PATH = "/rpc/{method}"
Json = dict[str, Any]


@route("GET", "/openapi.json", scope=None)
async def openapi_json(call: HttpCall) -> Response:
    """The OpenAPI document of this gateway."""
    return Response(_document_bytes(), media_type="application/json")


@cache
def _document_bytes() -> bytes:
    return orjson.dumps(document())


def document(routes: Iterable[Route] = ROUTES) -> Json:
    """All routes, and each RPC method under its own path."""
    paths: dict[str, Json] = {}
    shapes: Json = {"Error": _ERROR}
    for each in routes:
        if each.path != _METHODS_PATH:
            paths.setdefault(shown_path(each), {})[each.verb.lower()] = _of_route(each, shapes)
    for method in sorted(METHODS.values(), key=lambda method: method.name):
        if "operator" not in method.roles:  # nodes have a WebSocket
            continue
        paths[f"/rpc/{method.name}"] = {"post": _of_method(method, shapes)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hobnob",
            "version": __version__,
            "summary": "A gateway where AI agents live in sessions and talk to each other.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {
            "schemas": shapes,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def shown_path(route: Route) -> str:
    """The path with the public names of its parameters."""
    return _IN_PATH.sub(lambda found: "{" + _public_name(route, found[1]) + "}", route.path)


def in_path(route: Route) -> list[str]:
    """The public names of the path parameters."""
    return [_public_name(route, name) for name in _IN_PATH.findall(route.path)]


def _public_name(route: Route, name: str) -> str:
    field = route.parameters.model_fields.get(name)
    return (field.alias if field else None) or name


def _of_route(route: Route, shapes: Json) -> Json:
    schema = _schema(route.parameters, shapes)
    properties: Json = schema.get("properties", {})
    named = in_path(route)
    found: Json = {
        "operationId": route.function.__name__,
        **_said(route.function),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": properties.get(name, {"type": "string"})}
            for name in named
        ],
    }
    needed = schema.get("required", [])
    rest = {name: value for name, value in properties.items() if name not in named}
    if route.verb == "GET":
        found["parameters"] += [
            {"name": name, "in": "query", "required": name in needed, "schema": value}
            for name, value in rest.items()
        ]
    else:
        body = schema | {"properties": rest, "required": [name for name in needed if name not in named]}
        found["requestBody"] = _body(body)
    return found | _answers() | _access(route.scope)


def _of_method(method: Method, shapes: Json) -> Json:
    params = _schema(method.parameters, shapes)
    needed = ["params"] if params.get("required") else []
    body = {"type": "object", "properties": {"params": params}, "required": needed}
    return {
        "operationId": method.name,
        **_said(method.function),
        "tags": ["rpc"],
        "requestBody": _body(body),
        **_answers(),
        **_access(method.scope),
    }


def _said(function: Any) -> Json:
    text = inspect.cleandoc(function.__doc__ or "")
    return {"summary": text.partition("\n")[0], "description": text} if text else {}


def _body(schema: Json) -> Json:
    return {"required": bool(schema["required"]), "content": {"application/json": {"schema": schema}}}


def _answers() -> Json:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "responses": {
            "200": {"description": "It was done."},
            "default": {"description": "It was refused, or failed.", "content": error},
        }
    }


def _access(scope: Scope | None) -> Json:
    return {"security": [{"bearer": []}], "x-scope": scope} if scope else {"security": []}


def _schema(model: type[BaseModel], shapes: Json) -> Json:
    """The JSON schema of a model. Its definitions are moved to components/schemas."""
    text = orjson.dumps(parameters.schema(model)).replace(b'"#/$defs/', b'"#/components/schemas/')
    schema: Json = orjson.loads(text)
    shapes |= schema.pop("$defs", {})
    return schema


_ERROR: Json = {
    "type": "object",
    "properties": {
        "ok": {"const": False},
        "error": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "code": {"type": "string"},
                "message": {"type": "string"},
                "fix": {"type": "string"},
            },
            "required": ["code", "message"],
        },
    },
    "required": ["ok", "error"],
}
