"""The example examples/swe-task, with a repository of a server of git that is a sandbox, and an
image of PostgreSQL that is made of Debian's packages."""

import os
import subprocess
import sys
import uuid

import e2b
import pytest

import cayv1
import world

# An image of a root with PostgreSQL and the libraries that its programs name.
POSTGRES = r"""
set -e
apt-get update -q
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qy --no-install-recommends postgresql-15 python3-psycopg2
bin=/usr/lib/postgresql/15/bin
mkdir -p /image/data /image/tmp /image/bin /image/run/postgresql
libraries=$(ldd $bin/postgres $bin/initdb /usr/lib/postgresql/15/lib/dict_snowball.so | grep -o '/[^ :]*' | sort -u)
tar -C / -ch $libraries $bin/postgres $bin/initdb /usr/lib/postgresql/15/lib /usr/share/postgresql /etc/passwd /etc/group /usr/share/zoneinfo 2>/dev/null | tar -C /image -x
rm -rf /image/usr/lib/postgresql/15/lib/bitcode /image/usr/lib/postgresql/15/lib/llvmjit*
cp /bin/busybox /image/bin && ln -s busybox /image/bin/sh
chown postgres /image/data /image/run/postgresql && chmod 700 /image/data && chmod 1777 /image/tmp
tar -C /image -cf /postgres.tar . && rm -rf /image
apt-get remove -qy postgresql-15 postgresql-client-15 postgresql-common
"""
START = ("docker import --change 'USER postgres' --change 'ENV PATH=/usr/lib/postgresql/15/bin:/bin' "
         "--change 'CMD [\"sh\", \"-c\", \"initdb -A trust -D /data && echo host all all all trust >>/data/pg_hba.conf && exec postgres -D /data -h 0.0.0.0 -k /tmp\"]' "
         "/postgres.tar postgres:15 && exec sleep infinity")

REPOSITORY = {
    "docker-compose.yml": 'version: "3"\nservices:\n  db:\n    image: postgres:15\n    environment: {POSTGRES_PASSWORD: secret}\n    ports: ["5432:5432"]\n',
    "accounts.py": (
        "import psycopg2\n\n"
        "def connect():\n    return psycopg2.connect(host='127.0.0.1', user='postgres', password='secret', connect_timeout=5)\n\n"
        "def total(db):\n    with db.cursor() as c:\n        c.execute('select count(amount) from accounts')\n        return c.fetchone()[0]\n"),
    "test_accounts.py": (
        "import time, unittest\nimport psycopg2\nimport accounts\n\n"
        "class Total(unittest.TestCase):\n"
        "    def setUp(self):\n"
        "        for _ in range(480):\n            try:\n                self.db = accounts.connect()\n                break\n"
        "            except psycopg2.OperationalError:\n                time.sleep(0.25)\n"
        "        with self.db.cursor() as c:\n"
        "            c.execute('drop table if exists accounts; create table accounts (amount int); insert into accounts values (40), (2)')\n"
        "    def test_total(self):\n        self.assertEqual(accounts.total(self.db), 42)\n"),
}
PATCH = """--- a/accounts.py
+++ b/accounts.py
@@ -5,5 +5,5 @@
 
 def total(db):
     with db.cursor() as c:
-        c.execute('select count(amount) from accounts')
+        c.execute('select {}(amount) from accounts')
         return c.fetchone()[0]
"""


@pytest.fixture
def template():
    name = "t-" + uuid.uuid4().hex[:12]
    e2b.Template.build(
        e2b.Template().from_template("docker").set_user("root").run_cmd(POSTGRES).set_user("user")
        .set_start_cmd(START, "docker image inspect postgres:15"), name, cpu_count=2, memory_mb=2048)
    yield name
    cayv1.delete_template(name)


@pytest.fixture
def repository(create):
    """The URL of a repository that another sandbox serves."""
    box = create("base")
    for name, text in REPOSITORY.items():
        box.files.write(f"/home/user/app/{name}", text)
    box.commands.run("cd app && git init -q && git add . && git -c user.name=a -c user.email=a@example.com commit -qm one && "
                     "git clone -q --bare . ../served/app.git && git -C ../served/app.git update-server-info")
    box.commands.run("python3 -m http.server 8000 -d served", background=True, timeout=0)
    return f"https://8000-{box.sandbox_id}.{os.environ['CAY_DOMAIN']}/app.git"


def test_a_task_on_a_repository(template, repository, tmp_path):
    for name, function in ("wrong", "max"), ("right", "sum"):
        (tmp_path / f"{name}.patch").write_text(PATCH.format(function))
    run = subprocess.run(
        [sys.executable, str(world.ROOT / "examples" / "swe-task" / "task.py"), repository, str(tmp_path / "wrong.patch"), str(tmp_path / "right.patch")],
        env={**os.environ, "TEMPLATE": template}, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    assert [line.split()[:2] for line in run.stdout.splitlines()] == [["unpatched:", "False"], ["wrong.patch:", "False"], ["right.patch:", "True"]], run.stdout
