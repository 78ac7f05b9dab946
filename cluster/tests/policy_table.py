"""Policies that nodes take and that they refuse: what an API server must do with the same is tried in tests.

The bounds of each setting come from the settings themselves, the rest is written here.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import yaml

from criproxy.config.schema import Setting, settings

ROOT = Path(__file__).parents[2]
Spec = dict[str, Any]

WINDOW = {"start": "22:00", "end": "06:00", "policy": "dynamic"}


class Bad(NamedTuple):
    """`place` is the field that an API server must name. `words` is the CEL message that must say why, or a part of it.

    "": the API server has words of its own.
    """

    spec: Spec
    place: str
    words: str = ""


def of_setting(setting: Setting, value: object) -> Spec:
    return {"settings": {setting.section: {setting.name: value}}}


def window(**keys: object) -> Spec:
    """A policy with this window; a key that is None is left out."""
    return {"schedule": {"windows": [{k: v for k, v in {**WINDOW, **keys}.items() if v is not None}]}}


def expression(**keys: object) -> Spec:
    return {"selector": {"matchExpressions": [{"key": "a", **keys}]}}


# --- of each setting -------------------------------------------------------------------------------------------------


def _settable() -> tuple[Setting, ...]:
    return tuple(setting for setting in settings() if not setting.of_the_node)


def _choices(setting: Setting) -> tuple[object, ...]:
    return tuple(choice for choice in get_args(get_args(setting.type)[0]) if isinstance(choice, str))


def _of_settings(*, good: bool) -> Iterator[tuple[str, Setting, object]]:
    """A name for each value that stands at a bound, or just outside."""
    for setting in _settable():
        low, high, choices = setting.bounds.ge, setting.bounds.le, _choices(setting)
        least = 1 if isinstance(low, int) else 0.001
        if low is not None and high is not None:
            outside = [low - least, high + least, *([0] if low > 0 else [])]
            values = [low, high] if good else [*outside, str(low), True, [low]]
        elif choices and setting.item_type is None:
            values = list(choices) if good else ["", "none", False, 1]
        elif isinstance(setting.default, bool):
            values = [False, True] if good else ["true", 1, {}]
        else:
            continue
        yield from ((f"{setting.key} = {value!r}", setting, value) for value in values)


# --- those that people read ------------------------------------------------------------------------------------------


def _example() -> Spec:
    """Each key at its default."""
    tables = tomllib.loads((ROOT / "config.example.toml").read_text())
    return {"settings": _without_the_node_s(tables)}


def _without_the_node_s(tables: Spec) -> Spec:
    own = {setting.key for setting in settings() if setting.of_the_node}
    left = {
        section: {key: value for key, value in table.items() if f"{section}.{key}" not in own}
        for section, table in tables.items()
    }
    return {section: table for section, table in left.items() if table}


def _pages() -> Iterator[tuple[str, Spec]]:
    """The examples of config files, and of policies."""
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "cluster" / "README.md"]):
        text = page.read_text()
        for number, found in enumerate(re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            yield f"{page.name}, toml {number}", {"settings": _without_the_node_s(tomllib.loads(found))}
        for number, found in enumerate(
            re.findall(r"^```yaml\n(kind|apiVersion)(.*?)^```", text, re.MULTILINE | re.DOTALL)
        ):
            policy = yaml.safe_load("".join(found))
            if policy.get("kind") == "ColocationPolicy":
                yield f"{page.name}, yaml {number}", policy["spec"]


GOOD: dict[str, Spec] = {
    **{name: of_setting(setting, value) for name, setting, value in _of_settings(good=True)},
    "config.example.toml": _example(),
    **dict(_pages()),
    "nothing": {},
    "empty tables": {"selector": {}, "schedule": {}, "settings": {"cpu": {}}},
    "a switch": {"priority": 1000, "enabled": False},
    "a selector": {
        "selector": {
            "matchLabels": {"pool": "night"},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["b"]},
                {"key": "a", "operator": "NotIn", "values": ["b", "c"]},
                {"key": "a", "operator": "Exists"},
                {"key": "a", "operator": "DoesNotExist", "values": []},
            ],
        }
    },
    "resources": {
        "settings": {
            "kubernetes": {
                "resources": [
                    {"name": "example.com/spare-cpu", "of": "cpu", "per_unit": 1000},
                    {"name": "example.com/Spare_memory.1", "of": "memory"},
                ]
            }
        }
    },
    "a whole schedule": {
        "schedule": {
            "timeZone": "America/Argentina/Buenos_Aires",
            "windows": [WINDOW],
            "outside": "static",
            "graceSeconds": 0,
            "onClose": "squeeze",
        }
    },
    "32 windows": {"schedule": {"windows": [WINDOW] * 32}},
    "a whole day": window(start="00:00", end="24:00"),
    "a minute": window(start="23:59", end="00:01"),
    "each form of days": window(days="mon,wed-thu,sat-sun,sun-mon,fri,tue,mon-sun"),
    "a static window": window(policy="static", cores=0.5, bytes=4 << 20),
    "a static window with the file's limits": window(policy="static"),
    **{f"zone {zone}": {"schedule": {"timeZone": zone}} for zone in ("UTC", "Etc/GMT+5", "Asia/Kolkata", "EST5EDT")},
    "a floor below the ceiling": {"settings": {"cpu": {"min_cores": 1, "max_cores": 1}}},
    "a schedule in the settings": {
        "settings": {"control": {"policy": "schedule"}, "schedule": {"time_zone": "Europe/Berlin", "windows": [WINDOW]}}
    },
}

_NO_KEY = "there is no such key: write one of"
_NODE_S = "only a node's own file may have it"
_TIME, _ZONE = "write a time of day", "write a name of the time zone database"
_ENDS = "the window ends when it begins"
_IN_WINDOW = "spec.schedule.windows[0]"
_RESOURCES = "spec.settings.kubernetes.resources[0]"


_SECTIONS = {setting.section for setting in _settable()}


def _resource(**keys: object) -> Spec:
    return {"settings": {"kubernetes": {"resources": [{"name": "example.com/a", "of": "cpu", **keys}]}}}


BAD: dict[str, Bad] = {
    **{
        name: Bad(of_setting(setting, value), f"spec.settings.{setting.key}")
        for name, setting, value in _of_settings(good=False)
    },
    **{
        f"{setting.key} of the node's own": Bad(
            of_setting(setting, msgspec.to_builtins(setting.default) or "x"),
            f"spec.settings.{setting.key if setting.section in _SECTIONS else setting.section}",
            _NODE_S,
        )
        for setting in settings()
        if setting.of_the_node
    },
    "unknown key of the policy": Bad({"setings": {"cpu": {}}}, "spec.setings", _NO_KEY),
    "unknown section": Bad({"settings": {"cpus": {"min_cores": 1}}}, "spec.settings.cpus", _NO_KEY),
    "key for a section": Bad({"settings": {"min_cores": 1}}, "spec.settings.min_cores", _NO_KEY),
    "unknown key": Bad({"settings": {"cpu": {"watermark": 0.5}}}, "spec.settings.cpu.watermark", _NO_KEY),
    "unknown key without a value": Bad({"settings": {"cpu": {"x": None}}}, "spec.settings.cpu.x", _NO_KEY),
    "unknown key of the schedule": Bad({"schedule": {"zone": "UTC"}}, "spec.schedule.zone", _NO_KEY),
    "unknown key of a window": Bad(window(day="mon"), "spec.schedule.windows[].day", _NO_KEY),
    "unknown key of a resource": Bad(_resource(unit=1), "spec.settings.kubernetes.resources[].unit", _NO_KEY),
    "unknown key of a selector": Bad({"selector": {"labels": {"a": "b"}}}, "spec.selector.labels", _NO_KEY),
    "section that is a list": Bad({"settings": {"cpu": [1]}}, "spec.settings.cpu"),
    "switch that is a word": Bad({"enabled": "no"}, "spec.enabled"),
    "priority that is a word": Bad({"priority": "high"}, "spec.priority"),
    "resource without a domain": Bad(_resource(name="spare"), f"{_RESOURCES}.name", "write a name with its domain"),
    "resource of disks": Bad(_resource(of="disk"), f"{_RESOURCES}.of"),
    "resource in millionths": Bad(_resource(per_unit=1_000_000), f"{_RESOURCES}.per_unit"),
    "resource of nothing": Bad({"settings": {"kubernetes": {"resources": [{"name": "a/b"}]}}}, f"{_RESOURCES}.of"),
    "nine resources": Bad(
        {"settings": {"kubernetes": {"resources": [{"name": "a/b", "of": "cpu"}] * 9}}},
        "spec.settings.kubernetes.resources",
    ),
    **{
        f"zone {zone!r}": Bad({"schedule": {"timeZone": zone, "windows": [WINDOW]}}, "spec.schedule.timeZone", _ZONE)
        for zone in ("Europe/Berln", "Local", "", "+02:00", "europe/berlin", "../UTC", "CEST")
    },
    "zone in the settings": Bad(
        {"settings": {"control": {"policy": "schedule"}, "schedule": {"time_zone": "Mars", "windows": [WINDOW]}}},
        "spec.settings.schedule.time_zone",
        _ZONE,
    ),
    **{
        f"start {time!r}": Bad(window(start=time), f"{_IN_WINDOW}.start", _TIME)
        for time in ("6:00", "25:00", "22.00", "22:60", "10pm", "")
    },
    "start that is a number": Bad(window(start=2200), f"{_IN_WINDOW}.start"),
    "start at the end of the day": Bad(window(start="24:00"), f"{_IN_WINDOW}.start", "a window starts on its day"),
    "end at the start of the day": Bad(window(end="00:00"), f"{_IN_WINDOW}.end", "midnight ends a day"),
    "end after the day": Bad(window(end="24:01"), f"{_IN_WINDOW}.end", _TIME),
    "window without time": Bad(window(end="22:00"), f"{_IN_WINDOW}.end", _ENDS),
    "window without an end": Bad(window(end=None), f"{_IN_WINDOW}.end"),
    "window without a policy": Bad(window(policy=None), f"{_IN_WINDOW}.policy"),
    "window that is off by YAML": Bad(window(policy=False), f"{_IN_WINDOW}.policy"),
    "window by evidence": Bad(window(policy="evidence"), f"{_IN_WINDOW}.policy"),
    "limits of a dynamic window": Bad(window(cores=2), f"{_IN_WINDOW}.policy", "only a window with policy: static"),
    "cores below the bound": Bad(window(policy="static", cores=0), f"{_IN_WINDOW}.cores"),
    "bytes above the bound": Bad(window(policy="static", bytes=1 << 45), f"{_IN_WINDOW}.bytes"),
    **{
        f"days {days!r}": Bad(window(days=days), f"{_IN_WINDOW}.days", "write days such as")
        for days in ("monday", "Mon", "mon-", "mon, tue", "mon;tue", "")
    },
    "33 windows": Bad({"schedule": {"windows": [WINDOW] * 33}}, "spec.schedule.windows"),
    "grace of two days": Bad({"schedule": {"graceSeconds": 172_800}}, "spec.schedule.graceSeconds"),
    "outside of all": Bad({"schedule": {"outside": "on"}}, "spec.schedule.outside"),
    "on close": Bad({"schedule": {"onClose": "release"}}, "spec.schedule.onClose"),
    "time of day in the settings": Bad(
        {"settings": {"schedule": {"windows": [{**WINDOW, "end": "7:00"}]}}},
        "spec.settings.schedule.windows[0].end",
        _TIME,
    ),
    "schedule twice": Bad(
        {"schedule": {"windows": [WINDOW]}, "settings": {"schedule": {"outside": "off"}}},
        "spec.settings.schedule",
        "spec.schedule says the same",
    ),
    "cores' floor above the ceiling": Bad(
        {"settings": {"cpu": {"min_cores": 2, "max_cores": 1.5}}}, "spec.settings.cpu.min_cores", "lower it"
    ),
    "bytes' floor above the ceiling": Bad(
        {"settings": {"memory": {"min_bytes": 2 << 30, "max_bytes": 1 << 30}}},
        "spec.settings.memory.min_bytes",
        "lower it",
    ),
    "unknown operator": Bad(expression(operator="Like"), "spec.selector.matchExpressions[0].operator"),
    "In nothing": Bad(expression(operator="In"), "spec.selector.matchExpressions[0].values", "In and NotIn have"),
    "existing values": Bad(
        expression(operator="Exists", values=["b"]), "spec.selector.matchExpressions[0].values", "In and NotIn have"
    ),
    "expression without a key": Bad(
        {"selector": {"matchExpressions": [{"operator": "Exists"}]}}, "spec.selector.matchExpressions[0].key"
    ),
}
