"""What the manifests have an API server refuse is what nodes refuse. On a real one: cluster/integration."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.tests.policy_table import BAD, GOOD, ROOT
from criproxy.config import Override, load
from criproxy_cluster.controller.policies import PolicyError, parsed
from docs.policy_schema import crd, unknown_keys

BASE = ROOT / "cluster" / "manifests" / "base"
_TEXT = (BASE / "crd.yaml").read_text()
SPEC = yaml.safe_load(_TEXT)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

# With it, nothing that a policy alone says is a conflict: its floors are the lowest, and limits and windows are there.
FILE = """
[cpu]
min_cores = 0.01
static_cores = 1
[memory]
min_bytes = 4_194_304
static_bytes = 4_194_304
[schedule]
windows = [{ start = "22:00", end = "06:00", policy = "dynamic" }]
"""


@pytest.fixture
def refused_by_node(tmp_path):
    (tmp_path / "config.toml").write_text(FILE)

    def refused(spec) -> list[str]:
        """What controller and node together refuse of it, or do not heed."""
        try:
            policy = parsed("p", 1, spec)
        except PolicyError as error:
            return [str(error)]
        errors = load(tmp_path / "config.toml", [Override("p", policy.settings)]).errors
        return [*policy.ignored, *map(str, errors)]

    return refused


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def broken(schema: dict[str, Any], value: Any, place: str) -> Iterator[str]:
    """The places at which an API server refuses the value by the schema, CEL rules aside, or for an unknown key."""
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield place
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text, items = isinstance(value, str), isinstance(value, list)
    if (
        ("enum" in schema and value not in schema["enum"])
        or (number and not schema.get("minimum", value) <= value <= schema.get("maximum", value))
        or (text and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
        or (text and not re.search(schema.get("pattern", ""), value))
        or (items and not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
        or (isinstance(value, dict) and len(value) > schema.get("maxProperties", len(value)))
        or any(value == one and type(value) is type(one) for one in schema.get("not", {}).get("enum", ()))
    ):
        yield place
    if items and "items" in schema:
        for index, one in enumerate(value):
            yield from broken(schema["items"], one, f"{place}[{index}]")
    if isinstance(value, dict) and "properties" in schema:
        yield from (f"{place}.{key}" for key in schema.get("required", ()) if key not in value)
        for key, one in value.items():
            known = schema["properties"].get(key)
            yield from (f"{place}.{key}",) if known is None else broken(known, one, f"{place}.{key}")


def messages(schema) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for below in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else ())):
        yield from messages(below)


@pytest.mark.parametrize("name", GOOD)
def test_good_policy_is_taken_by_node_and_schema(name, refused_by_node):
    assert refused_by_node(GOOD[name]) == []
    assert list(broken(SPEC, GOOD[name], "spec")) == []


@pytest.mark.parametrize("name", BAD)
def test_bad_policy_is_refused_by_node_and_schema(name, refused_by_node):
    spec, place, words = BAD[name]
    assert refused_by_node(spec)
    places = [re.sub(r"\[\d+\](?=\.\w+$)", "[]", one) if "[]" in place else one for one in broken(SPEC, spec, "spec")]
    assert place in places or any(words and words in message for message in messages(SPEC))


def test_manifests_are_what_the_settings_make():
    assert crd(_TEXT) == _TEXT, "run: python -m docs.generate"
    assert unknown_keys(_TEXT) == (BASE / "unknown-keys.yaml").read_text(), "run: python -m docs.generate"


def test_schema_that_lost_a_key_is_made_anew():
    assert crd(_TEXT.replace("reserve_cores", "spare_cores")) == _TEXT
