"""A cluster of ClickHouse on one machine: two shards with two replicas each, and ZooKeeper; all of it Debian's.

    python cluster.py

writes, kills a replica of each shard half-way, starts them again, reads back and compares. Needs `apt-get install
zookeeper`, which the other tests do not.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from engines import CONFIG, USERS, Engine  # noqa: E402
from waiting import free_port, wait_until  # noqa: E402

from trainvitals.fleet import schema  # noqa: E402
from trainvitals.fleet.checking import ClusterCheck, check_engine  # noqa: E402

NAME = "fleet"
SHARDS, REPLICAS = 2, 2
AWAY_SECONDS = 20.0
ZOOKEEPER = """tickTime=2000
dataDir={place}/zookeeper
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""


@contextlib.contextmanager
def run_zookeeper(place: Path) -> Iterator[int]:
    """Its port."""
    port = free_port()
    place.mkdir(parents=True)
    (place / "zoo.cfg").write_text(ZOOKEEPER.format(place=place, port=port))
    jars = ":".join(map(str, sorted(Path("/usr/share/java").glob("*.jar"))))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = ["java", "-Xmx256m", "-cp", f"/etc/zookeeper/conf:{jars}", main, str(place / "zoo.cfg")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        assert process.poll() is None, "apt-get install zookeeper"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    try:
        wait_until(listens, "ZooKeeper")
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def run_cluster(place: Path) -> Iterator[list[list[Engine]]]:
    """The servers, by shard."""
    with run_zookeeper(place / "coordination") as zookeeper, contextlib.ExitStack() as stack:
        ports = [[(free_port(), free_port(), free_port()) for _ in range(REPLICAS)] for _ in range(SHARDS)]
        shards = "".join(
            "<shard><internal_replication>true</internal_replication>"
            + "".join(f"<replica><host>127.0.0.1</host><port>{native}</port></replica>" for _, native, _ in replicas)
            + "</shard>"
            for replicas in ports
        )
        engines: list[list[Engine]] = []
        for shard, replicas in enumerate(ports):
            engines.append([])
            for replica, (http, native, between) in enumerate(replicas):
                own = place / f"{shard}-{replica}"
                own.mkdir()
                (own / "users.xml").write_text(USERS)
                more = (
                    f"<tcp_port>{native}</tcp_port><interserver_http_port>{between}</interserver_http_port>"
                    f"<interserver_http_host>127.0.0.1</interserver_http_host>"
                    f"<remote_servers><{NAME}>{shards}</{NAME}></remote_servers>"
                    f"<zookeeper><node><host>127.0.0.1</host><port>{zookeeper}</port></node></zookeeper>"
                    f"<macros><shard>{shard}</shard><replica>{replica}</replica></macros>"
                    f"<distributed_ddl><path>/clickhouse/task_queue/ddl</path></distributed_ddl></yandex>"
                )
                text = CONFIG.format(place=own, port=http).replace("</yandex>", more)
                (own / "config.xml").write_text(text)
                engine = Engine(["clickhouse-server", f"--config-file={own / 'config.xml'}"], http)
                stack.callback(engine.kill)
                engines[-1].append(engine)
        yield engines


def check_cluster(place: Path) -> ClusterCheck:
    """What `trainvitals gateway check` finds while a replica of each shard is killed, and comes back."""
    with run_cluster(place) as engines:
        opened = engines[0][0].open(NAME)
        schema.prepare(opened, cluster=NAME)
        victims = (engines[0][1], engines[1][0])

        def disturb() -> None:
            for engine in victims:
                engine.kill()
                threading.Timer(AWAY_SECONDS, engine.start).start()

        return check_engine(opened, cluster=NAME, disturb=disturb)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        checked = check_cluster(Path(found))
    print(checked)
    sys.exit(1 if checked.wrong else 0)
