package services

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/inside/agent/reap"
)

// TestMain has orphans come to this process, as they come to PID 1, and is the
// program of services that need one of Go.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == WrapFlag {
		fmt.Fprintln(os.Stderr, Become(os.Args[2], os.Args[4:]))
		os.Exit(203)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// world is a manager over units of its own.
type world struct {
	*Manager
	t    *testing.T
	root string
}

func newWorld(t *testing.T, units map[string]string) *world {
	t.Helper()
	root := t.TempDir()
	r := reap.New(true)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{New(Config{Reaper: r, Self: self, Root: root, Log: slog.New(slog.DiscardHandler)}), t, root}
	for name, text := range units {
		w.write(filepath.Join("/usr/lib/systemd/system", name), text)
	}
	t.Cleanup(func() {
		w.Rest()
		r.Close()
	})
	return w
}

func (w *world) write(path, text string) {
	w.t.Helper()
	path = w.lib.at(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) want(name, active, sub string) {
	w.t.Helper()
	if i := w.info(name); i.Active != active || i.Sub != sub {
		w.t.Errorf("%s is %s (%s), want %s (%s); %s\n%s", name, i.Active, i.Sub, active, sub, i.Error, w.log(name))
	}
}

// eventually waits for what a goroutine of the manager brings about.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("it does not come about: " + what)
		}
	}
}

func (w *world) log(name string) string {
	lines, err := w.journal.read(fullName(name))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range lines {
		out = append(out, e.text)
	}
	return strings.Join(out, "\n")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestServiceOfEachType(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, map[string]string{
		"simple.service": "[Service]\nExecStart=/bin/sh -c 'echo hello; exec sleep 1000'\n",
		"once.service":   "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo one >>" + dir + "/once'\nExecStart=/bin/sh -c 'echo two >>" + dir + "/once'\n",
		"remain.service": "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/sh -c 'echo stopped >>" + dir + "/remain'\n",
		"fork.service":   "[Service]\nType=forking\nPIDFile=" + "/fork.pid\nExecStart=/bin/sh -c 'sleep 1000 & echo $! >$DIR/fork.pid'\nEnvironment=DIR=ROOT\n",
		"guess.service":  "[Service]\nType=forking\nExecStart=/bin/sh -c 'setsid sleep 1000 &'\n",
	})
	w.write("/usr/lib/systemd/system/fork.service.d/root.conf", "[Service]\nEnvironment=DIR="+w.root+"/run\nPIDFile=fork.pid\n")
	must(t, os.MkdirAll(w.root+"/run", 0o755))
	must(t, w.Start("simple", "once", "remain", "fork", "guess"))
	for _, name := range []string{"simple", "fork", "guess"} {
		w.want(name, active, "running")
		if pid := w.info(name).MainPID; pid == 0 || comm(pid) != "sleep" && name != "simple" {
			t.Errorf("%s: main process %d is %q", name, pid, comm(pid))
		}
	}
	w.want("once", inactive, "dead")
	w.want("remain", active, "exited")
	if text, _ := os.ReadFile(dir + "/once"); string(text) != "one\ntwo\n" {
		t.Errorf("the programs of one ran: %q", text)
	}
	w.eventually("output in the journal", func() bool {
		return strings.Contains(w.log("simple"), "sh["+strconv.Itoa(w.info("simple").MainPID)+"]: hello")
	})
	var pids []int
	for _, name := range []string{"simple", "fork", "guess"} {
		pids = append(pids, w.info(name).MainPID)
	}
	must(t, w.Stop("simple", "remain", "fork", "guess"))
	for _, name := range []string{"simple", "remain", "fork", "guess"} {
		w.want(name, inactive, "dead")
	}
	for _, pid := range pids {
		if unix.Kill(pid, 0) == nil {
			t.Errorf("process %d lives on", pid)
		}
	}
	if text, _ := os.ReadFile(dir + "/remain"); string(text) != "stopped\n" {
		t.Errorf("ExecStop ran: %q", text)
	}
}

// A program may put another process in its place, as nginx does when it is upgraded.
func TestMainProcessThatIsReplaced(t *testing.T) {
	w := newWorld(t, nil)
	must(t, os.MkdirAll(w.root+"/run", 0o755))
	w.write("/etc/systemd/system/a.service", "[Service]\nType=forking\nPIDFile=a.pid\nExecStart=/bin/sh -c 'sleep 1000 & echo $! >"+w.root+"/run/a.pid'\n")
	must(t, w.Start("a"))
	first := w.info("a").MainPID
	must(t, w.Start("a")) // it is up
	child, err := w.cfg.Reaper.Start("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{})
	must(t, err)
	w.write("/run/a.pid", strconv.Itoa(child.Pid))
	must(t, unix.Kill(first, unix.SIGKILL))
	w.eventually("another main process", func() bool { return w.info("a").MainPID == child.Pid })
	w.want("a", active, "running")
	must(t, w.Stop("a"))
	<-child.Done()
	w.want("a", inactive, "dead")
}

func TestNotify(t *testing.T) {
	const send = `/usr/bin/env python3 -c 'import os,socket,time; s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.sendto(b"%s", chr(0)+os.environ["NOTIFY_SOCKET"][1:]); time.sleep(1000)'`
	w := newWorld(t, map[string]string{
		"up.service":    "[Service]\nType=notify\nExecStart=" + fmt.Sprintf(send, `STATUS=fine\\nREADY=1`) + "\n",
		"never.service": "[Service]\nType=notify\nTimeoutStartSec=300ms\nExecStart=/bin/sleep 1000\n",
		"early.service": "[Service]\nType=notify\nExecStart=/bin/false\n",
	})
	must(t, w.Start("up"))
	w.want("up", active, "running")
	w.eventually("the status", func() bool { return w.info("up").Said == "fine" })
	for name, result := range map[string]string{"never": "timeout", "early": "protocol"} {
		if err := w.Start(name); err == nil {
			t.Errorf("%s started", name)
		}
		w.want(name, failed, "failed")
		if got := w.info(name).Result; got != result {
			t.Errorf("%s failed by %q, want %q", name, got, result)
		}
	}
}

func TestOrderAndNeeds(t *testing.T) {
	dir := t.TempDir()
	once := func(more, name string) string {
		return "[Unit]\n" + more + "\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'echo " + name + " >>" + dir + "/order'\nExecStop=/bin/sh -c 'echo -" + name + " >>" + dir + "/order'\n"
	}
	w := newWorld(t, map[string]string{
		"app.service":    once("Requires=db.service\nWants=cache.service missing.service\nAfter=db.service cache.service network-online.target", "app"),
		"db.service":     once("After=disk.service\nRequires=disk.service -.mount", "db"),
		"disk.service":   once("", "disk"),
		"cache.service":  once("Before=db.service", "cache"),
		"part.service":   once("PartOf=db.service", "part"),
		"bad.service":    "[Service]\nType=oneshot\nExecStart=/bin/false\n",
		"needs.service":  once("Requires=bad.service", "needs"),
		"sock.service":   once("Requires=sock.socket", "sock"),
		"sock.socket":    "[Socket]\nListenStream=/run/sock\n",
		"lost.service":   once("Requires=nothing.service", "lost"),
		"round1.service": once("After=round2.service\nRequires=round2.service", "r1"),
		"round2.service": once("After=round1.service\nRequires=round1.service", "r2"),
	})
	order := func() []string {
		text, _ := os.ReadFile(dir + "/order")
		_ = os.Remove(dir + "/order")
		return strings.Fields(string(text))
	}
	must(t, w.Start("part"))
	order()
	must(t, w.Start("app"))
	got := order()
	if len(got) != 4 || got[3] != "app" || slices.Index(got, "cache") > slices.Index(got, "db") || slices.Index(got, "disk") > slices.Index(got, "db") {
		t.Errorf("they started as %q", got)
	}
	must(t, w.Restart("db"))
	got = order()
	if slices.Index(got, "-app") > slices.Index(got, "-db") || !slices.Contains(got, "-part") || slices.Index(got, "app") < slices.Index(got, "db") || slices.Index(got, "db") < slices.Index(got, "-db") {
		t.Errorf("a restart is %q", got)
	}
	for _, name := range []string{"app", "db", "part"} {
		w.want(name, active, "exited")
	}
	for name, says := range map[string]string{"needs": "bad.service", "sock": "Cay opens none", "lost": "nothing.service not found", "sock.socket": "systemctl start sock.service", "absent": "not found"} {
		if err := w.Start(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
	must(t, w.Start("round1"))
}

func TestRestarts(t *testing.T) {
	w := newWorld(t, map[string]string{
		"always.service": "[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=1h\n[Service]\nRestart=always\nRestartSec=1ms\nExecStart=/bin/false\n",
		"lives.service":  "[Service]\nRestart=on-failure\nRestartSec=1ms\nExecStart=/bin/sleep 1000\n",
		"clean.service":  "[Service]\nRestart=on-failure\nExecStart=/bin/true\n",
	})
	must(t, w.Start("always"))
	w.eventually("an end of the restarts", func() bool { i := w.info("always"); return i.Active == failed && i.Result == "start-limit-hit" })
	w.ResetFailed("always")
	w.want("always", inactive, "dead")
	must(t, w.Start("lives", "clean"))
	first := w.info("lives").MainPID
	must(t, unix.Kill(first, unix.SIGKILL))
	w.eventually("a restart", func() bool { i := w.info("lives"); return i.Active == active && i.MainPID != first && i.Restarts == 1 })
	w.eventually("a clean end", func() bool { return w.info("clean").Active == inactive })
	must(t, w.Stop("lives"))
	w.want("lives", inactive, "dead")
}

func TestSettingsOfProcesses(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, map[string]string{
		"env.service": "[Service]\nType=oneshot\nUMask=0027\nLimitNOFILE=100\nNoNewPrivileges=yes\nEnvironmentFile=/etc/default/env\nEnvironmentFile=-/none\nWorkingDirectory=" + dir +
			"\nRuntimeDirectory=env\nRuntimeDirectoryPreserve=yes\nRuntimeDirectoryMode=0750\nStandardOutput=file:/out\nExecStart=/bin/sh -c 'umask; ulimit -n; pwd; echo $FROM_FILE $RUNTIME_DIRECTORY ${INVOCATION_ID:+marked}; grep NoNewPrivs /proc/self/status'\n",
		"cond.service": "[Unit]\nConditionPathExists=/none\n[Service]\nExecStart=/bin/sleep 1000\n",
		"dir.service":  "[Service]\nWorkingDirectory=/none\nExecStart=/bin/true\n",
		"who.service":  "[Service]\nUser=nobody-at-all\nExecStart=/bin/true\n",
		"dyn.service":  "[Service]\nDynamicUser=yes\nExecStart=/bin/true\n",
		"mask.service": "",
	})
	w.write("/etc/default/env", "# comment\nFROM_FILE=\"a b\"\nbad line\n")
	w.write("/run/.keep", "")
	must(t, w.Start("env"))
	text, _ := os.ReadFile(w.lib.at("/out"))
	if got, want := strings.Fields(string(text)), []string{"0027", "100", dir, "a", "b", "/run/env", "marked", "NoNewPrivs:", "1"}; !slices.Equal(got, want) {
		t.Errorf("the process saw %q, want %q\n%s", got, want, w.log("env"))
	}
	if st, err := os.Stat(w.lib.at("/run/env")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("its directory: %v, %v", st, err)
	}
	must(t, w.Start("cond"))
	w.want("cond", inactive, "dead")
	for name, says := range map[string]string{"dir": "/none is no directory", "who": "User=nobody-at-all", "dyn": "DynamicUser", "mask": "masked"} {
		if err := w.Start(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}

func TestEnabling(t *testing.T) {
	w := newWorld(t, map[string]string{
		"a.service":  "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\nAlias=other.service\nAlso=b.service\n",
		"b.service":  "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n",
		"s.service":  "[Service]\nExecStart=/bin/true\n",
		"t@.service": "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\nDefaultInstance=one\n",
	})
	var out strings.Builder
	state := func(name, want string) {
		t.Helper()
		if got := w.lib.isEnabled(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	state("a.service", "disabled")
	must(t, w.lib.enable(&out, "a", "t@", "s"))
	for name, want := range map[string]string{"a.service": "enabled", "b.service": "enabled", "t@one.service": "enabled", "s.service": "static", "other.service": "enabled", "none.service": notFound} {
		state(name, want)
	}
	if got := w.lib.atBoot(); !slices.Equal(got, []string{"a.service", "b.service", "t@one.service"}) {
		t.Errorf("a boot starts %q", got)
	}
	must(t, os.MkdirAll(filepath.Dir(w.lib.at(commandPath)), 0o755))
	must(t, os.Symlink(w.cfg.Self, w.lib.at(commandPath)))
	w.Boot(time.Minute)
	w.want("other.service", active, "running")
	w.want("t@one.service", active, "running")
	if n := w.Rest(); n != 3 {
		t.Errorf("%d services rest", n)
	}
	w.want("a.service", inactive, "dead")
	w.Wake()
	w.want("a.service", active, "running")
	must(t, w.lib.disable(&out, "a", "b", "t@one"))
	state("a.service", "disabled")
	state("other.service", notFound)
	must(t, w.lib.mask(&out, "a"))
	state("a.service", masked)
	if err := w.Restart("a"); err == nil || !strings.Contains(err.Error(), "masked") {
		t.Errorf("a masked unit restarts: %v", err)
	}
	must(t, w.lib.unmask(&out, "a"))
	state("a.service", "disabled")
	if !strings.Contains(out.String(), "Created symlink /etc/systemd/system/multi-user.target.wants/a.service → /usr/lib/systemd/system/a.service.") {
		t.Errorf("it says %q", out.String())
	}
}

func TestScripts(t *testing.T) {
	w := newWorld(t, nil)
	w.write("/etc/init.d/old", "#!/bin/sh\necho $1 >>"+w.root+"/log\n")
	must(t, os.Chmod(w.lib.at("/etc/init.d/old"), 0o755))
	must(t, os.MkdirAll(w.lib.at("/etc/rc2.d"), 0o755))
	must(t, os.Symlink("../init.d/old", w.lib.at("/etc/rc2.d/S01old")))
	if got := w.lib.atBoot(); !slices.Equal(got, []string{"old.service"}) || w.lib.isEnabled("old.service") != "enabled" || w.info("old").Source != "/etc/init.d/old" {
		t.Errorf("a boot starts %q; %+v", got, w.info("old"))
	}
}

func TestJournal(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 3 {
		w.journal.write("a.service", "prog", 7, fmt.Sprint("line ", i))
	}
	lines, err := w.journal.read("a.service")
	if err != nil || len(lines) != 3 || lines[2].message() != "line 2" || !strings.HasSuffix(lines[0].short(), "prog[7]: line 0") {
		t.Fatalf("%+v, %v", lines, err)
	}
	must(t, os.Truncate(w.journal.path("a.service"), journalMost+1))
	w.journal.write("a.service", "prog", 7, "after")
	if st, err := os.Stat(w.journal.path("a.service")); err != nil || st.Size() > 100 {
		t.Errorf("a large file goes on: %v, %v", st, err)
	}
	o, err := parseLogOptions([]string{"-xeu", "nginx", "-n5", "--no-pager", "-fo", "cat"})
	if err != nil || !slices.Equal(o.units, []string{"nginx.service"}) || o.lines != 5 || !o.follow || o.output != "cat" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parseLogOptions([]string{"-n", "-u", "a"}); err != nil || o.lines != 10 || len(o.units) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestOptions(t *testing.T) {
	o, err := parseOptions([]string{"--quiet", "-p", "LoadState", "show", "--value", "-pMainPID", "--", "-a.service"})
	if err != nil || o.verb != "show" || !o.quiet || !o.value || !slices.Equal(o.properties, []string{"LoadState", "MainPID"}) || !slices.Equal(o.units, []string{"-a.service"}) {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := parseOptions([]string{"show", "-p"}); err == nil {
		t.Error("an option without its value is taken")
	}
}
