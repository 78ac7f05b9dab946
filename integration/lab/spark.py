"""Spark as it is used: PyPI's pyspark on Debian's JRE, and an application whose driver and executors are pods.

`python -m integration.lab.spark` makes what they run on where it is not there yet (integration/setup does it): a tree
of Debian's packages with Spark in /opt/spark. There is no registry: the lab's busybox stands for the image, and pods
mount the tree from the node over what it has.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.image.contents import RELEASE, find_mirror
from integration.lab import cache
from integration.lab.control_plane import ControlPlane
from integration.lab.images import BUSYBOX
from integration.lab.process import LabError

PODS = "/api/v1/namespaces/default/pods"
LOCK = Path(__file__).with_name("requirements-spark.lock")
PACKAGES = ("openjdk-17-jre-headless", "python3", "bash", "dash", "coreutils")
MAKE_S = 900.0
HOME = "/opt/spark"
JAVA_HOME = "/usr/lib/jvm/java-17-openjdk-amd64"
FOLDER = "/job"
"""Where a pod of an application finds the application's folder."""
_MOUNTED = ("bin", "usr", "lib", "lib64", "opt", "etc/java-17-openjdk", "etc/passwd")

DRIVER = r"""#!/bin/bash
exec /opt/spark/bin/spark-submit /job/job.py "$@" &>/job/driver.log
"""
EXECUTOR = r"""#!/bin/bash
exec &>/job/executor-$SPARK_EXECUTOR_ID.log
options=()
for name in ${!SPARK_JAVA_OPT_@}; do options+=("${!name}"); done
exec $JAVA_HOME/bin/java "${options[@]}" -Xms$SPARK_EXECUTOR_MEMORY -Xmx$SPARK_EXECUTOR_MEMORY -cp "/opt/spark/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url $SPARK_DRIVER_URL \
  --executor-id $SPARK_EXECUTOR_ID --cores $SPARK_EXECUTOR_CORES --app-id $SPARK_APPLICATION_ID \
  --hostname $SPARK_EXECUTOR_POD_IP --resourceProfileId $SPARK_RESOURCE_PROFILE_ID --podName $SPARK_EXECUTOR_POD_NAME
"""


def root() -> Path:
    """The tree that pods mount; made when it is not there. Raises LabError."""
    of = hashlib.sha256(LOCK.read_bytes() + " ".join(PACKAGES).encode()).hexdigest()[:12]
    folder = cache.folder() / f"spark-{of}"
    with cache.locked(folder):
        if not folder.exists():
            _make(folder)
    cache.use(folder)
    return folder


def _make(folder: Path) -> None:
    """All of it, or nothing."""
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap makes the tree that Spark runs on: install it")
    with tempfile.TemporaryDirectory(prefix="criproxy-spark-", dir=folder.parent) as made:
        work = Path(made)
        (tree := work / "root").mkdir(mode=0o755)
        archive, suite = f"deb {find_mirror()} {RELEASE} main", f"--include={','.join(PACKAGES)}"
        _run("mmdebstrap", "-q", "--variant=extract", suite, RELEASE, work / "debian.tar", archive)
        _run("tar", "-x", "--no-same-owner", "--exclude=./dev", "-f", work / "debian.tar", "-C", tree)
        (tree / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-q", "--no-deps")
        _run(*pip, "--no-cache-dir", "--no-binary=pyspark", "--require-hashes", "-d", work / "pypi", "-r", LOCK)
        (archive_file,) = (work / "pypi").glob("pyspark-*.tar.gz")
        (unpacked := work / "pyspark").mkdir()
        _run("tar", "-xzf", archive_file, "-C", unpacked, "--strip-components=1")
        home = tree / HOME.lstrip("/")
        for name in ("python", "conf"):
            (home / name).mkdir(parents=True)
        for part in ("jars", "bin"):
            (unpacked / "deps" / part).rename(home / part)
        (unpacked / "pyspark").rename(home / "python" / "pyspark")
        (py4j,) = (unpacked / "lib").glob("py4j-*.zip")
        shutil.unpack_archive(py4j, home / "python")
        tree.rename(folder)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=MAKE_S)
    if done.returncode != 0:
        raise LabError(f"{command[0]} fails, as {done.stderr.strip()[-500:]}: is there a network?")


JOB = r"""
import json, sys, time
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr

rows, parts, rounds = (int(one) for one in sys.argv[1:])
began = time.time()
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("INFO")
def hashed(column, times):
    text = f"cast({column} as string)"
    for _ in range(times):
        text = f"sha2({text}, 256)"
    return text

ready = time.time()
first = f"conv(substr({hashed('id', rounds // 4)}, 1, 8), 16, 10) as hash"
mapped = spark.range(0, rows, 1, parts).selectExpr("id", first)
keyed = mapped.repartition(parts, col("hash")).selectExpr("id", f"{hashed('hash', rounds)} as last")
sums = ("sum(id) as ids", "count(1) as rows", "bit_xor(xxhash64(last)) as hashes")
(found,) = keyed.agg(*(expr(one) for one in sums)).collect()
with open("/job/answer", "w") as file:
    json.dump({**found.asDict(), "seconds": time.time() - ready, "start_seconds": ready - began}, file)
spark.stop()
"""
"""Two stages with a shuffle between them, both of which are all CPU, the second four times as much.

Its arguments: rows, tasks of a stage, hashes of a row. Its answer can be told without it, but for `hashes`, which is
the same each time.
"""


GRACEFUL: Mapping[str, str] = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    "spark.storage.decommission.rddBlocks.enabled": "true",
    "spark.storage.decommission.replicationReattemptInterval": "2s",
    "spark.stage.maxConsecutiveAttempts": "100",
    "spark.executor.decommission.signal": "TERM",
    "spark.kubernetes.decommission.script": "/bin/true",
}
"""Whoever ends an executor's pod, kubelet or criproxy, begins with SIGTERM: then it moves its blocks to others."""


OFFLINE_EXECUTORS: Mapping[str, str] = {"spark.kubernetes.executor.label.colocation.criproxy.io/class": "offline"}


def requesting(cores: str) -> dict[str, str]:
    """Each executor requests so much CPU, and has one CPU at most, which its JVM is told."""
    return {
        "spark.kubernetes.executor.request.cores": cores,
        "spark.kubernetes.executor.limit.cores": "1",
        "spark.executor.defaultJavaOptions": "-XX:ActiveProcessorCount=1",
    }


def growing(least: int, most: int) -> dict[str, str]:
    """There are as many executors as there is work and room for."""
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(least),
        "spark.dynamicAllocation.maxExecutors": str(most),
        "spark.kubernetes.allocation.executor.timeout": "600s",  # so long one may wait for room
    }


@dataclass(frozen=True)
class Work:
    rows: int
    parts: int
    rounds: int

    def is_answered_by(self, answer: Mapping[str, int]) -> bool:
        return (answer["rows"], answer["ids"]) == (self.rows, self.rows * (self.rows - 1) // 2)


@dataclass(frozen=True)
class Application:
    """One run of `work`, whose driver is the pod `NAME-driver`; its files are in `folder`.

    `settings` are Spark's, above those that any application has here; `spec` is of each of its pods, above theirs.
    """

    plane: ControlPlane
    name: str
    folder: Path
    work: Work
    settings: Mapping[str, str] = field(default_factory=dict)
    driver_labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def driver(self) -> str:
        return f"{self.name}-driver"

    def submit(self) -> None:
        """Make the driver. Raises LabError or ApiError."""
        self.put_files()
        work = (str(self.work.rows), str(self.work.parts), str(self.work.rounds))
        spec = self.pod([f"{FOLDER}/driver.sh", *work], "driver")
        spec |= {"serviceAccountName": "spark", "automountServiceAccountToken": True, "restartPolicy": "Never"}
        spec["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
        labels = {"spark-role": "driver", **self.driver_labels}
        pod = {"metadata": {"name": self.driver, "labels": labels}, "spec": spec}
        self.plane.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **pod})

    def put_files(self) -> None:
        """What its pods find in `FOLDER`."""
        for name in ("conf", "events"):
            (self.folder / name).mkdir(parents=True)
        settings = {**self._settings(), **self.settings}
        executor = self.pod([f"{FOLDER}/executor.sh"], "spark-kubernetes-executor")
        files = {
            "conf/spark-defaults.conf": "".join(f"{key} {value}\n" for key, value in settings.items()),
            "job.py": JOB,
            "driver.sh": DRIVER,
            "executor.sh": EXECUTOR,
            "executor.json": json.dumps({"spec": executor}),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def executors(self) -> list[Any]:
        """Their pods, those that end too."""
        query = f"spark-role%3Dexecutor,spark-app-name%3D{self.name}"
        return list(self.plane.call("GET", f"{PODS}?labelSelector={query}")["items"])

    def answer(self) -> dict[str, Any] | None:
        """What the driver found; None: it has not ended."""
        file = self.folder / "answer"
        return dict(json.loads(file.read_text())) if file.exists() else None

    def log(self) -> str:
        """The driver's."""
        return (self.folder / "driver.log").read_text()

    def complaints(self) -> str:
        """The end of what the driver's log has, but for where in the code, and what went well."""
        lines = [line for line in self.log().splitlines() if line.strip() and " INFO " not in line]
        return "\n".join([line[:300] for line in lines if not line.startswith("\t")][-40:])

    def executor_log(self, number: str) -> str:
        return (self.folder / f"executor-{number}.log").read_text()

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Spark's events so far of this kind, without its prefix SparkListener."""
        lines = [line for file in self._event_files() for line in file.read_text().splitlines(keepends=True)]
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one for one in found if not kind or one["Event"] == f"SparkListener{kind}"]

    def _event_files(self) -> list[Path]:
        return sorted((self.folder / "events").rglob("events_*"))

    def pod(self, command: Sequence[str], container: str) -> dict[str, Any]:
        """The spec of a pod that has what the application's own have."""
        tree = root()
        mounts = {"job": (self.folder, FOLDER, False)}
        mounts |= {name.replace("/", "-"): (tree / name, f"/{name}", True) for name in _MOUNTED}
        environment = {"JAVA_HOME": JAVA_HOME, "SPARK_HOME": HOME, "SPARK_CONF_DIR": f"{FOLDER}/conf"}
        environment |= {"PYTHONPATH": f"{HOME}/python", "PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": "python3"}
        made = {
            "name": container,
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": [*command],
            "env": [{"name": key, "value": value} for key, value in environment.items()],
            "volumeMounts": [
                {"name": name, "mountPath": at, "readOnly": fixed} for name, (_, at, fixed) in mounts.items()
            ],
        }
        volumes = [{"name": name, "hostPath": {"path": str(path)}} for name, (path, _, _) in mounts.items()]
        common = {"hostNetwork": True, "enableServiceLinks": False, "automountServiceAccountToken": False}
        return {**common, "containers": [made], "volumes": volumes, **self.spec}

    def _settings(self) -> dict[str, str]:
        return {
            "spark.app.name": self.name,
            "spark.master": f"k8s://{self.plane.url}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "600m",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{FOLDER}/events",
            "spark.eventLog.compress": "false",
            "spark.eventLog.buffer.kb": "1",
            "spark.kubernetes.driver.pod.name": self.driver,
            "spark.kubernetes.container.image": BUSYBOX,
            "spark.kubernetes.container.image.pullPolicy": "Never",
            "spark.kubernetes.executor.podTemplateFile": f"{FOLDER}/executor.json",
            "spark.kubernetes.executor.podNamePrefix": self.name,
            "spark.blockManager.port": "0",  # none that its pod would name: there are several on the node's network
            # One address does not mean one disk here.
            "spark.shuffle.readHostLocalDisk": "false",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
        }


if __name__ == "__main__":
    root()
