# Everything a stranger needs is `make demo` and `make test`; both install what
# they need first. scripts/ holds the work, one file a verb.

.PHONY: demo test test-quick test-fast compat unit e2e build setup bench bench-go chaos chaos-volumes stress-volumes locks many-files soak egress fuzz soak-agent density fmt clean soak-interp soak-usage soak-creates soak-memory soak-storms other-builds hunt test-desktop test-bucket test-cache test-cluster test-cluster-faults cluster cluster-down try-cluster test-fence bench-cluster bench-scale test-pgbouncer test-cluster-e2e test-chart test-mcp test-gateway test-docker test-docker-upgrade test-inside examples release release-test console test-console soak-starts soak-edges

demo: ## the quickstart on this machine, from nothing
	@scripts/demo

test: ## every test: unit, engine conformance, end to end with the real SDKs
	@scripts/test all

test-quick: ## Go tests without root, in seconds once compiled; says what it skipped
	@scripts/test quick

test-fast: ## the engine, the node, the server and the SDKs' first steps, in minutes
	@scripts/test fast

compat: ## the end-to-end tests with released SDKs of several ages; writes docs/use/compatibility.md
	@scripts/setup test-host
	@scripts/build
	python3 test/compat/run.py

unit: ## Go tests with the race detector
	@scripts/test unit

e2e: ## the official SDKs against a real server
	@scripts/test e2e

build: ## bin/cay with the engine and the agent inside
	@scripts/build

console: ## the page of the console, from npm; the next make build embeds it
	@scripts/build-console

test-console: ## the console in a real browser, on a server over a machine in memory, then on a real one with real sandboxes; screenshots in build/console
	@scripts/setup test-tools
	@scripts/build-console test
	CAY_CONSOLE_RUN=all CAY_CONSOLE_MAXFAIL=99 CAY_CONSOLE_SHOTS=$(CURDIR)/build/console/shots go test -timeout 45m -count=1 -v ./test/console
	CAY_CONSOLE_SHOTS=$(CURDIR)/build/console/shots scripts/long console/run.py

setup: ## Debian packages, SDKs and Python environments
	@scripts/setup all

bench: ## the speed bars, each beside its raw counterpart
	@scripts/bench

bench-go: ## Go benchmarks of the hot packages; BASE=REVISION compares with that one
	@scripts/bench-go

chaos: ## kill the server CHAOS_KILLS (200) times, and its engines, while clients work; nothing lost, nothing left
	@scripts/long life/chaos.py

test-cluster: ## nodes of a cluster fail CLUSTER_CUTS (10) times while clients work: what they saw of each sandbox is linearizable, nothing is lost or acts twice
	@CLUSTER_CUTS=$${CLUSTER_CUTS:-10} go test -race -count=1 -timeout 120m -v -run "TestLostNode|TestLostSnapshot|TestFence|TestNodesAreCut|TestHistories" ./internal/server

test-cluster-faults: ## what a cluster stands on fails CLUSTER_CUTS (10) times: the machine of PostgreSQL dies under load, a server stands still past its lease, CLUSTER_CREATES (1000) creates are sent three times each over connections that break, the bucket is away for CLUSTER_AWAY (20) seconds, its collector is killed
	@CLUSTER_CUTS=$${CLUSTER_CUTS:-10} go test -race -count=1 -timeout 60m -v -run "TestFailover|TestProcessors" ./internal/server
	@CLUSTER_CREATES=$${CLUSTER_CREATES:-1000} go test -count=1 -timeout 60m -v -run "TestRepeatedCreates" ./internal/server
	@CLUSTER_CUTS=$${CLUSTER_CUTS:-10} go test -race -count=1 -timeout 60m -v -run "TestTwoServers/Fence/AStoppedProcess" ./internal/store
	@CLUSTER_AWAY=$${CLUSTER_AWAY:-20} go test -count=1 -timeout 60m -v -run "TestBucketIsAway" ./internal/server
	@CLUSTER_CUTS=$${CLUSTER_CUTS:-10} go test -count=1 -timeout 60m -v -run "TestCollectorIsKilled" ./internal/machine/replica

test-cluster-e2e: ## the end-to-end tests of the Python and JavaScript SDKs, but those of one machine, through a node of such a cluster that does not lead
	@scripts/setup test-host
	@scripts/setup sdks
	@scripts/build
	build/sdk/python/bin/python test/e2e/run.py cluster

cluster: ## PostgreSQL, a server of S3 and three nodes in namespaces on this machine; prints how to point an SDK at it, until Ctrl-C
	@scripts/cluster up

cluster-down: ## ends it from elsewhere, and removes what a killed one left
	@scripts/cluster down

try-cluster: ## the quickstart through each node of such a cluster, then the loss of a node with sandboxes that run and are paused
	@scripts/cluster try

test-fence: ## a node of such a cluster is cut off while its sandboxes send: what asked for it goes on elsewhere, and by its packets never on two nodes
	@scripts/cluster fence

.PHONY: chaos-cluster drain-cluster upgrade-cluster
chaos-cluster: ## the nodes of such a cluster fail while clients work, as FAULTS says ("kill=200 lose=5 …"): each client's answers are linearizable, nothing is lost or acts twice
	@scripts/cluster chaos

drain-cluster: ## a node of such a cluster with DRAIN_SANDBOXES (50), half of them busy, is drained: no call fails, none is lost
	@scripts/cluster drain

upgrade-cluster: ## the nodes of such a cluster that runs BEFORE, a program of cay of before, are replaced one by one under load
	@BEFORE=$(BEFORE) scripts/cluster upgrade

bench-cluster: ## creates, requests and resumes of such a cluster beside one machine, by turns, and their bars; BENCH_N (40) creates
	@scripts/cluster bench

bench-scale: ## the records of 1,000 nodes with 200,000 sandboxes, that run nothing, on a real PostgreSQL: SCALE_NODES, SCALE_ROWS, SCALE_SECONDS (60), SCALE_CREATES (200 a second)
	@scripts/bench-scale

test-pgbouncer: ## the records' suite behind Debian's pgbouncer, which gives a connection to each transaction
	@CAY_TEST_POSTGRES=must CAY_TEST_PGBOUNCER=1 go test -count=1 -timeout 30m -run '^TestPgBouncer$$' ./internal/store

test-chart: ## the Helm chart, rendered by Helm's engine and held to the types of Kubernetes' API
	go -C test/chart test -count=1 ./...

test-bucket: ## the bucket over versitygw, a real server of S3, which it builds
	go build -C test/bucket -o $(CURDIR)/build/versitygw github.com/versity/versitygw/cmd/versitygw
	CAY_TEST_VERSITYGW=$(CURDIR)/build/versitygw go test -count=1 -run 'TestVersity$$' -v ./internal/blob

chaos-volumes: ## the same CHAOS_KILLS (200) times while four sandboxes write to one volume; no synced write lost, no mount left
	@scripts/long life/volumes.py

stress-volumes: ## three sandboxes do random things to one volume for STRESS_SECONDS (30); all of them and the host see the same after each 5 s
	@scripts/long life/shared.py

locks: ## two sandboxes lock files of one volume in every way that programs do, LOCKS_OPERATIONS (100) times, and lose nothing
	@scripts/long life/locks.py

many-files: ## MANY_FILES (200000) files in one volume: each call ends, and the server's memory does not grow with them
	@scripts/long life/manyfiles.py

soak: ## pause and resume SOAK_CYCLES (1000) times; nothing differs
	@scripts/long life/soak.py

hunt: ## the unit tests of PACKAGES (all) HUNT_RUNS (20) times beside a load, and once stopped at random moments; none fails
	python3 test/life/hunt.py $(PACKAGES)

soak-usage: ## USAGE_SECONDS (600) of sandboxes whose use is counted, the server killed every 30 s: within 1 % of the clock
	@scripts/long life/usage.py

soak-creates: ## SOAK_CREATES (5000) lives of create, run_code, command, kill, two at a time; none fails
	@scripts/long life/creates.py

soak-starts: ## SOAK_STARTS (1000) commands at once in one sandbox, short and of 10 s, terminals and watches, over one client of HTTP/2: each answers, or is refused before it starts
	@scripts/long life/starts.py

soak-edges: ## SOAK_EDGES (2000) requests of each verb of the SDK across the moment when a sandbox is ended or paused by its time
	@scripts/long life/edges.py

soak-memory: ## restores by demand, writes, forks, saves and kills, CAY_SOAK_MEMORY (1000) rounds; every byte compared
	CAY_SOAK_MEMORY=$${CAY_SOAK_MEMORY:-1000} go test -count=1 -v -timeout 25h -run 'TestSoakMemory$$' ./internal/machine/engine/runsc

soak-storms: ## saves of a guest that is busy with connections, sockets, processes, files, memory, timers, terminals, restored with another address: CAY_SOAK_STORMS (100) times each
	CAY_SOAK_STORMS=$${CAY_SOAK_STORMS:-100} go test -count=1 -v -timeout 25h -run 'TestSoakStorms$$' ./internal/machine/engine/runsc

other-builds: ## instances and snapshots of other builds of the engine go on under this one, and the other way round; BASE="COMMIT …" builds theirs
	@scripts/other-builds

test-desktop: ## E2B's Desktop SDKs against the template desktop, which it builds: minutes, and 5 GB of disk
	@scripts/long desktop/run.py

test-inside: ## the rows of docs/use/inside.md: programs that are installed inside, from a Debian mirror
	CAY_E2E_INSIDE=1 CAY_E2E_RUN=test_inside scripts/test e2e

test-mcp: ## /mcp and cay mcp with the official SDKs, inspector and conformance suite, Claude Code and Codex
	@scripts/long mcp/run.py

test-gateway: ## the template mcp-gateway, which it builds, with E2B's SDKs: 15 servers of npm and PyPI run in it; minutes, 5 GB of disk
	@scripts/long gateway/run.py

test-cache: ## sandboxes, checkpoints and templates that are in a bucket alone, on a server that evicts whatever it can; minutes
	@rm -rf build/test-cache && mkdir -p build/test-cache && CAY_BUCKET=$(CURDIR)/build/test-cache/bucket CAY_CACHE=0MiB CAY_E2E_RUN=test_cache scripts/test e2e && rm -rf build/test-cache

test-docker: ## the templates docker and devcontainer, which it builds: run, build, compose, ports, limits, after pause, resume, fork, rollback, restarts, hostile guests, the egress suite from inside; minutes, 8 GB of disk
	@scripts/long docker/run.py

test-docker-upgrade: ## sandboxes with containers go on, also paused ones, when BEFORE, a program of cay with an engine of before, is replaced
	@scripts/long docker/upgrade.py

examples: ## every example with a model (EXAMPLES="FILE …" names some) against a stand-in, or with EXAMPLES_MODEL=real the models of your keys; a table; builds templates: minutes, 10 GB of disk
	@scripts/long models/run.py

egress: ## what a guest cannot reach, attempt by attempt; with CAY_EGRESS_GUEST=docker the guest is root of a sandbox that may run Docker
	@bash -o pipefail -c "go test -count=1 -v -run 'TestEgress$$' ./test/egress | grep -vE '^ *(=== |--- PASS)'"

density: ## COUNT (500) sandboxes alive at once, each answering
	@scripts/long life/density.py

fuzz: ## each fuzz target for FUZZTIME (1m)
	@scripts/fuzz

soak-agent: ## CAY_SOAK_COMMANDS (1000) processes, 100 at a time: the agent keeps nothing
	CAY_SOAK_COMMANDS=$${CAY_SOAK_COMMANDS:-1000} go test -count=1 -v ./test/soak

soak-interp: ## the code interpreter for CAY_SOAK_INTERP (1m; 1h is the long run), every language: it keeps nothing
	CAY_SOAK_INTERP=$${CAY_SOAK_INTERP:-1m} go test -count=1 -v -timeout 25h -run Interpreter ./test/soak

.PHONY: failures texts
texts: ## a table of nasty texts by every way out of the interpreter, and 20 MB without the end of a line, in each language
	CAY_TEST_LINE=10000000 CAY_TEST_PYTHON=$(CURDIR)/build/pyenv/bin/python go test -count=1 -v -timeout 30m -run 'TestTexts$$|TestBytesThatAreNoText$$|TestLongLines$$' ./internal/inside/interp

failures: ## twenty and more ways to fail in each language of the interpreter: none ends as success; LANGUAGES=python|r names some
	CAY_TEST_TABLES=whole CAY_TEST_PYTHON=$(CURDIR)/build/pyenv/bin/python go test -count=1 -v -timeout 30m -run 'TestFailures$$/^($(or $(LANGUAGES),.*))$$' ./internal/inside/interp

release: ## binaries, bills of materials, Debian packages and checksums, in build/release
	@scripts/release

release-test: ## the Debian package in clean roots: install, upgrade, remove and purge under sandboxes
	@scripts/release-test

fmt:
	gofmt -w $$(git ls-files '*.go')

clean:
	rm -rf bin build
