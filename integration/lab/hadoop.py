"""A real YARN: Hadoop's ResourceManager and NodeManager from Maven, on loopback ports of their own.

`python -m integration.lab.hadoop` fetches them where they are not there yet (integration/setup does it).
"""

import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from integration.lab import cache
from integration.lab.ports import free_ports
from integration.lab.process import LabError, Process, all_pids, argv_of, wait_until

VERSION = "3.4.2"
ARTIFACTS = (
    "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-nodemanager",
    "hadoop-yarn-server-timelineservice",
    "hadoop-mapreduce-client-app",
    "hadoop-mapreduce-client-jobclient",
    "hadoop-mapreduce-client-shuffle",
    "hadoop-mapreduce-examples",
)
"""The ResourceManager needs the third, and its own pom lacks it."""

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
FETCH_S = 900.0
START_S = 240.0
ANSWER_S = 20
OPENS = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
JAVA = ("java", *OPENS, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def jars() -> Path:
    """Their folder; fetched when it is not there. Raises LabError."""
    folder = cache.folder() / f"hadoop-{VERSION}"
    with cache.locked(folder):
        if not folder.exists():
            _fetch(folder)
    cache.use(folder)
    return folder


def _fetch(folder: Path) -> None:
    """All of it, or nothing."""
    if shutil.which("mvn") is None:
        raise LabError("Maven fetches Hadoop: apt-get install maven")
    needs = "".join(
        f"<dependency><groupId>org.apache.hadoop</groupId><artifactId>{name}</artifactId><version>{VERSION}</version>"
        "</dependency>"
        for name in ARTIFACTS
    )
    pom = (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lab</groupId>'
        f"<artifactId>yarn</artifactId><version>1</version><packaging>pom</packaging><dependencies>{needs}"
        "</dependencies></project>"
    )
    with tempfile.TemporaryDirectory(prefix="criproxy-hadoop-", dir=folder.parent) as made:
        (Path(made) / "pom.xml").write_text(pom)
        options = ("-B", "-q", f"-Dmaven.repo.local={made}/repository", f"-DoutputDirectory={made}/lib")
        command = ("mvn", *options, "-DincludeScope=runtime", COPY)
        done = subprocess.run(command, cwd=made, check=False, capture_output=True, text=True, timeout=FETCH_S)
        if done.returncode != 0:
            raise LabError(f"Maven fails: {(done.stdout + done.stderr)[-2000:]}")
        (Path(made) / "lib").rename(folder)


class Yarn:
    """A ResourceManager, and one NodeManager that has `mib` and `vcores` by its own settings once it has started.

    `folder` holds all their files, those of containers too.
    """

    def __init__(self, folder: Path, mib: int, vcores: int) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._jars = jars()
        ports = free_ports(9)
        self.address = f"http://127.0.0.1:{ports[4]}"
        self.node_id = f"localhost:{ports[5]}"
        self.conf = folder / "conf"
        self.conf.mkdir(exist_ok=True)
        for name in ("core-site", "yarn-site", "mapred-site"):
            (self.conf / f"{name}.xml").write_text(_xml(self._settings(ports, mib, vcores)))
        queue = {"root.queues": "default", "root.default.capacity": 100, "maximum-am-resource-percent": 1.0}
        queues = {f"yarn.scheduler.capacity.{name}": value for name, value in queue.items()}
        (self.conf / "capacity-scheduler.xml").write_text(_xml(queues))
        (self.conf / "log4j.properties").write_text(_LOG)
        name = "resourcemanager.ResourceManager"
        self.manager = Process(name, self._command(name), self.folder / f"{name}.log", java_home())

    def start_node_manager(self) -> Process:
        """As a process of this machine, which its caller stops: containers end with its SIGTERM. Raises LabError."""
        log = self.folder / "nodemanager.log"
        node_manager = Process("nodemanager", self.node_manager_command(), log, java_home())
        try:
            self.wait_known(log)
        except BaseException:
            node_manager.stop()
            raise
        return node_manager

    def node_manager_command(self) -> Sequence[str]:
        return self._command("nodemanager.NodeManager")

    def node_manager_mounts(self) -> Sequence[tuple[Path, bool]]:
        """What of this machine a NodeManager's pod has at the same paths, and whether it may only read it."""
        system = map(Path, ("/bin", "/usr", "/lib", "/lib64", "/etc/passwd", "/etc/group"))
        fixed = [*system, *Path("/etc").glob("java-*"), self._jars]
        return [*((one, True) for one in fixed if one.exists()), (self.folder, False)]

    def wait_known(self, log: Path) -> None:
        """Until the ResourceManager has the NodeManager, whose log this is. Raises LabError."""
        wait_until(lambda: self.node().get("state") == "RUNNING", START_S, "the NodeManager to be known", log, 0.5)

    def _settings(self, ports: Sequence[int], mib: int, vcores: int) -> Mapping[str, object]:
        manager = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        node = ("address", "localizer.address", "webapp.address")
        names = [*(f"resourcemanager.{one}" for one in manager), *(f"nodemanager.{one}" for one in node)]
        listens = {f"yarn.{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)}
        return {
            **listens,
            "fs.defaultFS": "file:///",
            "hadoop.tmp.dir": self.folder / "tmp",
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.connect.retry-interval.ms": 1000,
            "yarn.nodemanager.resource.memory-mb": mib,
            "yarn.nodemanager.resource.cpu-vcores": vcores,
            "yarn.nodemanager.local-dirs": self.folder / "local",
            "yarn.nodemanager.log-dirs": self.folder / "logs",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.aux-services": "mapreduce_shuffle",
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.application.classpath": f"{self._jars}/*",
            "mapreduce.shuffle.port": ports[8],
            "mapreduce.task.timeout": 0,  # tests stop tasks for as long as they need
            "mapreduce.framework.name": "yarn",
            "mapreduce.application.classpath": f"{self._jars}/*",
            "yarn.app.mapreduce.am.staging-dir": self.folder / "staging",
            "yarn.app.mapreduce.am.resource.mb": 512,
            "yarn.app.mapreduce.am.command-opts": f"-Xmx300m {OPENS[0]}={OPENS[1]}",
            "mapreduce.map.memory.mb": 512,
            "mapreduce.reduce.memory.mb": 512,
            "mapreduce.map.java.opts": "-Xmx200m",
            "mapreduce.reduce.java.opts": "-Xmx200m",
            "mapreduce.task.io.sort.mb": 20,
        }

    def _command(self, name: str) -> Sequence[str]:
        return (*JAVA, "-Xmx256m", "-cp", f"{self.conf}:{self._jars}/*", f"org.apache.hadoop.yarn.server.{name}")

    def stop(self) -> None:
        """The ResourceManager."""
        self.manager.stop()

    # --- what it says -------------------------------------------------------------------------------------------------

    def ask(self, path: str, body: object = None) -> Any:
        """Raises OSError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/ws/v1/cluster/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)

    def node(self) -> Mapping[str, Any]:
        """{}: it is not known."""
        try:
            return dict(self.ask(f"nodes/{self.node_id}")["node"])
        except OSError:
            return {}

    def size(self) -> tuple[int, int]:
        """MiB and virtual cores."""
        node = self.node()
        mib, vcores = node["usedMemoryMB"] + node["availMemoryMB"], node["usedVirtualCores"]
        return mib, vcores + node["availableVirtualCores"]

    def used_mib(self) -> int:
        return int(self.node()["usedMemoryMB"])

    def container_pids(self) -> set[int]:
        """The processes of its containers."""
        folder = str(self.folder)
        return {pid for pid in all_pids() if any("/container_" in word and folder in word for word in argv_of(pid))}

    def killed(self) -> int:
        """Containers that were killed as the node became smaller, so far."""
        marked = re.findall(r"MARK_CONTAINER_FOR_KILLABLE to (\S+)", self.manager.log.read_text())
        return len({*marked})

    # --- what runs on it ----------------------------------------------------------------------------------------------

    def run(self, name: str, *arguments: str) -> Process:
        """One of Hadoop's example programs, as a job, which has its files where a NodeManager's pod finds them."""
        main = "org.apache.hadoop.examples.ExampleDriver"
        command = (*JAVA, "-Xmx256m", "-cp", f"{self.conf}:{self._jars}/*", main, name, *arguments)
        return Process(name, ("env", "-C", self.folder, *command), self.folder / f"{name}.log", java_home())

    def submit(self, spark: Path, job: Path, *options: str) -> Process:
        """A Python job of the Spark in this folder, whose driver is a process here."""
        settings = {
            "spark.yarn.jars": f"local:{spark}/jars/*",
            "spark.executorEnv.PYTHONPATH": f"{spark}/python",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.yarn.am.memory": "384m",
            "spark.executor.memoryOverhead": "384m",
        }
        pairs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        memory = ("--driver-memory", "512m", "--executor-memory", "480m")
        master = ("--master", "yarn", "--deploy-mode", "client")
        env = {
            "SPARK_HOME": str(spark),
            "HADOOP_CONF_DIR": str(self.conf),
            "PYTHONPATH": f"{spark}/python",
            "PYSPARK_ARCHIVES_PATH": f"local:{spark}/python",
            "PYSPARK_PYTHON": "/usr/bin/python3",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **java_home(),
        }
        command: list[str | Path] = [spark / "bin" / "spark-submit", *master, *memory, *pairs, *options, job]
        return Process("spark-submit", command, self.folder / f"{job.stem}.log", env)


def java_home() -> Mapping[str, str]:
    """Containers are started with it."""
    java = shutil.which("java")
    if java is None:
        raise LabError("Hadoop runs on Java: apt-get install openjdk-17-jre-headless")
    return {"JAVA_HOME": str(Path(java).resolve().parents[1])}


def _xml(settings: Mapping[str, object]) -> str:
    rows = (
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in settings.items()
    )
    return f"<configuration>{''.join(rows)}</configuration>\n"


if __name__ == "__main__":
    jars()
