package services

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Commands are the names by which the agent's program is a command of this
// package.
var Commands = []string{"systemctl", "journalctl"}

// options are those of systemctl that mean something here.
type options struct {
	verb       string
	units      []string
	quiet, now bool
	noBlock    bool
	value, all bool
	noLegend   bool
	failed     bool
	properties []string
	types      []string
	states     []string
	signal     string
	user       bool
	lines      int
}

// flags that take a value in the next argument where it is not joined with "=".
var valued = map[string]string{
	"-p": "--property", "-t": "--type", "-s": "--signal", "-n": "--lines", "-o": "--output", "-H": "--host", "-M": "--machine", "-P": "--property",
	"--property": "", "--type": "", "--state": "", "--signal": "", "--lines": "", "--output": "", "--root": "", "--job-mode": "",
	"--host": "", "--machine": "", "--kill-whom": "", "--kill-who": "", "--kill-value": "", "--what": "", "--message": "", "--preset-mode": "",
}

func parseOptions(args []string) (options, error) {
	o := options{lines: 10}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			o.positional(args[i+1:]...)
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			o.positional(arg)
			continue
		}
		name, value, joined := strings.Cut(arg, "=")
		if !strings.HasPrefix(arg, "--") && len(arg) > 2 && !joined {
			if _, ok := valued[arg[:2]]; ok {
				name, value, joined = arg[:2], arg[2:], true
			}
		}
		if name == "-P" {
			o.value = true
		}
		if long, ok := valued[name]; ok {
			if long != "" {
				name = long
			}
			if !joined {
				if i++; i == len(args) {
					return o, fmt.Errorf("option %s needs a value", arg)
				}
				value = args[i]
			}
		}
		if err := o.option(name, value); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (o *options) positional(args ...string) {
	for _, arg := range args {
		if o.verb == "" {
			o.verb = arg
		} else {
			o.units = append(o.units, arg)
		}
	}
}

func (o *options) option(name, value string) error {
	switch name {
	case "-q", "--quiet":
		o.quiet = true
	case "--now":
		o.now = true
	case "--no-block":
		o.noBlock = true
	case "--value":
		o.value = true
	case "-a", "--all":
		o.all = true
	case "--no-legend", "--legend":
		o.noLegend = name == "--no-legend" || !isYes(value)
	case "--failed":
		o.failed = true
	case "--property":
		o.properties = append(o.properties, strings.Split(value, ",")...)
	case "--type":
		o.types = append(o.types, strings.Split(value, ",")...)
	case "--state":
		o.states = append(o.states, strings.Split(value, ",")...)
	case "--signal":
		o.signal = value
	case "--user", "--global", "--machine", "--host":
		o.user = true
	case "--lines":
		o.lines, _ = strconv.Atoi(value) // else none
	case "--version":
		o.verb = "version"
	case "-h", "--help":
		o.verb = "help"
	}
	return nil // others change nothing that a sandbox has
}

// version is what programs that ask for systemd's are told: that of Debian 12,
// whose behaviour the commands have.
const version = "systemd 252 (252-cay)\nServices of a Cay sandbox, which has no systemd.\n"

const usage = `systemctl of a Cay sandbox: its agent runs services by systemd's unit files.

systemctl start|stop|restart|try-restart|reload|reload-or-restart|kill UNIT…
systemctl status|show|cat|is-active|is-failed|is-enabled UNIT…
systemctl enable|disable|reenable|mask|unmask [--now] UNIT…
systemctl list-units|list-unit-files|daemon-reload|reset-failed
`

// Systemctl is the command of that name; it returns the exit status.
func Systemctl(args []string, out, errs io.Writer) int {
	o, err := parseOptions(args)
	if err != nil {
		fmt.Fprintln(errs, "systemctl:", err)
		return 1
	}
	c := &control{o: o, out: out, errs: errs}
	if o.user {
		fmt.Fprintln(errs, "Failed to connect to bus: a sandbox has services of the system only, not of users.")
		return 1
	}
	return c.run()
}

// control is one run of systemctl.
type control struct {
	o         options
	out, errs io.Writer
	lib       library
}

func (c *control) say(format string, args ...any) {
	if !c.o.quiet {
		fmt.Fprintf(c.errs, format+"\n", args...)
	}
}

func (c *control) run() int {
	if c.o.verb != "list-units" && c.o.verb != "" && c.o.verb != "list-unit-files" && c.o.verb != "reset-failed" {
		c.o.units = c.named()
	}
	switch c.o.verb {
	case "start", "stop", "restart", "reload", "reset-failed":
		return c.change(c.o.verb, c.o.units)
	case "condrestart", "try-restart", "force-reload", "try-reload-or-restart", "reload-or-restart", "reload-or-try-restart":
		return c.maybe()
	case "daemon-reload", "daemon-reexec":
		return c.change("daemon-reload", nil)
	case "kill":
		sig, ok := signalOf(c.o.signal)
		if c.o.signal == "" {
			sig, ok = 15, true
		}
		if !ok {
			c.say("Failed to parse signal string %s.", c.o.signal)
			return 1
		}
		return c.ask(request{Verb: "kill", Units: c.o.units, Signal: int(sig)})
	case "enable", "disable", "reenable", "mask", "unmask", "preset", "preset-all", "revert", "link":
		return c.files()
	case "is-enabled":
		return c.isEnabled()
	case "is-active":
		return c.isState(3, active, reloading)
	case "is-failed":
		return c.isState(1, failed)
	case "status":
		return c.status()
	case "show":
		return c.show()
	case "cat":
		return c.cat()
	case "", "list-units":
		return c.list()
	case "list-unit-files":
		return c.listFiles()
	case "list-sockets", "list-timers", "list-jobs", "list-machines":
		return 0 // there are none
	case "is-system-running":
		return c.isRunning()
	case "get-default":
		fmt.Fprintln(c.out, "multi-user.target")
		return 0
	case "version", "--version":
		fmt.Fprint(c.out, version)
		return 0
	case "help":
		fmt.Fprint(c.out, usage)
		return 0
	case "set-default", "import-environment", "set-environment", "unset-environment", "show-environment", "log-level", "log-target":
		return 0 // it has no effect here
	case "runlevel":
		fmt.Fprintln(c.out, "N 5")
		return 0
	case "poweroff", "reboot", "halt", "shutdown", "telinit", "suspend", "hibernate", "kexec", "rescue", "emergency", "isolate", "switch-root", "exit":
		c.say("Failed to %s: a sandbox is ended, paused and resumed from outside: cay sandbox kill, pause, resume.", c.o.verb)
		return 1
	}
	c.say("Unknown command verb %s.", c.o.verb)
	return 1
}

// named are the units of the command line, with patterns filled in.
func (c *control) named() []string {
	var out []string
	for _, name := range c.o.units {
		if !strings.ContainsAny(name, "*?[") {
			out = append(out, fullName(path.Base(name)))
			continue
		}
		r, _ := ask(request{Verb: "list"}) // without the agent there are none
		for _, u := range r.Units {
			if ok, _ := path.Match(name, u.Name); ok && u.Active != inactive {
				out = append(out, u.Name)
			}
		}
	}
	return out
}

// unreachable is said where no agent answers: in a directory tree that is made
// with chroot, as a real systemctl says it there.
func (c *control) unreachable(verb string) int {
	c.say("The agent of this sandbox does not answer here, ignoring command '%s'.", verb)
	return 0
}

func (c *control) ask(q request) int {
	q.NoBlock = c.o.noBlock
	r, err := ask(q)
	if err != nil {
		return c.unreachable(q.Verb)
	}
	if r.Error == "" {
		return 0
	}
	if q.Verb == "stop" && strings.HasSuffix(r.Error, "not loaded.") {
		fmt.Fprintf(c.errs, "Failed to stop %s: %s\n", strings.Join(q.Units, " "), r.Error)
		return 5
	}
	fmt.Fprintf(c.errs, "Failed to %s %s: %s\n", q.Verb, strings.Join(q.Units, " "), r.Error) // quiet is about states
	if strings.Contains(r.Error, "not found.") {
		return 5
	}
	return 1
}

func (c *control) change(verb string, units []string) int {
	if len(units) == 0 && verb != "daemon-reload" && verb != "reset-failed" {
		if len(c.o.units) == 0 && verb != "" && slices.ContainsFunc(os.Args, func(a string) bool { return strings.ContainsAny(a, "*?[") }) {
			return 0 // a pattern that no unit has
		}
		c.say("Too few arguments.")
		return 1
	}
	return c.ask(request{Verb: verb, Units: units})
}

// maybe restarts or reloads by what units are doing.
func (c *control) maybe() int {
	r, err := ask(request{Verb: "info", Units: c.o.units})
	if err != nil {
		return c.unreachable(c.o.verb)
	}
	code := 0
	for _, u := range r.Units {
		up := u.Active == active || u.Active == reloading
		verb := "restart"
		if u.CanReload && up && !strings.HasSuffix(c.o.verb, "restart") || u.CanReload && up && strings.Contains(c.o.verb, "reload") {
			verb = "reload"
		}
		if !up && c.o.verb != "reload-or-restart" {
			continue
		}
		code = max(code, c.change(verb, []string{u.Name}))
	}
	return code
}

func (c *control) files() int {
	var err error
	out := c.errs
	if c.o.quiet {
		out = io.Discard
	}
	switch c.o.verb {
	case "enable", "preset":
		err = c.lib.enable(out, c.o.units...)
	case "reenable":
		if err = c.lib.disable(out, c.o.units...); err == nil {
			err = c.lib.enable(out, c.o.units...)
		}
	case "disable":
		err = c.lib.disable(out, c.o.units...)
	case "mask":
		err = c.lib.mask(out, c.o.units...)
	case "unmask":
		err = c.lib.unmask(out, c.o.units...)
	default:
		return 0
	}
	if err != nil {
		c.say("%v", err)
		return 1
	}
	switch {
	case c.o.now && c.o.verb == "enable":
		return c.change("start", c.o.units)
	case c.o.now && (c.o.verb == "disable" || c.o.verb == "mask"):
		return c.change("stop", c.o.units)
	}
	return 0
}

func (c *control) isEnabled() int {
	code := 1
	for _, name := range c.o.units {
		state := c.lib.isEnabled(name)
		if state == notFound {
			c.say("Failed to get unit file state for %s: No such file or directory", name)
			continue
		}
		if !c.o.quiet {
			fmt.Fprintln(c.out, state)
		}
		if slices.Contains([]string{"enabled", "enabled-runtime", "static", "alias", "generated", "indirect"}, state) {
			code = 0
		}
	}
	return code
}

func (c *control) isState(other int, states ...string) int {
	r, err := ask(request{Verb: "info", Units: c.o.units})
	if err != nil {
		return other
	}
	code := other
	for _, u := range r.Units {
		if !c.o.quiet {
			fmt.Fprintln(c.out, u.Active)
		}
		if slices.Contains(states, u.Active) {
			code = 0
		}
	}
	return code
}

func (c *control) isRunning() int {
	r, err := ask(request{Verb: "list"})
	state := "running"
	switch {
	case err != nil:
		state = "offline"
	case slices.ContainsFunc(r.Units, func(u Info) bool { return u.Active == failed }):
		state = "degraded"
	}
	if !c.o.quiet {
		fmt.Fprintln(c.out, state)
	}
	if state == "running" {
		return 0
	}
	return 1
}

func (c *control) status() int {
	q := request{Verb: "info", Units: c.o.units}
	if len(q.Units) == 0 {
		return c.list()
	}
	r, err := ask(q)
	if err != nil {
		c.unreachable("status")
		return 3
	}
	code := 0
	for i, u := range r.Units {
		if u.Load == notFound {
			c.say("Unit %s could not be found.", c.o.units[i])
			code = 4
			continue
		}
		if i > 0 {
			fmt.Fprintln(c.out)
		}
		c.statusOf(u)
		if u.Active != active && u.Active != reloading {
			code = max(code, 3)
		}
	}
	return code
}

// marks are what status begins with.
var marks = map[string]string{active: "●", reloading: "↻", activating: "●", deactivating: "●", failed: "×"}

func (c *control) statusOf(u Info) {
	mark := marks[u.Active]
	if mark == "" {
		mark = "○"
	}
	fmt.Fprintf(c.out, "%s %s - %s\n", mark, u.Name, u.Description)
	file := u.Fragment
	if u.Source != "" {
		file = u.Source
	}
	fmt.Fprintf(c.out, "     Loaded: %s (%s; %s)\n", u.Load, file, u.Enabled)
	if u.Error != "" {
		fmt.Fprintf(c.out, "      Error: %s\n", u.Error)
	}
	for _, d := range u.DropIns {
		fmt.Fprintf(c.out, "    Drop-In: %s\n", d)
	}
	state := u.Active + " (" + u.Sub + ")"
	if u.Active == failed {
		state = u.Active + " (Result: " + u.Result + ")"
	}
	if !u.Since.IsZero() {
		state += " since " + u.Since.Format("Mon 2006-01-02 15:04:05 MST") + "; " + time.Since(u.Since).Round(time.Second).String() + " ago"
	}
	fmt.Fprintf(c.out, "     Active: %s\n", state)
	if u.MainPID > 0 {
		fmt.Fprintf(c.out, "   Main PID: %d (%s)\n", u.MainPID, comm(u.MainPID))
	} else if u.Exited > 0 {
		fmt.Fprintf(c.out, "   Main PID: %d (code=exited, status=%d)\n", u.Exited, u.ExitCode)
	}
	if u.Said != "" {
		fmt.Fprintf(c.out, "     Status: %q\n", u.Said)
	}
	if len(u.Processes) > 0 {
		fmt.Fprintf(c.out, "      Tasks: %d\n", len(u.Processes))
		for i, pid := range u.Processes {
			branch := "├─"
			if i == len(u.Processes)-1 {
				branch = "└─"
			}
			fmt.Fprintf(c.out, "             %s%d %s\n", branch, pid, commandLine(pid))
		}
	}
	lines, err := (&journal{lib: c.lib}).read(u.Name)
	if err != nil || len(lines) == 0 || c.o.lines <= 0 {
		return
	}
	fmt.Fprintln(c.out)
	for _, e := range lines[max(0, len(lines)-c.o.lines):] {
		fmt.Fprintln(c.out, e.short())
	}
}

func comm(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(text))
}

func commandLine(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
}

// properties are what show says of a unit.
func (u Info) properties() map[string]string {
	out := map[string]string{}
	for k, v := range u.Sets {
		out[k] = v
	}
	for k, v := range map[string]string{
		"Id": u.Name, "Names": u.Name, "Description": u.Description, "LoadState": u.Load, "ActiveState": u.Active, "SubState": u.Sub,
		"UnitFileState": u.Enabled, "FragmentPath": u.Fragment, "SourcePath": u.Source, "DropInPaths": strings.Join(u.DropIns, " "),
		"MainPID": strconv.Itoa(u.MainPID), "ExecMainPID": strconv.Itoa(max(u.MainPID, u.Exited)), "ExecMainStatus": strconv.Itoa(u.ExitCode),
		"NRestarts": strconv.Itoa(u.Restarts), "Result": u.Result, "StatusText": u.Said, "Type": u.Type,
		"CanReload": yesNo(u.CanReload), "CanStart": yesNo(unsupported(u.Name) == nil), "CanStop": "yes", "NeedDaemonReload": "no",
		"TasksCurrent": strconv.Itoa(len(u.Processes)), "Triggers": triggers(u),
	} {
		out[k] = v
	}
	if out["Result"] == "" {
		out["Result"] = "success"
	}
	if !u.Since.IsZero() {
		out["StateChangeTimestamp"] = u.Since.Format("Mon 2006-01-02 15:04:05 MST")
		if u.Active == active {
			out["ActiveEnterTimestamp"] = out["StateChangeTimestamp"]
		}
	}
	return out
}

// triggers is the service that a socket or timer would start.
func triggers(u Info) string {
	if u.Kind != "socket" && u.Kind != "timer" && u.Kind != "path" {
		return ""
	}
	for _, key := range []string{"Service", "Unit"} {
		if v := u.Sets[key]; v != "" {
			return v
		}
	}
	return strings.TrimSuffix(u.Name, u.Kind) + "service"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (c *control) show() int {
	if len(c.o.units) == 0 {
		fmt.Fprintln(c.out, "Version=252\nSystemState=running\nVirtualization=container-other")
		return 0
	}
	r, err := ask(request{Verb: "info", Units: c.o.units})
	if err != nil {
		return 1
	}
	for i, u := range r.Units {
		if i > 0 {
			fmt.Fprintln(c.out)
		}
		all := u.properties()
		names := c.o.properties
		if len(names) == 0 {
			names = slices.Sorted(mapKeys(all))
		}
		for _, name := range names {
			value, ok := all[name]
			switch {
			case !ok:
			case c.o.value:
				fmt.Fprintln(c.out, value)
			default:
				fmt.Fprintf(c.out, "%s=%s\n", name, value)
			}
		}
	}
	return 0
}

func (c *control) cat() int {
	code := 0
	for _, name := range c.o.units {
		u := c.lib.load(name)
		if u.path == "" {
			c.say("No files found for %s.", name)
			code = 1
			continue
		}
		for _, file := range append([]string{u.path}, u.extra...) {
			text, err := os.ReadFile(c.lib.at(file))
			if err != nil {
				c.say("%v", err)
				code = 1
				continue
			}
			fmt.Fprintf(c.out, "# %s\n%s\n", file, text)
		}
	}
	return code
}

// wanted reports whether the options let a unit be listed.
func (c *control) wanted(u Info) bool {
	kind := len(c.o.types) == 0 || slices.Contains(c.o.types, u.Kind)
	state := len(c.o.states) == 0 || slices.Contains(c.o.states, u.Active) || slices.Contains(c.o.states, u.Sub) || slices.Contains(c.o.states, u.Load) || slices.Contains(c.o.states, u.Enabled)
	name := len(c.o.units) == 0 || slices.ContainsFunc(c.o.units, func(p string) bool { ok, _ := path.Match(p, u.Name); return ok || fullName(p) == u.Name })
	return kind && state && name && (!c.o.failed || u.Active == failed)
}

func (c *control) list() int {
	r, err := ask(request{Verb: "list"})
	if err != nil {
		return c.unreachable("list-units")
	}
	slices.SortFunc(r.Units, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	w := bufio.NewWriter(c.out)
	defer func() { _ = w.Flush() }() // its reader may have gone
	if !c.o.noLegend {
		fmt.Fprintf(w, "  %-36s %-9s %-10s %-10s %s\n", "UNIT", "LOAD", "ACTIVE", "SUB", "DESCRIPTION")
	}
	n := 0
	for _, u := range r.Units {
		if !c.wanted(u) || u.Active == inactive && !c.o.all && len(c.o.states) == 0 {
			continue
		}
		mark := " "
		if u.Active == failed {
			mark = "●"
		}
		fmt.Fprintf(w, "%s %-36s %-9s %-10s %-10s %s\n", mark, u.Name, u.Load, u.Active, u.Sub, u.Description)
		n++
	}
	if !c.o.noLegend {
		fmt.Fprintf(w, "\n%d loaded units listed.\n", n)
	}
	return 0
}

func (c *control) listFiles() int {
	w := bufio.NewWriter(c.out)
	defer func() { _ = w.Flush() }() // its reader may have gone
	if !c.o.noLegend {
		fmt.Fprintf(w, "%-44s %s\n", "UNIT FILE", "STATE")
	}
	n := 0
	for _, name := range c.lib.all() {
		u := Info{Name: name, Kind: kindOf(name), Enabled: c.lib.isEnabled(name)}
		if !c.wanted(u) {
			continue
		}
		fmt.Fprintf(w, "%-44s %s\n", name, u.Enabled)
		n++
	}
	if !c.o.noLegend {
		fmt.Fprintf(w, "\n%d unit files listed.\n", n)
	}
	return 0
}
