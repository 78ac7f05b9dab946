"""What is read and written is what the real kubectl reads."""

import json
import subprocess

import pytest

from criproxy_cluster.commands.convert import convert
from criproxy_cluster.vocabulary.manifests import meaning
from criproxy_cluster.webhook.conversion import ConversionSettings
from integration.programs import build
from tests.vocabulary.plain_words import MEANINGS, NO_JSON

TEXTS = [
    *MEANINGS,
    *NO_JSON,
    ".nan",
    "",
    " ",
    "a: b",
    "a #b",
    "# a",
    "- a",
    "@a",
    "%a",
    "`a`",
    "!a",
    "&a",
    "*a",
    "|",
    ">",
]
TEXTS += [
    "[a]",
    "{a}",
    "'a'",
    '"',
    "a\nb\n",
    "\n",
    "a\tb",
    "é",
    "\U0001f600",
    "\x85",
    "\u2028",
    "\ufeff",
    "---",
    "...",
    "?",
]


def escaped(text):
    return "".join(
        one if one.isascii() and one.isprintable() and one not in '"\\' else f"\\U{ord(one):08x}" for one in text
    )


QUOTES = {
    "double": lambda text: f'"{escaped(text)}"',
    "single": lambda text: f"'{text.replace(chr(39), chr(39) * 2)}'" if text.isprintable() else f'"{escaped(text)}"',
}


def read_by_kubectl(text):
    """What kubectl makes of the objects of a manifest, with an annotation of its own."""
    words = (build.find("kubectl"), "annotate", "--local", "--filename=-", "x.io/x=y", "--output=json")
    done = subprocess.run(words, input=text.encode(), capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-1000:]
    decoder, found, left = json.JSONDecoder(), [], done.stdout.decode().lstrip()
    while left:
        one, end = decoder.raw_decode(left)
        found.append(one)
        left = left[end:].lstrip()
    return found


@pytest.mark.parametrize("quoted", QUOTES.values(), ids=QUOTES)
def test_texts_come_back_as_they_were(quoted, tmp_path):
    assert len(TEXTS) >= 86
    pods = "---\n".join(pod(quoted(text)) for text in TEXTS)
    (tmp_path / "pods.yaml").write_text(pods)

    before, after = (
        read_by_kubectl(text) for text in (pods, convert(str(tmp_path / "pods.yaml"), ConversionSettings())[0])
    )

    for text, old, new in zip(TEXTS, before, after, strict=True):
        (container,) = new["spec"]["containers"]
        assert new["metadata"]["annotations"].pop("colocation.criproxy.io/resources")
        assert new["metadata"] == old["metadata"], text
        assert new["metadata"]["annotations"]["value"] == text
        assert container["env"][0]["value"] == text
        assert container["args"] == [text, text]
        assert container.pop("resources") != old["spec"]["containers"][0].pop("resources")
        assert container == old["spec"]["containers"][0]


def pod(text):
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {{colocation.criproxy.io/class: offline, value: {text}}}
  annotations:
    value: {text}
    ? {text}
    : key
spec:
  nodeSelector: {{value: {text}}}
  containers:
  - name: c
    image: i
    env: [{{name: A, value: {text}}}]
    args:
    - {text}
    - {text}
    resources: {{requests: {{cpu: "1"}}}}
"""


def test_json_comes_back_as_it_was(tmp_path):
    annotations = {f"{one}_": one for one in TEXTS}
    meta = {"name": "p", "labels": {"colocation.criproxy.io/class": "offline"}, "annotations": annotations}
    spec = {"containers": [{"name": "c", "image": "i", "args": TEXTS, "resources": {"requests": {"cpu": "1"}}}]}
    (tmp_path / "pod.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}))

    (found,) = read_by_kubectl(convert(str(tmp_path / "pod.json"), ConversionSettings())[0])

    assert found["spec"]["containers"][0]["args"] == TEXTS
    assert annotations.items() <= found["metadata"]["annotations"].items()


def test_plain_words_are_what_kubectl_takes_them_for():
    words = [word for word in MEANINGS if word != "<<"]
    objects = (f"apiVersion: x.io/v1\nkind: Odd\nmetadata: {{name: odd}}\nvalue: {word}\n" for word in words)

    found = read_by_kubectl("---\n".join(objects))

    for word, one in zip(words, found, strict=True):
        assert one["value"] == pytest.approx(MEANINGS[word]), word
        assert isinstance(one["value"], bool) == isinstance(MEANINGS[word], bool), word
        assert meaning(word) == MEANINGS[word], word
