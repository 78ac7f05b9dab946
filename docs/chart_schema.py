"""packaging/chart/values.schema.json: what Helm refuses of the chart's values. `docs.generate` writes it.

The nodes' config has the sections, keys, types and bounds of the settings themselves, so that a mistake is refused by
`helm install` and not found by a node. What depends on several keys, a node finds.

Source: JSON Schema 2020-12; Helm, "Charts: Schema Files"; msgspec, JSON Schema.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cluster.image.oci import MACHINES
from criproxy.config.settings import Config

Schema = dict[str, Any]

_BOOL: Final[Schema] = {"type": "boolean"}
_TEXT: Final[Schema] = {"type": "string"}
_TABLE: Final[Schema] = {"type": "object"}
_LOOPBACK: Final = r"^(127(\.[0-9]{1,3}){3}|localhost|\[::1\]):[1-9][0-9]{0,4}$"
"""observe.address, from which the chart takes host and port of the probes."""
_PATH: Final[Schema] = {"type": "string", "pattern": "^/"}
_CONFIG: Final[Schema] = {"$ref": "#/$defs/Config"}
_SHARE: Final[Schema] = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+%$"}]}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _of(**keys: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": keys}


def _replicas(**more: Schema) -> Schema:
    return _of(
        replicas={"type": "integer", "minimum": 1},
        arguments=_list({"type": "string", "pattern": "^--"}),
        resources=_TABLE,
        nodeSelector=_TABLE,
        tolerations=_list(_TABLE),
        **more,
    )


_NAMES: Final[Schema] = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
_VALUES: Final = _of(
    image=_of(
        repository={"type": "string", "minLength": 1},
        tag=_TEXT,
        digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        pullPolicy={"enum": ["", "Always", "IfNotPresent", "Never"]},
        pullSecrets=_list(_of(name=_TEXT)),
        architectures={**_list({"enum": sorted(MACHINES)}), "minItems": 1, "uniqueItems": True},
    ),
    cluster=_of(
        enabled=_BOOL,
        certManager=_BOOL,
        markedOnly=_BOOL,
        koordinator=_BOOL,
        budget=_BOOL,
        scheduler=_BOOL,
        metrics=_BOOL,
        queue=_of(enabled=_BOOL, suspend=_BOOL),
        overflow=_of(enabled=_BOOL, remake=_BOOL),
        webhook=_replicas(),
        controller=_replicas(),
        ledger=_replicas(enabled=_BOOL),
    ),
    node=_of(
        enabled=_BOOL,
        config=_CONFIG,
        credentials=_PATH,
        maxUnavailable=_SHARE,
        priorityClassName=_TEXT,
        nodeSelector=_TABLE,
        tolerations=_list(_TABLE),
        resources=_TABLE,
    ),
    installer=_of(install=_NAMES, remove=_NAMES, config=_CONFIG),
    monitoring=_of(operator=_BOOL, nodeProxy=_of(enabled=_BOOL, image=_TEXT)),
)


def values_schema() -> str:
    """The file."""
    (_,), found = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    tables = {name: _strict(one) for name, one in sorted(found.items())}
    tables["Observe"]["properties"]["address"]["pattern"] = _LOOPBACK
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_VALUES}
    # Helm's and other charts' own: the values that all charts of a release have in common.
    made["properties"] = {**made["properties"], "global": _TABLE}
    return json.dumps({**made, "$defs": tables}, indent=1) + "\n"


def _strict(table: Mapping[str, Any]) -> Schema:
    """A table without what nobody reads here, which takes no key but its own."""
    kept = {key: value for key, value in table.items() if key in ("type", "required", "enum")}
    keys = {name: _bare(one) for name, one in table["properties"].items()}
    return {**kept, "additionalProperties": False, "properties": keys}


def _bare(key: Any) -> Any:
    """Without defaults, which are the product's, and patterns, which are Python's."""
    if isinstance(key, dict):
        return {name: _bare(one) for name, one in key.items() if name not in ("default", "pattern", "title")}
    return [_bare(one) for one in key] if isinstance(key, list) else key
