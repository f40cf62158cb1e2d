"""An operator's view of the server: metrics, its log, the ids of requests."""

import json
import os
import pathlib
import re
import subprocess
import urllib.error
import urllib.request

import e2b
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

import world

SCRIPT = """
import { Sandbox } from 'e2b'
const said = []
const logger = { info: (...x) => said.push(x.join(' ')), error: (...x) => said.push(x.join(' ')) }
await Sandbox.getInfo('inosuchsandbox0000000', { logger }).catch(() => {})
console.log(JSON.stringify(said))
"""


@pytest.fixture(scope="module")
def server():
    """The server with everything told that it can tell."""
    metrics = f"127.0.0.1:{world.Server().port + 360}"
    with world.started_anew(CAY_METRICS_LISTEN=metrics, CAY_LOG_FORMAT="json", CAY_LOG_LEVEL="debug") as server:
        server.begins = server.log.stat().st_size
        yield server


def lines(server):
    """The lines that the server logged since it told everything; a line that is no JSON fails."""
    with open(server.log) as log:
        log.seek(server.begins)
        return [json.loads(line) for line in log if line.endswith("\n")]


def page(server, accept, parse):
    ask = urllib.request.Request(f"http://{server.env['CAY_METRICS_LISTEN']}/metrics", headers={"Accept": accept})
    text = urllib.request.urlopen(ask, timeout=60).read().decode()
    return {family.name: family for family in parse(text)}


def value(families, name, **labels):
    """The value of a sample; 0 when there is none."""
    for family in families.values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return 0


def test_an_id_from_the_edge_to_the_node(server, eventually):
    sandbox = e2b.Sandbox.create(timeout=60, headers={"X-Request-ID": "job-17"})
    sandbox.kill(headers={"X-Request-ID": "job-18"})
    told = lambda request: [line["msg"] for line in lines(server) if line.get("request") == request]
    eventually(lambda: "answered" in told("job-17") and "answered" in told("job-18"))
    assert {"sandbox made", "sandbox taken from the pool"} & set(told("job-17")), told("job-17")  # by the node
    assert "sandbox ended" in told("job-18"), told("job-18")  # by control


def test_the_javascript_sdk_logs_the_trace(server):
    modules = world.ROOT / "build" / "sdk" / "js"
    script = modules / "tests" / f"trace-{os.getpid()}.mjs"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    try:
        done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=60, check=True,
                              env={**os.environ, "E2B_USER_AGENT_SOURCE": "ci"})
    finally:
        script.unlink()
    found = re.search(r"trace_id=([0-9a-f]{32})", done.stdout)
    assert found, done.stdout
    assert any(line.get("request") == found[1] and line.get("status") == 404 for line in lines(server))


def test_prometheus_reads_the_page(server):
    before = page(server, "text/plain", classic)
    sandbox = e2b.Sandbox.create(timeout=60)
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    sandbox.pause()
    sandbox.connect().kill()
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(api_key="e2b_" + "0" * 40)
    for accept, parse in (("text/plain", classic), ("application/openmetrics-text; version=1.0.0", openmetrics)):
        after = page(server, accept, parse)
        for operation in ("create", "exec", "pause", "resume", "kill"):
            name = {"operation": operation, "result": "ok"}
            more = value(after, "cay_operation_seconds_count", **name) - value(before, "cay_operation_seconds_count", **name)
            assert more >= 1, (operation, more)
        assert value(after, "cay_auth_failures_total", face="rest") >= 1
        assert value(after, "cay_proxy_requests_total", kind="agent", **{"class": "2xx"}) >= 1
        assert value(after, "cay_host_memory_bytes") > 1 << 30
        assert value(after, "cay_scrape_failures_total") == 0
        told = [label for family in after.values() for sample in family.samples for label in sample.labels.values()]
        assert sandbox.sandbox_id not in told


def test_the_page_is_the_operators_alone(server):
    host, port = server.env["CAY_METRICS_LISTEN"].split(":")
    with pytest.raises(urllib.error.HTTPError) as no:
        urllib.request.urlopen(server.url + "/metrics", timeout=60)
    assert no.value.code == 404
    sandbox = e2b.Sandbox.create(timeout=60)
    try:
        gateway = ".".join(server.env["CAY_NETWORK"].split(".")[:2]) + ".0.1"
        for address in (host, gateway, "169.254.0.1"):
            got = sandbox.commands.run(f"curl -s -m 2 http://{address}:{port}/metrics | grep -c cay_; true", timeout=30)
            assert got.stdout == "0\n", (address, got)
    finally:
        sandbox.kill()


def test_the_log_has_no_secret(server):
    key = os.environ["E2B_API_KEY"]
    sandbox = e2b.Sandbox.create(timeout=60, envs={"TOKEN": "sup3rs3cretvalue"})
    assert sandbox.commands.run("echo $TOKEN").stdout == "sup3rs3cretvalue\n"
    sandbox.kill()
    text = pathlib.Path(server.log).read_text()
    assert key not in text and "sup3rs3cretvalue" not in text
    for line in lines(server):
        assert line["time"] and line["level"] in ("DEBUG", "INFO", "WARN", "ERROR") and line["msg"], line
