package services

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// settings are what the [Service] section of a unit says.
type settings struct {
	kind                        string // Type
	remain, guess               bool
	exec                        map[string][]command
	user, group                 string
	groups                      []string
	dir                         string
	dirOptional                 bool
	env                         map[string]string
	envFiles                    []string
	pidFile                     string
	startWithin, stopWithin     time.Duration // 0 for ever
	restart                     string
	pause, pauseMost            time.Duration
	steps                       int
	burst                       int
	interval                    time.Duration
	kill                        string // KillMode
	signal                      syscall.Signal
	sendKill, sendHup           bool
	success, never, always      []string // exit statuses and signals
	dirs                        []ownDir
	preserve                    bool
	stdin, stdout, stderr, name string
	wrap                        []string // what the agent does as the process before it becomes the program
}

// ownDir is a directory that is made for a service.
type ownDir struct {
	path, variable string
	mode           os.FileMode
	runtime        bool
}

const (
	startTimeout = 90 * time.Second
	stopTimeout  = 90 * time.Second
	restartPause = 100 * time.Millisecond
	startBurst   = 5
	startWindow  = 10 * time.Second
)

var execKeys = []string{"ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecStop", "ExecStopPost"}

// service reads the settings of a service.
func (u *unit) service() (settings, error) {
	get := func(key string) string { return u.expand(u.set.last("Service", key)) }
	c := settings{
		kind: get("Type"), remain: isYes(get("RemainAfterExit")), guess: get("GuessMainPID") == "" || isYes(get("GuessMainPID")),
		exec: map[string][]command{}, user: get("User"), group: get("Group"),
		restart: get("Restart"), kill: get("KillMode"), pidFile: get("PIDFile"),
		preserve: isYes(get("RuntimeDirectoryPreserve")) || get("RuntimeDirectoryPreserve") == "restart",
		stdin:    get("StandardInput"), stdout: get("StandardOutput"), stderr: get("StandardError"), name: get("SyslogIdentifier"),
		sendKill: get("SendSIGKILL") == "" || isYes(get("SendSIGKILL")), sendHup: isYes(get("SendSIGHUP")),
	}
	for _, key := range execKeys {
		all, err := commands(u.set["Service"][key], u.expand)
		if err != nil {
			return c, fmt.Errorf("%s: %w", key, err)
		}
		c.exec[key] = all
	}
	for _, w := range u.set.words("Service", "SupplementaryGroups") {
		c.groups = append(c.groups, u.expand(w))
	}
	c.dir, c.dirOptional = strings.CutPrefix(get("WorkingDirectory"), "-")
	if c.dirOptional = strings.HasPrefix(get("WorkingDirectory"), "-"); !c.dirOptional {
		c.dir = get("WorkingDirectory")
	}
	c.env = map[string]string{}
	for _, w := range u.set.words("Service", "Environment") {
		if k, v, ok := strings.Cut(u.expand(w), "="); ok && isName(k) {
			c.env[k] = v
		}
	}
	for _, v := range u.set["Service"]["EnvironmentFile"] {
		c.envFiles = append(c.envFiles, u.expand(v))
	}
	if c.pidFile != "" && !filepath.IsAbs(c.pidFile) {
		c.pidFile = filepath.Join("/run", c.pidFile)
	}
	if c.kind == "" {
		c.kind = "simple"
		if len(c.exec["ExecStart"]) == 0 {
			c.kind = "oneshot"
		}
	}
	if c.kill == "" {
		c.kill = "control-group"
	}
	if c.restart == "" {
		c.restart = "no"
	}
	if err := u.readTimes(&c, get); err != nil {
		return c, err
	}
	if err := c.readSignals(u); err != nil {
		return c, err
	}
	c.readDirs(u, get)
	c.readWrap(get)
	return c, c.check(u)
}

// check says what makes a service impossible.
func (c *settings) check(u *unit) error {
	switch c.kind {
	case "simple", "exec", "forking", "notify", "notify-reload", "dbus", "idle":
		if n := len(c.exec["ExecStart"]); n != 1 {
			return fmt.Errorf("a service of type %s has one ExecStart, not %d", c.kind, n)
		}
	case "oneshot":
		if len(c.exec["ExecStart"]) == 0 && !c.remain && len(c.exec["ExecStop"]) == 0 {
			return fmt.Errorf("it has neither ExecStart nor ExecStop")
		}
	default:
		return fmt.Errorf("unknown Type %q", c.kind)
	}
	if isYes(u.set.last("Service", "DynamicUser")) {
		return fmt.Errorf("it wants an account of its own for each start (DynamicUser), which Cay does not make; name one with User in a drop-in")
	}
	return nil
}

func (u *unit) readTimes(c *settings, get func(string) string) error {
	if both := get("TimeoutSec"); both != "" {
		for _, key := range []string{"TimeoutStartSec", "TimeoutStopSec"} {
			if get(key) == "" {
				u.set.add("Service", key, both)
			}
		}
	}
	read := func(section, key string, without time.Duration) (time.Duration, error) {
		text := u.expand(u.set.last(section, key))
		if text == "" {
			return without, nil
		}
		d, err := span(text)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", key, err)
		}
		return d, nil
	}
	start := startTimeout
	if c.kind == "oneshot" {
		start = 0
	}
	var err error
	for _, t := range []struct {
		to           *time.Duration
		section, key string
		without      time.Duration
	}{
		{&c.startWithin, "Service", "TimeoutStartSec", start},
		{&c.stopWithin, "Service", "TimeoutStopSec", stopTimeout},
		{&c.pause, "Service", "RestartSec", restartPause},
		{&c.pauseMost, "Service", "RestartMaxDelaySec", 0},
		{&c.interval, "Unit", "StartLimitIntervalSec", startWindow},
	} {
		if *t.to, err = read(t.section, t.key, t.without); err != nil {
			return err
		}
	}
	c.burst = startBurst
	for key, to := range map[string]*int{"RestartSteps": &c.steps} {
		if v := get(key); v != "" {
			if *to, err = strconv.Atoi(v); err != nil {
				return fmt.Errorf("%s: %q is no number", key, v)
			}
		}
	}
	if v := u.set.last("Unit", "StartLimitBurst"); v != "" {
		if c.burst, err = strconv.Atoi(v); err != nil {
			return fmt.Errorf("StartLimitBurst: %q is no number", v)
		}
	}
	return nil
}

func (c *settings) readSignals(u *unit) error {
	c.signal = syscall.SIGTERM
	if v := u.set.last("Service", "KillSignal"); v != "" {
		sig, ok := signalOf(v)
		if !ok {
			return fmt.Errorf("KillSignal: unknown signal %q", v)
		}
		c.signal = sig
	}
	c.success = u.set.words("Service", "SuccessExitStatus")
	c.never = u.set.words("Service", "RestartPreventExitStatus")
	c.always = u.set.words("Service", "RestartForceExitStatus")
	return nil
}

func (c *settings) readDirs(u *unit, get func(string) string) {
	for _, d := range []struct{ key, base, variable string }{
		{"RuntimeDirectory", "/run", "RUNTIME_DIRECTORY"}, {"StateDirectory", "/var/lib", "STATE_DIRECTORY"},
		{"CacheDirectory", "/var/cache", "CACHE_DIRECTORY"}, {"LogsDirectory", "/var/log", "LOGS_DIRECTORY"},
		{"ConfigurationDirectory", "/etc", "CONFIGURATION_DIRECTORY"},
	} {
		mode := os.FileMode(0o755)
		if n, err := strconv.ParseUint(get(d.key+"Mode"), 8, 12); err == nil {
			mode = os.FileMode(n & 0o777)
		}
		for _, w := range u.set.words("Service", d.key) {
			path, _, _ := strings.Cut(u.expand(w), ":")
			path = filepath.Join(d.base, filepath.Clean("/"+path))
			if path != d.base {
				c.dirs = append(c.dirs, ownDir{path, d.variable, mode, d.key == "RuntimeDirectory"})
			}
		}
	}
}

// readWrap collects what a process must do to itself.
func (c *settings) readWrap(get func(string) string) {
	if v := get("UMask"); v != "" {
		if _, err := strconv.ParseUint(v, 8, 12); err == nil {
			c.wrap = append(c.wrap, "umask="+v)
		}
	}
	if isYes(get("NoNewPrivileges")) {
		c.wrap = append(c.wrap, "no-new-privileges=1")
	}
	for name := range limits {
		if v := get("Limit" + strings.ToUpper(name)); v != "" {
			c.wrap = append(c.wrap, name+"="+v)
		}
	}
	slices.Sort(c.wrap)
}

// limits are the resource limits that a unit may set and a sandbox has.
var limits = map[string]int{"nofile": unix.RLIMIT_NOFILE, "core": unix.RLIMIT_CORE, "nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK, "memlock": unix.RLIMIT_MEMLOCK}

func isYes(s string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(s))
}

// units of time, as systemd.time(7) has them.
var spans = map[string]time.Duration{
	"us": time.Microsecond, "usec": time.Microsecond, "µs": time.Microsecond, "ms": time.Millisecond, "msec": time.Millisecond,
	"": time.Second, "s": time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "hours": time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
}

// span reads a length of time; 0 is for ever.
func span(s string) (time.Duration, error) {
	if s == "infinity" {
		return 0, nil
	}
	var total time.Duration
	rest := strings.ReplaceAll(s, " ", "")
	if rest == "" {
		return 0, fmt.Errorf("%q is no length of time", s)
	}
	for rest != "" {
		n := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if n < 0 {
			n = len(rest)
		}
		number, err := strconv.ParseFloat(rest[:n], 64)
		rest = rest[n:]
		end := strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' })
		if end < 0 {
			end = len(rest)
		}
		unit, ok := spans[rest[:end]]
		if err != nil || !ok || number*float64(unit) > float64(1<<62) {
			return 0, fmt.Errorf("%q is no length of time", s)
		}
		total += time.Duration(number * float64(unit))
		rest = rest[end:]
	}
	return max(total, 0), nil
}

// signalOf finds a signal by its name, with or without SIG, or its number.
func signalOf(s string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), true
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	return sig, sig != 0
}
