package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A handler that panics is answered 500, logged with its stack, and the next
// call is served.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	a := &Agent{log: slog.New(slog.NewTextHandler(&log, nil))}
	mux := http.NewServeMux()
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("broken") })
	mux.HandleFunc("/late", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		panic("broken late")
	})
	mux.HandleFunc("/fine", health)
	h := a.recovered(mux)

	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/panic", nil))
	if w.Code != 500 || w.Body.String() != `{"code":500,"message":"internal error"}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "broken") || !strings.Contains(log.String(), "TestPanic") {
		t.Errorf("log: %s", log.String())
	}
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler {
				t.Errorf("a begun answer ended with %v", v)
			}
		}()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/late", nil))
	}()
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/fine", nil))
	if w.Code != 204 {
		t.Errorf("afterwards: %d", w.Code)
	}
}

// fakeProc lays out a /proc with processes of these resident pages; the parent
// of each is the one before it.
func fakeProc(t *testing.T, meminfo string, pages map[int]int) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("meminfo", meminfo)
	for pid, n := range pages {
		write(fmt.Sprintf("%d/statm", pid), fmt.Sprintf("99999 %d 0 0 0 0 0", n))
		write(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (a) b) S %d 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0", pid, pid-1))
	}
	return root
}

func TestGuard(t *testing.T) {
	const total = 1024 * mib
	short := sample{total, 10 * mib, 9}
	plenty := sample{total, 1000 * mib, 9}
	for name, c := range map[string]struct {
		sample sample
		limit  uint64
		pages  map[int]int
		group  int // of all but 1 and 7
		looks  int
		killed []int
		blamed []int
	}{
		"plenty":                  {plenty, 0, map[int]int{1: 9, 2: 5}, 1, 1, nil, nil},
		"short":                   {short, 0, map[int]int{1: 900, 2: 5, 3: 700, 4: 6}, 1, 1, []int{3}, []int{3, 2}},
		"short of what is ours":   {plenty, 56 * mib, map[int]int{2: 5, 3: 7}, 1, 1, []int{3}, []int{3, 2}},
		"plenty of what is ours":  {plenty, 512 * mib, map[int]int{2: 5}, 1, 1, nil, nil},
		"the agent alone":         {short, 0, map[int]int{1: 900, 7: 800}, 1, 1, nil, nil},
		"a machine without a sum": {sample{}, 0, map[int]int{2: 5}, 1, 1, nil, nil},
		"too many tasks":          {sample{total, 700 * mib, 2300}, 0, map[int]int{3: 700, 9: 5}, 1, 1, []int{3}, []int{3}},
		"many in one group":       {short, 0, map[int]int{3: 70, 4: 60, 5: 60, 9: 1}, 33, 1, []int{-33}, []int{3, 3, 4, 5, 9}},
		"one of a group":          {short, 0, map[int]int{3: 700, 4: 60, 5: 60}, 33, 1, []int{3}, []int{3}},
		"a storm of forks":        {sample{total, 500 * mib, 200}, 0, forks(guardStorm), 33, 2, pidsFrom(10, guardStorm), nil},
		"a crowd":                 {sample{total, 500 * mib, 50}, 0, forks(guardCrowd), 33, 2, pidsFrom(10, guardCrowd), nil},
		"a few":                   {sample{total, 500 * mib, 200}, 0, forks(guardCrowd - 1), 33, 2, nil, nil},
		"killing does not help": {short, 0, map[int]int{3: 700, 4: 60, 9: 60}, 1, 4,
			[]int{3, 3, 3, -1}, []int{3, 4, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			var killed, blamed []int
			told := 0
			root := fakeProc(t, "", c.pages)
			for pid := range c.pages {
				if pid != 1 && pid != 7 {
					line := fmt.Sprintf("%d (a) b) S %d %d 1 0 -1 0 0 0 0 0 1 2 3 4 20 0", pid, pid-1, c.group)
					if err := os.WriteFile(filepath.Join(root, fmt.Sprint(pid), "stat"), []byte(line), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			now, frozen := c.sample, false
			g := &guard{
				started: func() map[int]bool { return nil },
				freeze: func(spare bool) func() {
					if frozen = true; !spare {
						t.Error("what a user has stopped goes on")
					}
					return func() { frozen = false }
				},
				proc:   root,
				self:   7,
				limit:  func() uint64 { return c.limit },
				sample: func() (sample, error) { return now, nil },
				kill: func(pid int) error {
					if !frozen {
						t.Error("chose while others ran")
					}
					killed = append(killed, pid)
					now.free /= 4 // another process is faster, or settling ends at its deadline
					return nil
				},
				blame: func(pids []int, reason string) {
					if len(pids) > guardCrowd {
						return // who they are is the fake's affair
					}
					blamed = slices.Sorted(slices.Values(pids))
					if !strings.Contains(reason, "process 3 (a) b) used") || !strings.HasPrefix(reason, "out of memory: ") {
						t.Errorf("reason %q", reason)
					}
				},
			}
			g.told = func(int, string, uint64, string) { told++ }
			for look := range c.looks {
				if look == 1 && c.looks == 2 {
					now.free -= 100 * mib
				}
				if d := g.look(t.Context()); d < guardBusy || d > guardCalm {
					t.Errorf("looks again after %v", d)
				}
				if frozen {
					t.Error("left everything frozen")
				}
			}
			if acts := min(len(killed), 4); told != acts && len(killed) < guardCrowd {
				t.Errorf("told %d times, killed %v", told, killed)
			}
			if len(killed) >= guardCrowd {
				slices.Sort(killed) // a crowd goes in any order
			}
			if diff := cmp.Diff([][]int{c.killed, slices.Sorted(slices.Values(c.blamed))}, [][]int{killed, blamed}, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("killed and blamed (-want +got):\n%s", diff)
			}
		})
	}
}

// pidsFrom is n PIDs in a row.
func pidsFrom(first, n int) []int {
	var out []int
	for i := range n {
		out = append(out, first+i)
	}
	return out
}

// TestCrowd refuses a fork, as the engine does, or fills the process table.
func TestCrowd(t *testing.T) {
	const total = 4096 * mib
	plenty, tight := sample{total, 3000 * mib, 400}, sample{total, 150 * mib, 400}
	with := func(more, pages map[int]int) map[int]int {
		maps.Copy(pages, more)
		return pages
	}
	all := func(int) int { return 33 }
	alone := func(pid int) int { return pid }
	big := map[int]int{5: 900 * mib / os.Getpagesize()}
	for name, c := range map[string]struct {
		sample  sample
		pages   map[int]int
		group   func(pid int) int
		slots   int // of which a look learns; 0: the engine refused a fork
		killed  []int
		started map[int]bool
	}{
		"a group":                        {plenty, forks(guardStorm), all, 0, pidsFrom(10, guardStorm), nil},
		"a family, each a group":         {plenty, forks(guardStorm), alone, 0, pidsFrom(10, guardStorm), map[int]bool{10: true}},
		"orphans, each a group":          {plenty, forks(guardStorm), alone, 0, pidsFrom(10, guardStorm), nil},
		"orphans of a command":           {plenty, forks(guardStorm + 1), alone, 0, pidsFrom(11, guardStorm), map[int]bool{10: true}},
		"commands, each a group":         {plenty, forks(3 * guardStorm), alone, 0, nil, set(pidsFrom(10, 3*guardStorm))},
		"commands in a full table":       {plenty, forks(3 * guardStorm), alone, 330, nil, set(pidsFrom(10, 3*guardStorm))},
		"not that many":                  {plenty, forks(guardStorm - 1), all, 0, nil, nil},
		"a group beside a big one":       {plenty, with(big, forks(guardStorm)), all, 0, append([]int{5}, pidsFrom(10, guardStorm)...), nil},
		"a big one beside a quiet crowd": {tight, with(big, forks(guardStorm)), alone, 0, nil, nil},
		"short by a big one":             {sample{total, 10 * mib, 90}, with(big, forks(guardStorm)), alone, 0, []int{5}, nil},
		"a full table":                   {plenty, forks(guardStorm), all, 110, pidsFrom(10, guardStorm), nil},
		"a table with room":              {plenty, forks(guardStorm), all, 200, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := fakeProc(t, "", c.pages)
			for pid := range c.pages {
				parent := pid - 1 // a bomb's processes may be a long line
				if pid <= 10 || strings.HasPrefix(name, "orphans") || strings.HasPrefix(name, "commands") {
					parent = 1
				}
				line := fmt.Sprintf("%d (bomb) R %d %d 1 0 -1 0 0 0 0 0 1 2 3 4 20 0", pid, parent, c.group(pid))
				if err := os.WriteFile(filepath.Join(root, fmt.Sprint(pid), "stat"), []byte(line), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var killed, blamed []int
			now := c.sample
			g := &guard{
				freeze: func(spare bool) func() {
					if spare {
						t.Error("what the engine has stopped stays so")
					}
					return func() {}
				},
				proc:   root,
				self:   1,
				slots:  c.slots,
				limit:  func() uint64 { return 0 },
				sample: func() (sample, error) { return now, nil },
				kill: func(pid int) error {
					killed = append(killed, pid)
					now.free = total
					return nil
				},
				blame: func(pids []int, reason string) {
					if many := strings.HasPrefix(reason, "too many processes: "); many != (c.sample == plenty) {
						t.Errorf("%d MiB are left: %s", c.sample.free/mib, reason)
					}
					blamed = append(blamed, pids...)
				},
				told: func(int, string, uint64, string) {},
			}
			g.started = func() map[int]bool { return c.started }
			if c.slots > 0 {
				g.look(t.Context())
			} else {
				g.act(t.Context(), true)
			}
			slices.Sort(killed)
			slices.Sort(blamed)
			if diff := cmp.Diff(c.killed, killed, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("killed (-want +got):\n%s", diff)
			}
			if !slices.Equal(killed, slices.Compact(blamed)) {
				t.Errorf("killed %v, blamed %v", killed, blamed)
			}
		})
	}
}

func set(pids []int) map[int]bool {
	out := map[int]bool{}
	for _, pid := range pids {
		out[pid] = true
	}
	return out
}

// Commands beyond what the sandbox has room for do not begin; a few always do.
func TestRoom(t *testing.T) {
	for _, c := range []struct {
		name        string
		live, young int
		free        uint64
		want        string
	}{
		{"few in a full sandbox", 10, 10, 0, ""},
		{"many, with memory", 200, 200, 800 * mib, ""},
		{"many, with too little", 200, 200, 400 * mib, "not enough memory: 200 commands began within the last minute, and with one more 768 MiB must be left for what they may write, but 400 MiB are"},
		{"many, and none is young", 400, 0, 100 * mib, ""},
		{"too many", 448, 0, 800 * mib, "too many processes: 448 commands run, and an account may have 1024 processes"},
	} {
		r := room{
			slots:  1024,
			sample: func() (sample, error) { return sample{1024 * mib, c.free, 9}, nil },
			limit:  func() uint64 { return 0 },
		}
		if got := r.lacks(c.live, c.young); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// forks lays out n processes, the first of them the biggest.
func forks(n int) map[int]int {
	pages := map[int]int{}
	for pid := range n {
		pages[pid+10] = 1
	}
	return pages
}

func TestCPUMeter(t *testing.T) {
	root := fakeProc(t, "", map[int]int{2: 1, 3: 1}) // 10 ticks each
	if got := cpuUsed(root); got != 200*time.Millisecond {
		t.Errorf("used %v", got)
	}
	begun := time.Now()
	c := cpuMeter{at: begun}
	if got := c.percent(root, begun.Add(time.Second), 2); got != 10 {
		t.Errorf("%v %% of two CPUs", got)
	}
	if got := c.percent(root, begun.Add(time.Second+clockTick), 2); got != 10 {
		t.Errorf("asked again at once: %v %%", got)
	}
	if got := c.percent(root, begun.Add(3*time.Second), 2); got != 0 {
		t.Errorf("idle: %v %%", got)
	}
}

func FuzzProc(f *testing.F) {
	f.Add([]byte("MemTotal: 5 kB\nCached: 1\n"), []byte("1 (a) b) S 0 1 1 0 -1 0 0 0 0 0 1 2 3 4 20"))
	f.Add([]byte("MemFree: -1 kB\n:"), []byte(")("))
	f.Fuzz(func(t *testing.T, meminfo, text []byte) {
		m := parseMemory(meminfo)
		if m.used() > m.total {
			t.Errorf("used %d of %d", m.used(), m.total)
		}
		parseStat(text)
	})
}

func FuzzCA(f *testing.F) {
	f.Add([]byte("image\n"), "added")
	f.Add([]byte(caBegin+"x"), "")
	begin, end := strings.TrimSpace(caBegin), strings.TrimSpace(caEnd)
	f.Fuzz(func(t *testing.T, file []byte, bundle string) {
		marked := strings.Contains(string(file)+bundle, begin) || strings.Contains(string(file)+bundle, end)
		once := withCA(file, bundle)
		if twice := withCA(once, bundle); !marked && !bytes.Equal(once, twice) {
			t.Errorf("not idempotent: %q, then %q", once, twice)
		}
	})
}

func TestGuardLooksAhead(t *testing.T) {
	const at, later = time.Second, time.Second + 250*time.Millisecond
	begun := time.Now()
	for _, c := range []struct {
		name  string
		lost  uint64 // in a quarter of a second
		tasks int
		want  uint64
	}{
		{"few tasks", 100 * mib, guardCrowd - 1, 900 * mib},
		{"a crowd", 100 * mib, guardCrowd, 700 * mib},
		{"a crowd that takes all", 500 * mib, guardCrowd, 0},
		{"a storm", 100 * mib, guardStorm, 500 * mib},
		{"a storm that is calm", 0, guardStorm, 1000 * mib},
	} {
		before := spare{left: 1000 * mib, at: begun.Add(at)}
		now := spare{left: 1000*mib - c.lost, at: begun.Add(later), tasks: c.tasks}
		if got := soon(before, now); got != c.want {
			t.Errorf("%s: %d MiB, want %d", c.name, got/mib, c.want/mib)
		}
	}
}

func TestGuardLooksInTime(t *testing.T) {
	for _, c := range []struct {
		name        string
		before, now spare
		want        time.Duration
	}{
		{"plenty, something changes", spare{left: 8 << 30}, spare{left: 7 << 30, tasks: 10}, guardCalm},
		{"half a gigabyte", spare{left: 9 << 30}, spare{left: 512*mib + guardReserve, tasks: 10}, 250 * time.Millisecond},
		{"little", spare{}, spare{left: guardReserve + mib}, guardBusy},
		{"nothing", spare{}, spare{}, guardBusy},
		{"many tasks, busy", spare{left: 8 << 30}, spare{left: 7 << 30, tasks: guardStorm}, guardBusy},
		{"many tasks, idle", spare{left: 8 << 30}, spare{left: 8 << 30, tasks: guardStorm}, guardCalm},
	} {
		if got := pause(c.before, c.now); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A guard that the engine wakes sleeps while nothing happens; one under an
// engine that does not wake it looks twice a second at least.
func TestGuardRests(t *testing.T) {
	for _, c := range []struct {
		name    string
		watched bool
		woken   time.Duration // ago
		pause   time.Duration
		want    time.Duration
	}{
		{"an engine that does not watch", false, time.Hour, guardCalm, guardCalm},
		{"calm", true, time.Hour, guardCalm, guardAsleep},
		{"little memory that nothing changes", true, time.Hour, guardBusy, guardAsleep},
		{"woken just now", true, 0, guardBusy, guardBusy},
	} {
		g := &guard{watched: c.watched, woken: time.Now().Add(-c.woken)}
		if got := g.rest(c.pause); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
