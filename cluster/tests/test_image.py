import io
import json
import os
import tarfile

from cluster.image import contents, oci


def make_tree(root, mode):
    (root / "usr/bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "usr/bin/run").write_text("#!/bin/sh\n")
    (root / "usr/bin/run").chmod(mode)
    (root / "usr/bin/link").symlink_to("run")
    (root / "usr/text").write_text("text")


def test_layer_is_the_same_whenever_and_with_whichever_umask_its_files_were_made(tmp_path):
    make_tree(tmp_path / "a", 0o755)
    make_tree(tmp_path / "b", 0o700)
    os.utime(tmp_path / "b/usr/text", (1, 1))
    (tmp_path / "b/usr/text").chmod(0o600)

    assert oci.layer(tmp_path / "a") == oci.layer(tmp_path / "b")


def test_layer_keeps_what_matters_of_its_files(tmp_path):
    make_tree(tmp_path / "a", 0o755)
    with tarfile.open(fileobj=io.BytesIO(oci.layer(tmp_path / "a"))) as archive:
        found = {one.name: (one.mode, one.linkname, one.uid, one.mtime) for one in archive}
    assert found == {
        "tmp": (0o1777, "", 0, 0),
        "usr": (0o755, "", 0, 0),
        "usr/bin": (0o755, "", 0, 0),
        "usr/bin/link": (0o777, "run", 0, 0),
        "usr/bin/run": (0o755, "", 0, 0),
        "usr/text": (0o644, "", 0, 0),
    }


def test_archive_names_its_blobs_by_their_digests(tmp_path):
    digest = oci.write_archive(tmp_path / "image.tar", {"amd64": [b"layer"]}, {"Cmd": ["run"]}, ["one:1", "two:1"])

    with tarfile.open(tmp_path / "image.tar") as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}
    index = json.loads(files.pop("index.json"))
    assert [one["digest"] for one in index["manifests"]] == [digest, digest]
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    assert {name: oci.digest(blob) for name, blob in files.items()} == {
        name: name.replace("blobs/sha256/", "sha256:") for name in files
    }
    manifest = json.loads(files[f"blobs/sha256/{digest.removeprefix('sha256:')}"])
    config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'].removeprefix('sha256:')}"])
    assert config["config"] == {"Cmd": ["run"]}
    assert config["rootfs"]["diff_ids"] == [oci.digest(b"layer")]


def test_image_of_two_architectures_is_an_index(tmp_path):
    images = {"amd64": [b"one", b"both"], "arm64": [b"other", b"both"]}
    digest = oci.write_archive(tmp_path / "image.tar", images, {}, ["one:1"])

    with tarfile.open(tmp_path / "image.tar") as archive:
        names = archive.getnames()
        files = {one.name: archive.extractfile(one).read() for one in archive}

    def read(digest):
        return json.loads(files[f"blobs/sha256/{digest.removeprefix('sha256:')}"])

    (named,) = json.loads(files["index.json"])["manifests"]
    assert named["digest"] == digest and named["mediaType"] == oci.INDEX
    assert named["annotations"] == {"io.containerd.image.name": "one:1"}
    found = {}
    for one in read(digest)["manifests"]:
        manifest = read(one["digest"])
        config = read(manifest["config"]["digest"])
        assert one["platform"] == {"architecture": config["architecture"], "os": config["os"]}
        found[config["architecture"]] = [files[f"blobs/sha256/{part['digest'][7:]}"] for part in manifest["layers"]]
    assert found == images
    assert len(names) == len(set(names))


def test_image_has_the_license_and_says_which(tmp_path):
    contents.add_license(tmp_path)
    shipped = tmp_path / "usr/share/doc/criproxy-cluster/LICENSE"
    assert "Apache License" in shipped.read_text()
    assert contents.SETTINGS["Labels"] == {"org.opencontainers.image.licenses": "Apache-2.0"}


def test_debian_packages_are_known_by_their_files():
    listed = "lock\nzlib1g_1%3a1.2.13.dfsg-1_amd64.deb\npartial\ntzdata_2026b-0+deb12u1_all.deb\n"
    assert contents.unpacked(listed) == [
        {"package": "tzdata", "version": "2026b-0+deb12u1", "architecture": "all"},
        {"package": "zlib1g", "version": "1:1.2.13.dfsg-1", "architecture": "amd64"},
    ]


def test_dockerfile_s_image_has_what_the_builder_s_has():
    checkout = contents.CLUSTER.parent
    text = (checkout / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert {words[1] for words in lines if words[0] == "FROM"} == {f"debian:{contents.RELEASE}-slim"}
    (code, base) = [words for words in lines if words[:2] == ["RUN", "apt-get"]]
    packages = "python3-pip python3-setuptools python3-wheel"
    assert code[code.index("--no-install-recommends") + 1 :] == [f"python{contents.PYTHON}-minimal", *packages.split()]
    wanted = {name for name in contents.PACKAGES if name != "base-files"}
    assert set(base[base.index("--no-install-recommends") + 1 : base.index("&&", 5)]) == wanted
    said = {words[0]: words[1:] for words in lines}
    assert said["USER"] == [contents.SETTINGS["User"]]
    assert said["ENV"] == contents.SETTINGS["Env"]
    assert json.loads(" ".join(said["ENTRYPOINT"])) == contents.SETTINGS["Entrypoint"]
    assert dict(one.split("=") for one in said["LABEL"]) == contents.SETTINGS["Labels"]

    copied = {one for words in lines if words[0] == "COPY" and words[1] != "--from=code" for one in words[1:-1]}
    taken = {line[1:] for line in (checkout / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    needed = {*(program.code for program in contents.PROGRAMS), *(program.lock for program in contents.PROGRAMS)}
    needed |= {checkout / "packaging/installer", contents.CLUSTER / "image", contents.CLUSTER / "LICENSE"}
    assert copied == taken
    for path in needed:
        assert path.exists() and any(path.is_relative_to(checkout / one) for one in copied)


def test_each_program_has_its_code_and_its_lock():
    for program in contents.PROGRAMS:
        assert (program.code / "cli.py").is_file() and program.lock.is_file()
    assert len({program.directory for program in contents.PROGRAMS}) == len(contents.PROGRAMS) == 2
