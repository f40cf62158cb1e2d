// Package services starts, watches and stops services by systemd's unit files, in
// the agent, which is PID 1; and it is the commands systemctl and journalctl that
// ask for that (ADR 75). Nothing of it runs in a sandbox that starts no service.
package services

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/inside/agent/reap"
)

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// Config is what a Manager works with.
type Config struct {
	Reaper *reap.Reaper
	Self   string // the agent's program
	Root   string // where units and accounts are; the root directory if empty
	Log    *slog.Logger
}

// Manager has the services of a sandbox.
type Manager struct {
	cfg     Config
	lib     library
	journal *journal

	mu     sync.Mutex
	units  map[string]*state // by their own names
	rested []string          // what Rest has stopped
}

// New returns a manager that has started nothing.
func New(cfg Config) *Manager {
	lib := library{cfg.Root}
	return &Manager{cfg: cfg, lib: lib, journal: &journal{lib: lib}, units: map[string]*state{}}
}

// States of a unit, in the words of systemd.
const (
	inactive     = "inactive"
	activating   = "activating"
	active       = "active"
	reloading    = "reloading"
	deactivating = "deactivating"
	failed       = "failed"
)

// state is one unit of a manager.
type state struct {
	m    *Manager
	name string
	op   sync.Mutex // one start or stop at a time

	// Guarded by the manager's mutex.
	unit             *unit // as it was read at the last start
	active, sub      string
	result           string // why it failed
	since            time.Time
	run              *activation // nil while it is down
	said             string      // STATUS of the service itself
	starts           []time.Time // for the limit of starts
	restarts         int
	restart          *time.Timer // a restart that is to come
	exitCode, exited int         // of the last main process
}

// get finds a unit by any of its names.
func (m *Manager) get(name string) *state {
	name = fullName(name)
	u := m.lib.load(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.units[u.name]
	if s == nil {
		s = &state{m: m, name: u.name, active: inactive, sub: "dead"}
		m.units[u.name] = s
	}
	if s.run == nil {
		s.unit = u
	}
	return s
}

func (s *state) set(active, sub string) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.active != active {
		s.since = time.Now()
	}
	s.active, s.sub = active, sub
}

func (s *state) is(states ...string) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return slices.Contains(states, s.active)
}

func (s *state) note(format string, args ...any) {
	s.m.journal.write(s.name, "systemd", 1, fmt.Sprintf(format, args...))
}

// always are the targets that a sandbox has reached, whether there is a file for
// them or not.
var always = strings.Fields(`
	basic.target default.target cryptsetup.target getty.target graphical.target integritysetup.target
	local-fs.target local-fs-pre.target multi-user.target network.target network-online.target network-pre.target
	nss-lookup.target nss-user-lookup.target paths.target remote-fs.target remote-fs-pre.target rpcbind.target
	slices.target sockets.target swap.target sysinit.target time-set.target time-sync.target timers.target`)

// Start starts units with what they need, and waits until they are up. A unit
// waits for those of them that come before it; others start side by side.
func (m *Manager) Start(names ...string) error {
	var errs []error
	for i, name := range names {
		names[i] = fullName(name)
		errs = append(errs, unsupported(names[i]))
	}
	order, after := m.plan(names)
	var mu sync.Mutex
	bad, done := map[string]error{}, map[string]chan struct{}{}
	var wait sync.WaitGroup
	for _, n := range order {
		var first []chan struct{} // those that are in the plan before it: a circle is cut
		for _, other := range after[n] {
			if c := done[other]; c != nil {
				first = append(first, c)
			}
		}
		mine := make(chan struct{})
		done[n] = mine
		wait.Go(func() {
			defer close(mine)
			for _, c := range first {
				<-c
			}
			err := m.startOne(n, func(other string) error { mu.Lock(); defer mu.Unlock(); return bad[other] })
			mu.Lock()
			defer mu.Unlock()
			bad[n] = err
		})
	}
	wait.Wait()
	for _, name := range names {
		errs = append(errs, bad[m.get(name).name])
	}
	return errors.Join(errs...)
}

// startOne starts a unit whose companions were started, where it has them all.
func (m *Manager) startOne(name string, failure func(string) error) error {
	s := m.get(name)
	_, required := m.lib.wants(s.unit)
	for _, need := range required {
		if err := errors.Join(unsupported(need), failure(need)); err != nil {
			return fmt.Errorf("%s needs %s: %w", name, need, err)
		}
	}
	for _, other := range s.unit.names("Conflicts") {
		if !slices.Contains(always, other) && m.known(other) {
			_ = m.Stop(other) // the start of this one tells what is wrong
		}
	}
	s.op.Lock()
	defer s.op.Unlock()
	return s.start()
}

// known reports whether a unit is loaded.
func (m *Manager) known(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.units[name] != nil
}

// plan lists units and all that they bring by their own names, those before
// others that come after them, and says which come before each. A circle is cut
// where it is met.
func (m *Manager) plan(names []string) (order []string, after map[string][]string) {
	set := map[string]*unit{}
	var collect func(name string, depth int)
	collect = func(name string, depth int) {
		if set[name] != nil || depth > 64 || depth > 0 && (slices.Contains(always, name) || unsupported(name) != nil || slices.Contains(passive, kindOf(name)) || isMachine(name)) {
			return
		}
		u := m.get(name).unit
		if set[u.name] != nil {
			return
		}
		set[u.name] = u
		all, required := m.lib.wants(u)
		for _, n := range all {
			if slices.Contains(required, n) || m.lib.load(n).load == loaded {
				collect(n, depth+1)
			}
		}
	}
	for _, name := range names {
		if unsupported(name) == nil {
			collect(name, 0)
		}
	}
	after = map[string][]string{}
	for n, u := range set {
		_, required := m.lib.wants(u)
		after[n] = append(append(after[n], u.names("After")...), required...)
		for _, other := range u.names("Before") {
			after[other] = append(after[other], n)
		}
	}
	seen := map[string]bool{}
	var visit func(n string)
	visit = func(n string) {
		if seen[n] || set[n] == nil {
			return
		}
		seen[n] = true
		for _, before := range slices.Sorted(slices.Values(after[n])) {
			visit(before)
		}
		order = append(order, n)
	}
	for _, n := range slices.Sorted(mapKeys(set)) {
		visit(n)
	}
	return order, after
}

// dependents are the active units that go when one goes.
func (m *Manager) dependents(name string, keys ...string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for n, s := range m.units {
		if n != name && s.unit != nil && slices.Contains([]string{active, activating, reloading}, s.active) &&
			slices.Contains(s.unit.names(keys...), name) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// Stop stops units, and before each those that depend on it.
func (m *Manager) Stop(names ...string) error {
	var errs []error
	for _, name := range names {
		_, err := m.stopAll(fullName(name), map[string]bool{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// stopAll returns the units that it stopped.
func (m *Manager) stopAll(name string, seen map[string]bool) (stopped []string, err error) {
	s := m.get(name)
	if seen[s.name] {
		return nil, nil
	}
	seen[s.name] = true
	if s.unit.load == notFound && s.is(inactive) {
		return nil, fmt.Errorf("Unit %s not loaded.", name) //nolint:staticcheck // the words of systemctl
	}
	for _, n := range m.dependents(s.name, "Requires", "BindsTo", "PartOf", "Requisite") {
		more, err := m.stopAll(n, seen)
		stopped = append(stopped, more...)
		if err != nil {
			return stopped, err
		}
	}
	s.op.Lock()
	defer s.op.Unlock()
	if !s.is(inactive, failed) {
		stopped = append(stopped, s.name)
	}
	s.stop()
	return stopped, nil
}

// Restart stops units and starts them, with those that went with them.
func (m *Manager) Restart(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := unsupported(fullName(name)); err != nil {
			errs = append(errs, err)
			continue
		}
		stopped, err := m.stopAll(fullName(name), map[string]bool{})
		if err == nil || len(stopped) == 0 {
			err = m.Start(append(slices.DeleteFunc(stopped, func(n string) bool { return n == fullName(name) }), fullName(name))...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Reload has services read their settings again.
func (m *Manager) Reload(names ...string) error {
	var errs []error
	for _, name := range names {
		s := m.get(name)
		for _, n := range m.dependents(s.name, "ReloadPropagatedFrom") {
			errs = append(errs, m.get(n).reload())
		}
		errs = append(errs, s.reload())
	}
	return errors.Join(errs...)
}

// Kill signals the processes of units.
func (m *Manager) Kill(sig syscall.Signal, names ...string) error {
	for _, name := range names {
		s := m.get(name)
		m.mu.Lock()
		r := s.run
		m.mu.Unlock()
		if r == nil {
			return fmt.Errorf("unit %s is not running", s.name)
		}
		for _, pid := range m.members(r) {
			_ = syscall.Kill(pid, sig) // it may be gone
		}
	}
	return nil
}

// ResetFailed forgets that units failed; with no names all.
func (m *Manager) ResetFailed(names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, s := range m.units {
		if len(names) == 0 || slices.ContainsFunc(names, func(want string) bool { return fullName(want) == n }) {
			s.starts, s.restarts = nil, 0
			if s.active == failed {
				s.active, s.sub, s.result = inactive, "dead", ""
			}
		}
	}
}

// generatorTime bounds one program that makes units.
const generatorTime = 10 * time.Second

// ReloadUnits runs the programs that make units of other settings, as
// PostgreSQL's. Those of systemd itself are about machines and are left out.
func (m *Manager) ReloadUnits() {
	dirs := []string{generatedDir, generatedDir + ".early", generatedDir + ".late"}
	for i, dir := range dirs {
		dirs[i] = m.lib.at(dir)
		_ = os.RemoveAll(dirs[i])
		_ = os.MkdirAll(dirs[i], 0o755) // a program that cannot write says so
	}
	var programs []string
	for _, dir := range []string{"/usr/local/lib", "/usr/lib", "/lib", "/etc"} {
		all, _ := filepath.Glob(m.lib.at(filepath.Join(dir, "systemd/system-generators/*")))
		programs = append(programs, all...)
	}
	slices.SortStableFunc(programs, func(a, b string) int { return cmp.Compare(filepath.Base(a), filepath.Base(b)) })
	last := ""
	for _, path := range programs {
		base := filepath.Base(path)
		if base == last || strings.HasPrefix(base, "systemd-") {
			continue
		}
		last = base
		m.generate(path, dirs)
	}
}

func (m *Manager) generate(path string, dirs []string) {
	cmd := exec.Command(path, dirs...)
	cmd.Env = []string{"PATH=" + servicePath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	wait, err := m.cfg.Reaper.Spawn(cmd)
	if err != nil {
		m.cfg.Log.Warn("a generator of units did not start", "program", path, "err", err)
		return
	}
	kill := time.AfterFunc(generatorTime, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	if err := wait(); err != nil {
		m.cfg.Log.Warn("a generator of units failed", "program", path, "err", err)
	}
}

// commandPath is where the command systemctl is; the agent's own name leads to
// the agent's program where a root image has these services.
const commandPath = "/usr/bin/systemctl"

// Present reports whether a root image has the services of this package: its
// systemctl leads here.
func (m *Manager) Present() bool {
	to, err := os.Readlink(m.lib.at(commandPath))
	return err == nil && to == m.cfg.Self
}

// bootedDir is how Debian's programs and others learn that systemctl is there.
const bootedDir = "/run/systemd/system"

// Boot starts what is enabled, after a start of the sandbox from its files. It
// waits for that up to a time; what takes longer goes on.
func (m *Manager) Boot(within time.Duration) {
	if !m.Present() {
		return
	}
	if err := os.MkdirAll(m.lib.at(bootedDir), 0o755); err != nil {
		m.cfg.Log.Warn("no service can be started", "err", err)
		return
	}
	if len(m.lib.atBoot()) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ReloadUnits()
		if err := m.Start(m.lib.atBoot()...); err != nil {
			m.cfg.Log.Warn("not all services started", "err", err)
		}
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Rest stops all services, so that the files of a sandbox can be read while
// nothing changes them, and returns how many. Wake starts those again.
func (m *Manager) Rest() int {
	m.mu.Lock()
	var up []string
	for n, s := range m.units {
		if kindOf(n) == "service" && (s.run != nil || s.active == active || s.restart != nil) {
			up = append(up, n)
		}
	}
	slices.Sort(up)
	m.rested = append(m.rested, up...)
	m.mu.Unlock()
	if err := m.Stop(up...); err != nil {
		m.cfg.Log.Warn("services were not all stopped", "err", err)
	}
	return len(up)
}

// Wake starts what Rest has stopped.
func (m *Manager) Wake() {
	m.mu.Lock()
	up := m.rested
	m.rested = nil
	m.mu.Unlock()
	if err := m.Start(up...); err != nil {
		m.cfg.Log.Warn("a service did not start again", "err", err)
	}
}
