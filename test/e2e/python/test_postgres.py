"""The first steps over PostgreSQL: a server that goes on there, and is killed."""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile

import e2b
import e2b_code_interpreter

import world


@contextlib.contextmanager
def postgres():
    """A PostgreSQL without records; its address."""
    programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    home = pathlib.Path(tempfile.mkdtemp(prefix="cay-pg-"))  # the path of a socket is short
    shutil.chown(home, "postgres")

    def run(name, *args):
        subprocess.run([str(programs / name), "-D", str(home / "data"), *args], user="postgres", cwd=home, check=True, stdout=subprocess.DEVNULL)

    try:
        run("initdb", "--no-sync", "--auth=trust", "--username=cay", "--encoding=UTF8", "--locale=C.UTF-8")
        run("pg_ctl", "start", "-w", "-l", str(home / "log"), "-o", f"-k {home} -c listen_addresses= -c fsync=off")
        try:
            yield f"postgres://cay@/postgres?host={home}"
        finally:
            run("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(home)


@contextlib.contextmanager
def over_postgres():
    """The running server, killed, its records moved and started over them; as before after."""
    server = world.running()
    usual = dict(server.env)
    with postgres() as address:
        server.kill9()
        try:
            server.env["CAY_DATABASE_URL"] = address
            server.cay("cluster", "import")
            server.start()
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.kill9()
            server.env = usual
            for path in server.data.glob("cay.db.imported*"):
                path.rename(path.with_name(path.name.replace(".imported", "")))
            server.start()


def test_sandboxes_outlive_a_crash_over_postgres():
    with over_postgres() as server:
        sandbox = e2b_code_interpreter.Sandbox.create(timeout=600, metadata={"who": "survivor"})
        made = [sandbox]
        try:
            sandbox.run_code("x = 41")
            sandbox.files.write("note.txt", "kept")
            assert sandbox.pause() is True
            sandbox.connect(timeout=600)
            sleeper = sandbox.commands.run("sleep 3600", background=True, timeout=0)
            fork = sandbox.fork()[0]
            made.append(fork)
            fork.files.write("note.txt", "the fork's")
            paused = e2b.Sandbox.create(timeout=600)
            made.append(paused)
            paused.pause()
            before = sandbox.get_info()

            server.kill9()
            assert not server.healthy()
            server.start()

            listed = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"who": "survivor"})).next_items()
            assert sandbox.sandbox_id in [s.sandbox_id for s in listed]
            assert {one.sandbox_id for one in made} <= {s.sandbox_id for s in e2b.Sandbox.list().next_items()}
            assert sandbox.get_info().end_at == before.end_at
            assert sandbox.run_code("x + 1").text == "42"
            assert (sandbox.files.read("note.txt"), fork.files.read("note.txt")) == ("kept", "the fork's")
            assert sleeper.pid in [p.pid for p in sandbox.commands.list()]
            assert paused.get_info().state == e2b.SandboxState.PAUSED
            assert paused.connect(timeout=600).commands.run("echo back").stdout == "back\n"
        finally:
            for one in made:
                one.kill()
        assert not sandbox.is_running()
