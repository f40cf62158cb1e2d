package services

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/inside/agent/life"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

// activation is one life of a service, from its start to its end.
type activation struct {
	id      string
	set     settings
	account account
	notify  *notifier

	// Guarded by the manager's mutex.
	sessions []int
	main     *reap.Child
	pid      int // of main, or of one that is no child
	over     bool
}

// pollPause is between two looks at what no event tells.
const pollPause = 20 * time.Millisecond

func (s *state) mainPID(r *activation) int {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return r.pid
}

// failure is an end of a service that is none of its own will.
type failure struct {
	result string // systemd's word for it
	text   string
}

func (f *failure) Error() string { return f.text }

// start starts a unit. Its operations are locked.
func (s *state) start() error {
	u := s.m.lib.load(s.name)
	s.m.mu.Lock()
	if s.restart != nil {
		s.restart.Stop()
		s.restart = nil
	}
	up := s.active == active || s.active == reloading
	if !up {
		s.unit = u
	}
	s.m.mu.Unlock()
	switch {
	case up:
		return nil
	case slices.Contains(always, s.name) || slices.Contains(passive, u.kind):
		s.set(active, "active")
		return nil
	case u.load == notFound:
		return fmt.Errorf("Unit %s not found.", s.name) //nolint:staticcheck // the words of systemctl
	case u.load == masked:
		return fmt.Errorf("Unit %s is masked.", s.name) //nolint:staticcheck // the words of systemctl
	case u.load == badUnit:
		return fmt.Errorf("unit %s cannot be read: %w", s.name, u.err)
	case isMachine(s.name):
		s.note("%s manages what is Cay's in a sandbox: it is not started.", s.name)
		return nil
	}
	if err := unsupported(s.name); err != nil {
		return err
	}
	if unmet := s.m.unmet(u, "Condition"); unmet != "" {
		s.note("%s - %s was skipped because of an unmet condition (%s).", s.name, u.description(), unmet)
		return nil
	}
	if unmet := s.m.unmet(u, "Assert"); unmet != "" {
		return s.fail(&failure{"assert", "assertion failed: " + unmet}, nil)
	}
	if u.kind == "target" {
		s.set(active, "active")
		return nil
	}
	c, err := u.service()
	if err != nil {
		return s.fail(&failure{"resources", err.Error()}, nil)
	}
	if s.tooOften(c) {
		return s.fail(&failure{"start-limit-hit", "it was started too often in a short time"}, nil)
	}
	return s.activate(u, c)
}

// tooOften counts a start.
func (s *state) tooOften(c settings) bool {
	if c.burst <= 0 || c.interval <= 0 {
		return false
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	now := time.Now()
	s.starts = slices.DeleteFunc(s.starts, func(t time.Time) bool { return now.Sub(t) > c.interval })
	if len(s.starts) >= c.burst {
		return true
	}
	s.starts = append(s.starts, now)
	return false
}

func (s *state) activate(u *unit, c settings) error {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	r := &activation{id: hex.EncodeToString(id), set: c}
	var err error
	if r.account, err = s.m.account(&c); err != nil {
		return s.fail(&failure{"resources", err.Error()}, nil)
	}
	if err := s.m.makeDirs(&c, r.account); err != nil {
		return s.fail(&failure{"resources", err.Error()}, r)
	}
	if c.kind == "notify" || c.kind == "notify-reload" {
		if r.notify, err = listenNotify(s, r); err != nil {
			return s.fail(&failure{"resources", err.Error()}, r)
		}
	}
	s.m.mu.Lock()
	s.run, s.result, s.said = r, "", ""
	s.m.mu.Unlock()
	s.set(activating, "start")
	s.note("Starting %s - %s...", s.name, u.description())
	limit := newDeadline(c.startWithin)
	defer limit.stop()
	skipped, err := s.bringUp(r, limit)
	switch {
	case err != nil:
		return s.fail(err, r)
	case skipped:
		s.close(r)
		s.set(inactive, "dead")
		return nil
	}
	if c.kind == "oneshot" && !c.remain {
		_ = s.runAll(r, "ExecStopPost", nil, newDeadline(c.stopWithin)) // the journal has it
		s.finishOff(r)
		s.close(r)
		s.set(inactive, "dead")
		s.note("Finished %s - %s.", s.name, u.description())
		return nil
	}
	sub := "running"
	if s.mainPID(r) == 0 {
		sub = "exited"
	}
	s.set(active, sub)
	s.note("Started %s - %s.", s.name, u.description())
	s.m.mu.Lock()
	main := r.main
	s.m.mu.Unlock()
	if main != nil {
		go s.watch(r, main)
	}
	return nil
}

// bringUp runs a service's programs up to the point at which it counts as up.
func (s *state) bringUp(r *activation, limit *deadline) (skipped bool, err error) {
	for _, c := range r.set.exec["ExecCondition"] {
		if err := s.control(r, c, nil, limit); err != nil {
			var end *exitError
			if errors.As(err, &end) && end.status.Exited() && end.status.ExitStatus() < 255 {
				return true, nil
			}
			return false, err
		}
	}
	if err := s.runAll(r, "ExecStartPre", nil, limit); err != nil {
		return false, err
	}
	switch r.set.kind {
	case "oneshot":
		err = s.runAll(r, "ExecStart", nil, limit)
	case "forking":
		err = s.fork(r, limit)
	default:
		err = s.launch(r, limit)
	}
	if err != nil {
		return false, err
	}
	return false, s.runAll(r, "ExecStartPost", s.mainEnv(r), limit)
}

func (s *state) mainEnv(r *activation) map[string]string {
	if pid := s.mainPID(r); pid > 0 {
		return map[string]string{"MAINPID": strconv.Itoa(pid)}
	}
	return nil
}

// launch starts the main process of a service that stays in it.
func (s *state) launch(r *activation, limit *deadline) error {
	child, err := s.begin(r, r.set.exec["ExecStart"][0], nil)
	if err != nil {
		return &failure{"exit-code", err.Error()}
	}
	s.setMain(r, child, child.Pid)
	if r.notify == nil {
		return nil
	}
	for {
		s.m.mu.Lock()
		main := r.main
		s.m.mu.Unlock()
		var done <-chan struct{}
		if main != nil {
			done = main.Done()
		}
		select {
		case <-r.notify.ready:
			return nil
		case <-r.notify.moved: // another process is the main one
		case <-done:
			select {
			case <-r.notify.ready:
				return nil
			default:
			}
			return &failure{"protocol", "it ended before it said that it is ready: " + how(main.Status())}
		case <-limit.over:
			return &failure{"timeout", fmt.Sprintf("it did not say within %s that it is ready", r.set.startWithin)}
		}
	}
}

func (s *state) setMain(r *activation, child *reap.Child, pid int) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	r.main, r.pid = child, pid
}

// fork runs a program that leaves the service behind it, and finds that.
func (s *state) fork(r *activation, limit *deadline) error {
	if r.set.pidFile != "" {
		_ = os.Remove(s.m.lib.at(r.set.pidFile)) // one of a life before, whose number may be another's now
	}
	if err := s.control(r, r.set.exec["ExecStart"][0], nil, limit); err != nil {
		return err
	}
	if r.set.pidFile == "" {
		return s.guess(r)
	}
	for {
		if pid := readPID(s.m.lib.at(r.set.pidFile)); pid > 1 {
			if err := s.adopt(r, pid); err == nil {
				return nil
			}
		}
		if r.set.exec["ExecStart"][0].ignore && len(s.m.members(r)) == 0 {
			return nil // it is allowed not to be there
		}
		select {
		case <-limit.over:
			return &failure{"protocol", "no process of it is named in " + r.set.pidFile}
		case <-time.After(pollPause):
		}
		if len(s.m.members(r)) == 0 && readPID(s.m.lib.at(r.set.pidFile)) == 0 {
			return &failure{"protocol", "it left no process behind"}
		}
	}
}

// guess takes the oldest process that a program left for the service.
func (s *state) guess(r *activation) error {
	if !r.set.guess {
		return nil
	}
	all := s.m.members(r)
	for _, pid := range all {
		if s.adopt(r, pid) == nil {
			return nil
		}
	}
	if len(all) == 0 && !r.set.remain && !r.set.exec["ExecStart"][0].ignore {
		return &failure{"protocol", "it left no process behind"}
	}
	return nil
}

func (s *state) adopt(r *activation, pid int) error {
	child, err := s.m.cfg.Reaper.Adopt(pid)
	if err != nil {
		return err
	}
	s.setMain(r, child, pid)
	return nil
}

func readPID(path string) int {
	text, err := os.ReadFile(path)
	if err != nil || len(text) > 64 {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text))) // else it is none
	return pid
}

// exitError is how a program ended.
type exitError struct {
	what   string
	status syscall.WaitStatus
}

func (e *exitError) Error() string { return e.what + ": " + how(e.status) }

func how(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal " + status.Signal().String()
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}

// runAll runs the programs of a setting one after the other.
func (s *state) runAll(r *activation, key string, env map[string]string, limit *deadline) error {
	for _, c := range r.set.exec[key] {
		if err := s.control(r, c, env, limit); err != nil {
			return err
		}
	}
	return nil
}

// control runs a program to its end.
func (s *state) control(r *activation, c command, env map[string]string, limit *deadline) error {
	child, err := s.begin(r, c, env)
	if err != nil {
		if c.ignore {
			return nil
		}
		return &failure{"exit-code", err.Error()}
	}
	select {
	case <-child.Done():
	case <-limit.over:
		_ = child.Signal(syscall.SIGKILL) // it may be gone
		<-child.Done()
		return &failure{"timeout", filepath.Base(c.path) + " took too long"}
	}
	status := child.Status()
	if c.ignore || status.Exited() && status.ExitStatus() == 0 || r.set.kind == "oneshot" && listed(r.set.success, status) {
		return nil
	}
	s.note("%s: Control process exited, %s", s.name, how(status))
	return &exitError{filepath.Base(c.path), status}
}

// fail ends what has begun of a start and says why.
func (s *state) fail(err error, r *activation) error {
	var known *failure
	result := "exit-code"
	if errors.As(err, &known) {
		result = known.result
	}
	if r != nil {
		_ = s.runAll(r, "ExecStopPost", s.mainEnv(r), newDeadline(r.set.stopWithin)) // the first error counts
		s.finishOff(r)
		s.close(r)
	}
	s.m.mu.Lock()
	s.result = result
	s.m.mu.Unlock()
	s.set(failed, "failed")
	s.note("%s: Failed with result '%s': %v", s.name, result, err)
	if r != nil && result != "start-limit-hit" {
		s.again(r, false, 0)
	}
	return fmt.Errorf("%s failed to start: %w\nSee \"systemctl status %s\" and \"journalctl -u %s\" for details.", s.name, err, s.name, s.name) //nolint:staticcheck // the words of systemctl
}

// close forgets an activation.
func (s *state) close(r *activation) {
	if r.notify != nil {
		r.notify.conn.Close()
	}
	s.m.dropDirs(&r.set)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	r.over = true
	if s.run == r {
		s.run = nil
	}
}

// watch waits for the end of a main process that no stop has asked for.
func (s *state) watch(r *activation, main *reap.Child) {
	<-main.Done()
	s.op.Lock()
	defer s.op.Unlock()
	s.m.mu.Lock()
	over, moved := r.over, r.main != main
	status := main.Status()
	if !over && !moved {
		s.exitCode, s.exited, r.pid = status.ExitStatus(), main.Pid, 0
	}
	s.m.mu.Unlock()
	if over || moved {
		return
	}
	if s.follow(r, main.Pid) {
		return
	}
	s.note("%s: Main process exited, %s", s.name, how(status))
	good := clean(r.set, status)
	if r.set.remain && good {
		s.set(active, "exited")
		return
	}
	_ = s.runAll(r, "ExecStopPost", nil, newDeadline(r.set.stopWithin)) // the service is over anyway
	s.finishOff(r)
	s.close(r)
	if good {
		s.set(inactive, "dead")
	} else {
		s.m.mu.Lock()
		s.result = "exit-code"
		if status.Signaled() {
			s.result = "signal"
		}
		s.m.mu.Unlock()
		s.set(failed, "failed")
		s.note("%s: Failed with result '%s'.", s.name, s.result)
	}
	s.again(r, good, status)
	for _, n := range s.m.dependents(s.name, "BindsTo") {
		go func() { _ = s.m.Stop(n) }() // it is bound, not needed
	}
}

// follow takes the process that the PID file names after the end of the main one:
// nginx puts another in its place when it is upgraded.
func (s *state) follow(r *activation, ended int) bool {
	if r.set.pidFile == "" {
		return false
	}
	pid := readPID(s.m.lib.at(r.set.pidFile))
	if pid < 2 || pid == ended || s.adopt(r, pid) != nil {
		return false
	}
	s.m.mu.Lock()
	main := r.main
	s.m.mu.Unlock()
	s.note("%s: Supervising process %d, which the PID file names now.", s.name, pid)
	go s.watch(r, main)
	return true
}

// clean reports whether a main process ended as it may.
func clean(c settings, status syscall.WaitStatus) bool {
	switch {
	case status.Exited() && status.ExitStatus() == 0:
		return true
	case status.Signaled() && slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE}, status.Signal()):
		return c.kind != "oneshot"
	}
	return listed(c.success, status)
}

// listed reports whether a list of statuses and signals has one.
func listed(list []string, status syscall.WaitStatus) bool {
	return slices.ContainsFunc(list, func(text string) bool {
		if status.Exited() {
			return text == strconv.Itoa(status.ExitStatus())
		}
		sig, ok := signalOf(text)
		return ok && strings.HasPrefix(strings.ToUpper(text), "SIG") && sig == status.Signal()
	})
}

// again plans a restart where the unit asks for one.
func (s *state) again(r *activation, good bool, status syscall.WaitStatus) {
	c := r.set
	wanted := false
	switch c.restart {
	case "always":
		wanted = true
	case "on-success":
		wanted = good
	case "on-failure":
		wanted = !good
	case "on-abnormal", "on-abort":
		wanted = !good && status.Signaled()
	}
	if listed(c.never, status) && status != 0 {
		wanted = false
	}
	if listed(c.always, status) && status != 0 {
		wanted = true
	}
	if !wanted {
		return
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	pause := c.pause
	if c.steps > 0 && c.pauseMost > pause { // from one to the other by equal parts
		pause += (c.pauseMost - c.pause) * time.Duration(min(s.restarts, c.steps)) / time.Duration(c.steps)
	}
	s.restarts++
	s.active, s.sub = activating, "auto-restart"
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		s.op.Lock()
		defer s.op.Unlock()
		s.m.mu.Lock()
		mine := s.restart == timer
		s.m.mu.Unlock()
		if mine { // else a start or a stop was first
			_ = s.start() // the journal has why not
		}
	})
	s.restart = timer
}

// stop ends a unit. Its operations are locked.
func (s *state) stop() {
	s.m.mu.Lock()
	if s.restart != nil {
		s.restart.Stop()
		s.restart = nil
		s.active, s.sub = inactive, "dead"
	}
	r := s.run
	s.m.mu.Unlock()
	if r == nil {
		if s.is(active) {
			s.set(inactive, "dead")
		}
		return
	}
	s.set(deactivating, "stop")
	s.note("Stopping %s...", s.name)
	limit := newDeadline(r.set.stopWithin)
	defer limit.stop()
	err := s.runAll(r, "ExecStop", s.mainEnv(r), limit)
	late := s.terminate(r, limit)
	_ = s.runAll(r, "ExecStopPost", nil, newDeadline(r.set.stopWithin)) // it is stopped anyway
	s.finishOff(r)
	if r.set.pidFile != "" {
		_ = os.Remove(s.m.lib.at(r.set.pidFile)) // the service may have
	}
	s.close(r)
	if late {
		s.m.mu.Lock()
		s.result = "timeout"
		s.m.mu.Unlock()
		s.set(failed, "failed")
		s.note("%s: Failed with result 'timeout'.", s.name)
		return
	}
	s.set(inactive, "dead")
	if err != nil {
		s.note("%s: %v", s.name, err)
	}
	s.note("Stopped %s.", s.name)
}

// terminate asks the processes of a service to end, and kills those that do not
// in time, where the unit wants that.
func (s *state) terminate(r *activation, limit *deadline) (late bool) {
	if r.set.kill == "none" {
		return false
	}
	signal := func(sig syscall.Signal, all bool) {
		if pid := s.mainPID(r); pid > 0 {
			_ = syscall.Kill(pid, sig) // it may be gone
		}
		if all {
			for _, pid := range s.m.members(r) {
				_ = syscall.Kill(pid, sig)
			}
		}
	}
	all := r.set.kill == "control-group"
	signal(r.set.signal, all)
	if r.set.sendHup {
		signal(syscall.SIGHUP, all)
	}
	for s.alive(r, all) {
		select {
		case <-limit.over:
			if r.set.sendKill {
				signal(syscall.SIGKILL, r.set.kill != "process")
			}
			return true
		case <-s.mainDone(r):
		case <-time.After(pollPause):
		}
	}
	return false
}

// mainDone is closed when the main process has ended; nil while it is none.
func (s *state) mainDone(r *activation) <-chan struct{} {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if r.main == nil {
		return nil
	}
	select {
	case <-r.main.Done():
		return nil // it has no more to tell
	default:
		return r.main.Done()
	}
}

func (s *state) alive(r *activation, all bool) bool {
	if s.mainDone(r) != nil {
		return true
	}
	return all && len(s.m.members(r)) > 0
}

// finishOff kills what is left of a service after its end.
func (s *state) finishOff(r *activation) {
	if r.set.kill == "none" || r.set.kill == "process" || !r.set.sendKill {
		return
	}
	for range 50 {
		left := s.m.members(r)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
		time.Sleep(pollPause)
	}
}

// reload runs ExecReload.
func (s *state) reload() error {
	s.op.Lock()
	defer s.op.Unlock()
	s.m.mu.Lock()
	r := s.run
	s.m.mu.Unlock()
	switch {
	case r == nil || !s.is(active):
		return fmt.Errorf("%s is not active, cannot reload", s.name)
	case len(r.set.exec["ExecReload"]) == 0 && r.set.kind != "notify-reload":
		return fmt.Errorf("job type reload is not applicable for unit %s", s.name)
	}
	s.set(reloading, "reload")
	limit := newDeadline(r.set.startWithin)
	defer limit.stop()
	var err error
	if pid := s.mainPID(r); len(r.set.exec["ExecReload"]) == 0 && pid > 0 {
		err = syscall.Kill(pid, syscall.SIGHUP)
	} else {
		err = s.runAll(r, "ExecReload", s.mainEnv(r), limit)
	}
	sub := "running"
	if s.mainPID(r) == 0 {
		sub = "exited"
	}
	s.set(active, sub)
	if err != nil {
		s.note("Reload failed for %s: %v", s.name, err)
		return fmt.Errorf("%s did not reload: %w", s.name, err)
	}
	s.note("Reloaded %s.", s.name)
	return nil
}

// deadline is closed when a sandbox has run for a time since.
type deadline struct {
	over chan struct{}
	life *life.Life
}

func newDeadline(d time.Duration) *deadline {
	t := &deadline{over: make(chan struct{})}
	if d > 0 {
		t.life = life.New(d, func() { close(t.over) })
	}
	return t
}

func (t *deadline) stop() { t.life.Stop() }
