"""`convert` keeps comments where they stood."""

import textwrap

import pytest
import yaml

from criproxy_cluster.commands.convert import convert
from criproxy_cluster.webhook.conversion import ConversionSettings


def converted(text, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(text)
    return convert(str(file), ConversionSettings())[0]


def test_comments_stay_with_what_they_are_of(tmp_path):
    made = converted(
        textwrap.dedent("""\
        # licence
        kind: Pod  # a pod
        metadata:
          # who it is
          name: p
          labels: {colocation.criproxy.io/class: offline}  # offline
        spec:
          containers:
          # the one that works
          - name: c  # its name
            args: ["# not one", 'a #b', x#y]
            command:
            - |
              # a line of a script
              run
            resources:
              requests:
                cpu: "1"  # one core
                # all it needs
                memory: 1Gi
        # the end
        """),
        tmp_path,
    )
    shown = [line for line in made.splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in shown] == [
        " licence", " a pod", " who it is", " offline", " the one that works", " its name",
        ' not one", \'a #b\', x#y]', " a line of a script", " one core", " all it needs", " the end",
    ]  # fmt: skip
    above = made.splitlines()[made.splitlines().index("  # the one that works") + 1]
    assert above.strip() == "- name: c  # its name"
    assert made.splitlines()[made.splitlines().index("      # all it needs") + 1].strip() == "requests:"
    found = yaml.safe_load(made)
    assert found["spec"]["containers"][0]["args"] == ["# not one", "a #b", "x#y"]
    assert found["spec"]["containers"][0]["command"] == ["# a line of a script\nrun\n"]
    assert "kubernetes.io/batch-cpu" in found["spec"]["containers"][0]["resources"]["requests"]


def test_documents_keep_their_own(tmp_path):
    text = "# one\nkind: ConfigMap\ndata: {a: b}\n---\n# none\n---\n# two\nkind: ConfigMap\ndata:\n  a: |\n    x\n"
    made = converted(text, tmp_path)
    assert [one["kind"] for one in yaml.safe_load_all(made)] == ["ConfigMap", "ConfigMap"]
    first, second = made.split("---\n")
    assert first.splitlines()[0] == "# one"
    assert second.splitlines()[:2] == ["# none", "# two"]


@pytest.mark.parametrize(
    "text",
    [
        "kind: ConfigMap\ndata:\n  a: 'x\n\n    y'  # behind two lines\n",
        "kind: ConfigMap\ndata: {a: 1,  # within\n  b: 2}\n",
        "kind: ConfigMap\ndata: &a {x: 1}  # anchor\nmore: *a  # alias\n",
        '{"kind": "ConfigMap"}\n',
        "kind: ConfigMap\r\ndata: {a: b}  # windows\r\n",
    ],
    ids=["two lines", "flow", "alias", "json", "crlf"],
)
def test_whatever_comments_do_the_object_is_the_same(text, tmp_path):
    made = converted(text, tmp_path)
    assert yaml.safe_load(made) == yaml.safe_load(text)
    assert text.count("#") == made.count("#")
