"""What a unit's files say of its command and environment."""

from pathlib import Path

import pytest

from criproxy.kubelet.units import started

UNIT = "k3s.service"
COMMAND = "[Unit]\nExecStart=/bin/none\n[Service]\nExecStart=/bin/k3s agent \\\n  $MORE ${SAID} '-c a b'\n"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("files", "words", "variables"),
    [
        ({}, [], {}),
        ({"usr/lib/systemd/system/k3s.service": COMMAND}, ["/bin/k3s", "agent", "-c a b"], {}),
        (
            {
                "usr/lib/systemd/system/k3s.service": "[Service]\nExecStart=/bin/old\n",
                "etc/systemd/system/k3s.service": COMMAND,
            },
            ["/bin/k3s", "agent", "-c a b"],
            {},
        ),
        (
            {
                "etc/systemd/system/k3s.service": COMMAND,
                "etc/systemd/system/k3s.service.d/2.conf": '[Service]\nEnvironment="MORE=-d /b" SAID=c\n',
                "run/systemd/system/k3s.service.d/1.conf": "[Service]\nEnvironment=MORE=no OTHER=1\n",
                "run/systemd/system/k3s.service.d/2.conf": "[Service]\nEnvironment=SAID=no\n",
            },
            ["/bin/k3s", "agent", "-d", "/b", "c", "-c a b"],
            {"MORE": "-d /b", "SAID": "c", "OTHER": "1"},
        ),
        (
            {
                "etc/systemd/system/k3s.service": f"{COMMAND}EnvironmentFile=-/etc/%n.env\nEnvironmentFile=/etc/%N/*\n",
                "etc/k3s.service.env": "# MORE=no\nMORE='-d /b'\nSAID=no\n",
                "etc/k3s/a": "SAID=no\n",
                "etc/k3s/b": "SAID=c\n",
            },
            ["/bin/k3s", "agent", "-d", "/b", "c", "-c a b"],
            {"MORE": "-d /b", "SAID": "c"},
        ),
        (
            {
                "etc/systemd/system/k3s.service": f"{COMMAND}Environment=MORE=no\nEnvironmentFile=/etc/no\n",
                "etc/no": "SAID=no\n",
                "etc/systemd/system/k3s.service.d/1.conf": (
                    "[Service]\nEnvironment=\nEnvironmentFile=\nExecStart=\nExecStart=/bin/new $MORE\n"
                ),
            },
            ["/bin/new"],
            {},
        ),
        ({"etc/systemd/system/k3s.service": "[Service]\nExecStart=/bin/k3s 'open\nEnvironment=A=1\n"}, [], {"A": "1"}),
    ],
    ids=["no-file", "packaged", "replaced", "drop-ins", "files-of-variables", "taken-back", "not-understood"],
)
def test_files_are_read_as_systemd_does(
    tmp_path: Path, files: dict[str, str], words: list[str], variables: dict[str, str]
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    assert started(tmp_path, UNIT) == (words, variables)
