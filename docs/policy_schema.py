"""What an API server refuses of a ColocationPolicy, made from the nodes' settings. `docs.generate` writes it.

How it works
------------
A node refuses a policy for a key that does not exist or a value out of its bounds, but says so only after the API
server has taken the policy. So the CRD has the same sections, keys, types and bounds, made from the same settings:

- Types, bounds and choices become OpenAPI. Patterns, and what must hold between the keys of one table, become CEL
  rules, since their messages can say what to write instead.
- A time zone is looked up in the API server's own copy of the time zone database, as a CEL function takes its name.
- OpenAPI can't refuse an unknown key: the API server drops it, and the rest of the policy would hold, though its author
  meant another one. So every table keeps what it does not know, and a ValidatingAdmissionPolicy, which sees all keys,
  refuses it. It looks at a policy whose spec changes, so that an older one can still be labelled, or deleted.

Nodes go on to refuse what depends on a node's own file, on other policies, or on the node's time zone database.

Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions" (structural schemas, validation rules),
"Validating Admission Policy"; apiextensions-apiserver, pkg/apiserver/schema/cel (which names are escaped).
"""

import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml
from msgspec.inspect import (
    BoolType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from criproxy.config.schema import Setting, settings
from criproxy.config.settings import Config, ResourceTable, WindowTable
from criproxy.control.resources import RESOURCES
from criproxy.vocabulary.policy import SCHEDULE

Schema = dict[str, Any]

BEGIN: Final = "# Made from criproxy/config/settings.py by `.venv/bin/python -m docs.generate`.\n"
END: Final = "# The end of what is made.\n"
_INDENT: Final = " " * 16
_WIDTH: Final = 120
_SHORT: Final = 80
_KEEPS_UNKNOWN: Final = "x-kubernetes-preserve-unknown-fields"
_RULES: Final = "x-kubernetes-validations"


def _rule(rule: str, message: str, field: str = "") -> Schema:
    return {"rule": rule, "message": message, **({"fieldPath": f".{field}"} if field else {})}


_BETWEEN: Final[Mapping[type, tuple[Schema, ...]]] = {
    WindowTable: (
        _rule('self.start != "24:00"', "a window starts on its day: write a time from 00:00 to 23:59", "start"),
        _rule('self.end != "00:00"', 'midnight ends a day: write "24:00"', "end"),
        _rule(
            "self.start != self.end",
            "the window ends when it begins: write another time, or 00:00 and 24:00 for a whole day",
            "end",
        ),
        _rule(
            "self.policy == 'static' || !has(self.cores) && !has(self.bytes)",
            "only a window with policy: static has limits of its own: remove cores and bytes, or write static",
            "policy",
        ),
    ),
    ResourceTable: (),
}
"""What must hold between a table's keys: its class says the same to the node (`__post_init__`)."""

_TIME: Final = (5, 'write a time of day such as "22:00", or "24:00" for the end of the day')
_TEXTS: Final[Mapping[str, tuple[int, str]]] = {
    "days": (64, 'write days such as "mon-fri" or "sat,sun", each with three letters'),
    "start": _TIME,
    "end": _TIME,
    "name": (317, "write a name with its domain, such as example.com/spare-cpu"),
}
"""Of texts that have a pattern: the most characters, since CEL must know it, and what to write."""

_TIME_ZONE: Final[Schema] = {
    "type": "string",
    "maxLength": 64,
    _RULES: [
        {
            **_rule(
                "oldSelf.hasValue() && oldSelf.value() == self"
                " || self != 'Local' && self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')"
                " && timestamp('2000-01-01T00:00:00Z').getFullYear(self) > 0",
                'write a name of the time zone database, such as "Europe/Berlin"',
            ),
            "optionalOldSelf": True,
        }
    ],
}
"""For an unknown zone, the last part is an error. Where a value has not changed, an API server forgives what a rule
refuses, but not an error of its own: so the rule itself looks whether it has.
"""


# --- the schema ------------------------------------------------------------------------------------------------------


def crd(text: str) -> str:
    """The manifest with the given text, as the settings make it."""
    before, _, rest = text.partition(f"{_INDENT}{BEGIN}")
    _, _, after = rest.partition(f"{_INDENT}{END}")
    made = _yaml({"schedule": _spec_schedule(), "settings": _settings()})
    return f"{before}{textwrap.indent(f'{BEGIN}{made}{END}', _INDENT)}{after}"


def _settings() -> Schema:
    about = (
        "Sections and keys of the nodes' config file. What needs a restart can't be set from here, nor which pods are "
        "offline, which of them are stopped, and what holds while criproxy is down."
    )
    sections: dict[str, dict[str, Schema]] = {}
    for setting in _settable():
        sections.setdefault(setting.section, {})[setting.name] = _of_setting(setting)
    docs = {field.name: inspect.getdoc(field.type) for field in msgspec.structs.fields(Config)}
    floors = {row.name: [_floor_rule(row.unit)] for row in RESOURCES.values()}
    return _table({name: _table(keys, docs[name], *floors.get(name, ())) for name, keys in sections.items()}, about)


def _settable() -> Iterator[Setting]:
    return (setting for setting in settings() if not setting.of_the_node)


def _spec_schedule() -> Schema:
    about = "The nodes' own schedule, which goes on by itself."
    names = {setting: key for key, setting in SCHEDULE.items()}
    keys = {names[one.name]: _of_setting(one) for one in _settable() if one.section == "schedule"}
    keys["windows"]["minItems"] = 1
    return _table(keys, about)


def _floor_rule(unit: str) -> Schema:
    low, high = f"min_{unit}", f"max_{unit}"
    rule = f"!has(self.{low}) || !has(self.{high}) || self.{low} <= self.{high}"
    return _rule(rule, f"{low} is above {high}: lower it, or raise {high}", low)


def _table(keys: Mapping[str, Schema], about: str | None, *rules: Schema) -> Schema:
    made = {"type": "object", "description": about, _KEEPS_UNKNOWN: True, _RULES: list(rules), "properties": dict(keys)}
    return {field: value for field, value in made.items() if value}


def _of_setting(setting: Setting) -> Schema:
    is_zone = setting.key == "schedule.time_zone"
    made = _TIME_ZONE if is_zone else _of_type(type_info(setting.type), setting.name)
    return {"description": setting.description, **made}


def _of_type(kind: Type, name: str) -> Schema:
    """The schema of a setting, or of a key in its tables. Raises KeyError where `_TEXTS` or `_BETWEEN` lacks a row."""
    made: Schema
    match kind:
        case Metadata(type=inner):
            made = _of_type(inner, name)
        case BoolType():
            made = {"type": "boolean"}
        case IntType():
            made = {"type": "integer", "format": "int64", "minimum": kind.ge, "maximum": kind.le}
        case FloatType():
            made = {"type": "number", "minimum": kind.ge, "maximum": kind.le, _RULES: _least(kind)}
        case LiteralType():
            made = {"type": "string", "enum": list(kind.values)}
        case StrType(pattern=None):
            made = {"type": "string", "minLength": kind.min_length}
        case StrType():
            most, words = _TEXTS[name]
            rule = _rule(f"self.matches({json.dumps(kind.pattern)})", words)
            made = {"type": "string", "maxLength": most, _RULES: [rule]}
        case VarTupleType():
            made = {"type": "array", "maxItems": kind.max_length, "items": _of_type(kind.item_type, name)}
        case StructType():
            keys = {field.name: _of_type(field.type, field.name) for field in kind.fields}
            required = [field.name for field in kind.fields if field.required]
            made = {**_table(keys, None, *_BETWEEN[kind.cls]), "required": required or None}
        case UnionType(types=(inner, NoneType())):
            made = _of_type(inner, name)
        case _:
            raise TypeError(f"{name}: there is no schema for {kind}")
    return {field: value for field, value in made.items() if value is not None}


def _least(number: FloatType) -> list[Schema] | None:
    """An API server compares a whole number with the whole part of a bound, so that 0 would not be below 0.01.

    Source: kube-openapi, pkg/validation/validate, MinimumNativeType.
    """
    least = number.ge
    if least is None or float(least).is_integer():
        return None
    return [_rule(f"self >= {least}", f"write {least:g} or more")]


# --- unknown keys ----------------------------------------------------------------------------------------------------

_UNKNOWN_KEYS: Final = """\
# Made from crd.yaml by `.venv/bin/python -m docs.generate`.
# It refuses a key that a ColocationPolicy does not have: by the schema alone, an API server can only drop it.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [{group}]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [{plural}]
  matchConditions:
    - name: spec-changes
      expression: oldObject == null || object.?spec != oldObject.?spec
  variables:
    - name: keys
      expression: >-
{keys}
    - name: nodeKeys
      expression: >-
{node_keys}
    - name: tables
      expression: >-
{tables}
    - name: unknown
      expression: >-
        variables.keys.map(place,
        variables.tables[place].exists(table, table.exists(key, !(key in variables.keys[place]))),
        [place, string(variables.tables[place].map(table, table.filter(key, !(key in variables.keys[place])))
        .filter(unknown, unknown.size() > 0)[0][0])])
  validations:
    - expression: variables.unknown.size() == 0
      messageExpression: >-
        variables.unknown.map(one, one.join('.') + (one.join('.') in variables.nodeKeys
        ? ': only a node\\'s own file may have it: remove it'
        : ': there is no such key: write one of ' + variables.keys[one[0]].join(', '))).join('; ')
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
spec:
  policyName: {name}
  validationActions: [Deny]
"""


def unknown_keys(crd_text: str) -> str:
    """The manifest of the admission policy on the keys of the CRD with this text."""
    made = yaml.safe_load(crd_text)["spec"]
    spec = made["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    keys = dict(_tables(spec, "spec"))
    node_keys = [f"spec.settings.{one.key}" for one in settings() if one.of_the_node]
    sections = {one.section: None for one in settings()}
    node_keys += [f"spec.settings.{one}" for one in sections if one not in keys["spec.settings"]]
    group, plural = made["group"], made["names"]["plural"]
    return _UNKNOWN_KEYS.format(
        name=f"{plural}.{group}",
        group=group,
        plural=plural,
        keys=_lines("{", [f"{json.dumps(place)}: {json.dumps(names)}" for place, names in keys.items()], "}"),
        node_keys=_lines("[", [json.dumps(one) for one in node_keys], "]"),
        tables=_lines("{", [f"{json.dumps(place)}: {_found(place)}" for place in keys], "}"),
    )


def _tables(schema: Schema, place: str) -> Iterator[tuple[str, list[str]]]:
    """The keys of each table; the place of one in a list ends with []."""
    if keys := schema.get("properties"):
        yield place, list(keys)
        for name, below in keys.items():
            yield from _tables(below, f"{place}.{name}")
    elif "items" in schema:
        yield from _tables(schema["items"], f"{place}[]")


def _found(place: str) -> str:
    """The tables that a policy has at this place, in CEL. No list is in another one's tables."""
    above, in_list, _ = place.partition("[]")
    return f"object.?{above}.orValue([])" if in_list else f"dyn([object.?{above}.orValue({{}})])"


def _lines(first: str, items: list[str], last: str) -> str:
    """A list or map in CEL, which takes JSON, on the lines of a folded YAML text."""
    lines = textwrap.wrap(
        f"{first}{', '.join(items)}{last}", _WIDTH - 8, break_long_words=False, break_on_hyphens=False
    )
    return textwrap.indent("\n".join(lines), " " * 8)


class _Dumper(yaml.SafeDumper):
    """What is short stands on one line. There are no anchors: each place has its own copy."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        scalars = all(not isinstance(value, (dict, list)) for value in mapping.values())
        return super().represent_mapping(tag, mapping, flow_style=scalars and len(str(mapping)) <= _SHORT)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(
            tag, sequence, flow_style=not any(isinstance(one, dict) and one for one in sequence)
        )

    def ignore_aliases(self, data: object) -> bool:
        return True


def _yaml(value: object) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=_WIDTH - len(_INDENT))
