package doctor

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/store/pgtest"
)

func files(pairs ...string) host {
	sys := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		sys[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1] + "\n")}
	}
	return host{config.Default(), sys}
}

func TestChecksOfTheKernel(t *testing.T) {
	const (
		release = "proc/sys/kernel/osrelease"
		mounts  = "proc/self/mounts"
		trap    = "proc/sys/kernel/seccomp/actions_avail"
	)
	for _, tc := range []struct {
		what string
		look func(host) Check
		host host
		want Status
		say  string
	}{
		{"new kernel", with(kernel), files(release, "6.18.44-x"), OK, "6.18"},
		{"just new enough", with(kernel), files(release, "5.10.0"), OK, "5.10"},
		{"old kernel", with(kernel), files(release, "4.19.0-1-amd64"), Fail, "too old"},
		{"no kernel", with(kernel), files(), Warn, "version"},
		{"cgroup v2", with(cgroups), files("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"), OK, "v2"},
		{"cgroup v2 without pids", with(cgroups), files("sys/fs/cgroup/cgroup.controllers", "cpu memory"), Fail, "pids"},
		{"cgroup v1", with(cgroups), files(mounts, "cgroup /a cgroup rw,cpu,cpuacct 0 0\ncgroup /b cgroup rw,memory 0 0\ncgroup /c cgroup rw,pids 0 0"), OK, "v1"},
		{"no cgroups", with(cgroups), files(mounts, "proc /proc proc rw 0 0"), Fail, "cpu"},
		{"system calls", with(systemCalls), files(trap, "kill_process trap errno"), OK, "seccomp"},
		{"no seccomp", with(systemCalls), files(), Fail, "seccomp"},
		{"no ptrace", with(systemCalls), files(trap, "trap", "proc/sys/kernel/yama/ptrace_scope", "3"), Fail, "ptrace"},
		{"no user namespaces", with(systemCalls), files(trap, "trap", "proc/sys/user/max_user_namespaces", "0"), Fail, "user namespaces"},
		{"much memory", with(memory), files("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   16000000 kB"), OK, "15.3 GiB"},
		{"little memory", with(memory), files("proc/meminfo", "MemAvailable: 1000 kB"), Warn, "only"},
		{"few tasks", with(tasks), files("proc/sys/kernel/pid_max", "32768", "proc/sys/kernel/threads-max", "99999999"), Warn, "pid_max"},
		{"many tasks", with(tasks), files("proc/sys/kernel/pid_max", "4194304"), OK, "room"},
	} {
		got := tc.look(tc.host)
		if got.Status != tc.want || !strings.Contains(got.Detail, tc.say) {
			t.Errorf("%s: %+v, want %s that says %q", tc.what, got, tc.want, tc.say)
		}
		if (got.Status == OK) != (got.Hint == "") {
			t.Errorf("%s: %+v: a hint belongs to what is not well, and only to that", tc.what, got)
		}
	}
}

func with[C any](look func(C, host) Check) func(host) Check {
	return func(h host) Check {
		var none C
		return look(none, h)
	}
}

func TestPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := files()
	h.cfg.Listen = l.Addr().String()
	got := port(t.Context(), h)
	if got.Status != Fail || !strings.Contains(got.Detail, "taken") || !strings.Contains(got.Hint, "CAY_LISTEN") {
		t.Errorf("port in use: %+v", got)
	}
	h.cfg.Listen = "127.0.0.1:0"
	if got := port(t.Context(), h); got.Status != OK {
		t.Errorf("free port: %+v", got)
	}
	h.cfg.Listen = "192.88.99.7:80"
	if got := port(t.Context(), h); got.Status != Fail {
		t.Errorf("another host's address: %+v", got)
	}
}

func TestPortNamesWhatIsWrong(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := config.Default()
	cfg.Listen = l.Addr().String()
	err = Port(t.Context(), cfg)
	if e, ok := err.(*cay.Error); !ok || e.Kind != cay.Conflict || e.Hint == "" || strings.Contains(e.Error(), "\n") {
		t.Errorf("Port = %v, want a conflict in one line with a hint", err)
	}
}

// A lack of the machine is named with what to do about it.
func TestRequiredNamesTheFirstFailure(t *testing.T) {
	lack := host{config.Default(), fstest.MapFS{"proc/sys/kernel/osrelease": {Data: []byte("4.9.0")}}}
	err := required(t.Context(), lack, []examination{{"kernel", true, kernel}, {"cgroups", true, cgroups}})
	if e, ok := err.(*cay.Error); !ok || e.Kind != cay.Unsupported || e.Hint == "" || !strings.Contains(e.Error(), "4.9.0") {
		t.Errorf("Required = %v, want the kernel with a hint", err)
	}
}

func TestDatabase(t *testing.T) {
	server := pgtest.Start(t)
	h := files()
	h.cfg.DatabaseURL = server.URL(server.Database(t, ""))
	if c := database(t.Context(), h); c.Status != OK {
		t.Errorf("%+v", c)
	}
	name := server.Database(t, "")
	server.Exec(t, name, `CREATE SCHEMA leap`, `CREATE FUNCTION leap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + make_interval(mins => 5)'`)
	other := h
	other.cfg.DatabaseURL = server.URL(name) + "&search_path=" + url.QueryEscape("public,leap,pg_catalog")
	if c := database(t.Context(), other); c.Status != OK {
		t.Errorf("a machine alone with another clock: %+v", c)
	}
	other.cfg.ClusterAddress = "10.0.0.1:7071"
	if c := database(t.Context(), other); c.Status != Fail || c.Hint == "" || !strings.Contains(c.Detail, "5m0s behind the database's") {
		t.Errorf("a node with another clock: %+v", c)
	}
	h.cfg.DatabaseStandby = true
	if c := database(t.Context(), h); c.Status != Fail || c.Hint == "" || !strings.Contains(c.Detail, "standby") {
		t.Errorf("without a standby: %+v", c)
	}
	h.cfg.DatabaseURL = server.URL("none")
	if c := database(t.Context(), h); c.Status != Fail || c.Hint == "" {
		t.Errorf("a database that is not there: %+v", c)
	}
}

func TestRunChecksEverything(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir(), t.TempDir()
	got := Run(t.Context(), cfg, Running{
		Loading: func(context.Context) (node.Loading, error) { return node.Loading{Instances: 2, Pending: 1 << 30}, nil },
		Cached: func(context.Context) (cache.State, error) {
			return cache.State{On: true, Bytes: 3 << 30, Limit: 2 << 30, Evictable: 1 << 30, Uncopied: 2, UncopiedBytes: 1 << 30, Evicted: 7}, nil
		},
	})
	if len(got) != len(examinations) {
		t.Fatalf("%d checks, want %d", len(got), len(examinations))
	}
	for _, c := range got {
		t.Logf("%-4s %-14s %s  %s", c.Status, c.Name, c.Detail, c.Hint)
		if c.Name == "" || c.Detail == "" || (c.Status == OK) != (c.Hint == "") {
			t.Errorf("incomplete: %+v", c)
		}
		if c.Name == "loading" && !strings.Contains(c.Detail, "2 sandboxes may still load") {
			t.Errorf("without what the server says: %+v", c)
		}
		if c.Name == "cache" && (c.Status != Warn || !strings.Contains(c.Detail, "1.0 GiB of 2 snapshots are not copied yet; the bucket alone has 7")) {
			t.Errorf("without what the server says: %+v", c)
		}
	}
}

// A server must start on a disk that is full, to remove things with; one that
// never ran must not begin there.
func TestADiskWithoutRoom(t *testing.T) {
	h := files()
	h.cfg.Data = disktest.Ext4(t, 256<<20)
	if c := with(dataDirectory)(h); c.Status != Fail || !strings.Contains(c.Detail, "no disk space") {
		t.Errorf("before the first start: %+v", c)
	}
	if err := os.WriteFile(filepath.Join(h.cfg.Data, "cay.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for free, say := range map[int64]string{48 << 20: "new work is refused", 16 << 20: "kept for records"} {
		empty := disktest.FillTo(t, h.cfg.Data, free)
		if c := with(dataDirectory)(h); c.Status != Warn || !strings.Contains(c.Detail, say) || !strings.Contains(c.Hint, "cay gc") {
			t.Errorf("with %d MB free: %+v", free>>20, c)
		}
		empty()
	}
}

// The way to the data directory must be open to the user of the guest's kernel,
// also where the directory is not there yet.
func TestTheWayToTheDataDirectory(t *testing.T) {
	top, err := os.MkdirTemp("/var/tmp", "cay-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	h := files()
	h.cfg.Data = filepath.Join(top, "data")
	for _, c := range []struct {
		mode os.FileMode
		made bool
		want Status
	}{{0o700, false, Fail}, {0o711, false, OK}, {0o700, true, Fail}, {0o755, true, OK}} {
		if c.made {
			if err := os.MkdirAll(h.cfg.Data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(top, c.mode); err != nil {
			t.Fatal(err)
		}
		if got := with(passage)(h); got.Status != c.want || got.Status == Fail && !strings.Contains(got.Hint, "chmod o+x "+top) {
			t.Errorf("%s, a data directory there %v: %+v", c.mode, c.made, got)
		}
	}
}

// Storage that is not mounted yet is no lack of anything.
func TestStorageThatWaits(t *testing.T) {
	h := files()
	h.cfg.Data = t.TempDir()
	if err := os.WriteFile(filepath.Join(h.cfg.Data, "storage.xfs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, look := range []func(host) Check{with(sharing), with(dataDirectory)} {
		if c := look(h); c.Status != OK || !strings.Contains(c.Detail, "mounted when the server starts") {
			t.Errorf("%+v", c)
		}
	}
}

// Before the first template is built, an operator hears what templates cost on a
// disk whose files cannot share blocks, and what changes that.
func TestADiskThatSharesNoBlocks(t *testing.T) {
	h := files()
	h.cfg.Data = filepath.Join(disktest.Ext4(t, 16<<20), "not", "there", "yet")
	if c := with(sharing)(h); c.Status != Warn || !strings.Contains(c.Detail, "cannot share blocks") || !strings.Contains(c.Hint, "cay storage create") {
		t.Errorf("%+v", c)
	}
}

// Each lack of what volumes need is named with its cure.
func TestVolumesNeed(t *testing.T) {
	h := files()
	if c := with(volumes)(h); c.Status != Warn || !strings.Contains(c.Detail, "loop devices") || c.Hint == "" {
		t.Errorf("without loop devices: %+v", c)
	}
	h.sys = fstest.MapFS{"dev/loop-control": {}}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, name := range []string{"mkfs.ext4", "mkfs.xfs"} {
		if c := with(volumes)(h); c.Status != Warn || !strings.Contains(c.Detail, name) || !strings.Contains(c.Hint, "xfsprogs") {
			t.Errorf("without %s: %+v", name, c)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if c := with(volumes)(h); strings.Contains(c.Detail, "mkfs.xfs:") || strings.Contains(c.Detail, "mkfs.ext4:") || c.Status == Fail {
		t.Errorf("with all: %+v", c)
	}
}

func TestBucket(t *testing.T) {
	h := files()
	if c := bucket(t.Context(), h); c.Status != OK {
		t.Errorf("without one: %+v", c)
	}
	h.cfg.Bucket.Bucket = t.TempDir()
	if c := bucket(t.Context(), h); c.Status != OK {
		t.Errorf("%+v", c)
	}
	h.cfg.Bucket.Bucket = "s3://-"
	if c := bucket(t.Context(), h); c.Status != Fail || c.Hint == "" {
		t.Errorf("no name of a bucket: %+v", c)
	}
}

// The certificates of a member are looked at before they expire.
func TestCertificate(t *testing.T) {
	data := t.TempDir()
	look := func(when time.Time, want Status, say string) {
		t.Helper()
		if c := certificateAt(data, when); c.Status != want || !strings.Contains(c.Detail, say) {
			t.Errorf("%+v, want %s: %s", c, want, say)
		}
	}
	now := time.Now()
	look(now, OK, "no node")
	cert, key, err := member.NewAuthority("c")
	if err != nil {
		t.Fatal(err)
	}
	a, err := member.OpenAuthority(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	files, err := a.Issue("c", "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Write(data); err != nil {
		t.Fatal(err)
	}
	look(now, OK, "node n1 is good until")
	look(now.AddDate(2, 0, -50), Warn, "node n1 expires")
	look(now.AddDate(10, 0, -50), Warn, "authority expires")
}
