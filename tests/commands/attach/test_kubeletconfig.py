"""KubeletConfiguration files, read and edited."""

import json

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from criproxy.commands.attach.kubeletconfig import drop_in, with_endpoint
from criproxy.kubelet.attachment import ENDPOINT_KEY

NEW = "unix:///run/criproxy/criproxy.sock"
YAML = """\
# by kubeadm
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous: {enabled: false}  # keep
clusterDNS:
- 10.96.0.10
kind: KubeletConfiguration
"""
KEYS = st.text(max_size=20)
SCALARS = st.one_of(st.integers(), st.booleans(), KEYS, st.none())
TREES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(KEYS, inner)), max_leaves=8)
CONFIGS = st.dictionaries(KEYS.filter(lambda key: key != ENDPOINT_KEY), TREES)


@pytest.mark.parametrize("text", ["[", "a: b: c", "- a", "text", "a: 1\n---\nb: 2\n"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no"):
        with_endpoint(text, NEW)


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (
            f"{YAML}containerRuntimeEndpoint: unix:///a  # mine\n# end",
            f'{YAML}containerRuntimeEndpoint: "{NEW}"  # mine\n# end',
        ),
        (f"{YAML}containerRuntimeEndpoint: ''\n", f'{YAML}containerRuntimeEndpoint: "{NEW}"\n'),
        (f"{YAML}containerRuntimeEndpoint:\n", f'{YAML}containerRuntimeEndpoint: "{NEW}"\n'),
        (YAML, YAML.replace("apiVersion", f'containerRuntimeEndpoint: "{NEW}"\napiVersion', 1)),
        ('{"a": 1}\n', f'{{"containerRuntimeEndpoint": "{NEW}", "a": 1}}\n'),
        ("{}", f'{{"containerRuntimeEndpoint": "{NEW}"}}'),
        ("", f'containerRuntimeEndpoint: "{NEW}"\n'),
        ("# nothing", f'# nothing\ncontainerRuntimeEndpoint: "{NEW}"\n'),
        ("---\na: |\n  x\n", f'---\ncontainerRuntimeEndpoint: "{NEW}"\na: |\n  x\n'),
        ("a: 1\r\nb: 2\r\n", f'containerRuntimeEndpoint: "{NEW}"\na: 1\r\nb: 2\r\n'),
    ],
    ids=["set", "empty-text", "null", "absent", "json", "no-keys", "empty", "comment", "open-block", "crlf"],
)
def test_endpoint_is_set_with_every_other_byte_kept(text: str, edited: str) -> None:
    assert with_endpoint(text, NEW) == edited


@pytest.mark.parametrize(
    "text",
    ["containerRuntimeEndpoint: [1]\n", "containerRuntimeEndpoint: >-\n  a\nb: 1\n", "&a\n b: 1\n"],
    ids=["list", "folded", "anchor"],
)
def test_what_cannot_be_edited_safely_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"containerRuntimeEndpoint"):
        with_endpoint(text, NEW)


@pytest.mark.slow
@given(CONFIGS, st.booleans(), st.booleans(), st.sampled_from(["", "# a: comment\n", "---\n"]))
def test_any_configuration_is_edited_by_insertion_alone(
    config: dict[str, object], as_json: bool, flow: bool, head: str
) -> None:
    text = json.dumps(config) if as_json else yaml.safe_dump(config, default_flow_style=flow, allow_unicode=True)
    assume(not head or not as_json)
    text = head + text
    edited = with_endpoint(text, NEW)
    assert yaml.safe_load(edited) == {**yaml.safe_load(text), ENDPOINT_KEY: NEW}
    at = next((i for i, (a, b) in enumerate(zip(text, edited, strict=False)) if a != b), len(text))
    rest = len(edited) - len(text)
    assert any(edited[:i] + edited[i + rest :] == text for i in range(max(0, at - 60), at + 1)), "one piece was put in"


def test_drop_in_sets_the_endpoint_alone() -> None:
    loaded = yaml.safe_load(drop_in(NEW))
    assert loaded.pop(ENDPOINT_KEY) == NEW
    assert loaded == {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
