package services

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// short is a line as journalctl shows it.
func (e entry) short() string {
	at, err := time.Parse(journalTime, e.at)
	if err != nil {
		return e.text
	}
	host, _ := os.Hostname() // a name that is not known is empty
	return at.Local().Format("Jan 02 15:04:05") + " " + host + " " + e.text
}

// message is a line's text without its program.
func (e entry) message() string {
	if _, text, ok := strings.Cut(e.text, "]: "); ok {
		return text
	}
	return e.text
}

// logOptions are those of journalctl that mean something here.
type logOptions struct {
	units           []string
	lines           int // -1 for all
	follow, reverse bool
	quiet           bool
	output, grep    string
	since           time.Time
	nothing         string // why there is nothing to show
}

func parseLogOptions(args []string) (logOptions, error) {
	o := logOptions{lines: -1}
	takes := map[string]string{
		"-u": "-u", "--unit": "-u", "-n": "-n", "--lines": "-n", "-o": "-o", "--output": "-o", "-g": "-g", "--grep": "-g", "-S": "-S", "--since": "-S",
		"-t": "", "--identifier": "", "-p": "", "--priority": "", "-U": "", "--until": "", "--user-unit": "", "--vacuum-size": "", "--vacuum-time": "",
	}
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(args[i], "=")
		if !strings.HasPrefix(name, "--") && len(name) > 2 && name[0] == '-' {
			if _, ok := takes[name[:2]]; ok {
				name, value, joined = name[:2], args[i][2:], true
			} else { // letters that stand together, as -xeu NAME
				rest := "-" + name[2:]
				args = slices.Insert(slices.Clone(args), i+1, rest)
				name = name[:2]
			}
		}
		key, takesValue := takes[name]
		if takesValue && !joined {
			next := ""
			if i+1 < len(args) {
				next = args[i+1]
			}
			switch _, err := strconv.Atoi(next); {
			case key == "-n" && err != nil && next != "all": // alone it is ten
				value = "10"
			case i+1 == len(args):
				return o, fmt.Errorf("option %s needs a value", name)
			default:
				i++
				value = next
			}
		}
		if err := o.option(name, key, value); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (o *logOptions) option(name, key, value string) (err error) {
	switch key {
	case "-u":
		o.units = append(o.units, fullName(value))
		return nil
	case "-n":
		if value == "all" {
			o.lines = -1
			return nil
		}
		o.lines, err = strconv.Atoi(value)
		return err
	case "-o":
		o.output = value
		return nil
	case "-g":
		o.grep = value
		return nil
	case "-S":
		o.since, err = parseSince(value, time.Now())
		return err
	}
	switch name {
	case "-f", "--follow":
		o.follow = true
	case "-r", "--reverse":
		o.reverse = true
	case "-q", "--quiet":
		o.quiet = true
	case "-e", "--pager-end":
		if o.lines < 0 {
			o.lines = 1000
		}
	case "-k", "--dmesg":
		o.nothing = "the kernel of a sandbox keeps no log"
	case "--user":
		o.nothing = "a sandbox has services of the system only"
	case "--rotate", "--flush", "--sync", "--update-catalog", "--vacuum-size", "--vacuum-time", "--setup-keys", "--verify", "--disk-usage":
		o.nothing = " "
	}
	return nil
}

// parseSince reads a time, or how long ago.
func parseSince(s string, now time.Time) (time.Time, error) {
	switch s {
	case "today":
		y, m, d := now.Date()
		return time.Date(y, m, d, 0, 0, 0, 0, now.Location()), nil
	case "now":
		return now, nil
	}
	ago, isAgo := strings.CutSuffix(s, " ago")
	if past, ok := strings.CutPrefix(s, "-"); ok {
		ago, isAgo = past, true
	}
	if isAgo {
		d, err := span(ago)
		return now.Add(-d), err
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return now, fmt.Errorf("failed to parse timestamp: %s", s)
}

// followPause is between two looks at files that grow.
const followPause = 250 * time.Millisecond

// Journalctl is the command of that name; it returns the exit status.
func Journalctl(args []string, out, errs io.Writer) int {
	o, err := parseLogOptions(args)
	if err != nil {
		fmt.Fprintln(errs, "journalctl:", err)
		return 1
	}
	if o.nothing != "" {
		if text := strings.TrimSpace(o.nothing); text != "" && !o.quiet {
			fmt.Fprintln(errs, "journalctl:", text)
		}
		return 0
	}
	j := &journal{}
	lines, err := j.chosen(o)
	if err != nil {
		fmt.Fprintf(errs, "journalctl: %v; the journal is root's, try sudo\n", err)
		return 1
	}
	last := ""
	if len(lines) > 0 {
		last = lines[len(lines)-1].at
	}
	if o.lines < 0 && o.follow {
		o.lines = 10
	}
	if o.lines >= 0 {
		lines = lines[max(0, len(lines)-o.lines):]
	}
	if o.reverse {
		slices.Reverse(lines)
	}
	if len(lines) == 0 && !o.follow && !o.quiet {
		fmt.Fprintln(out, "-- No entries --")
	}
	show(out, o, lines)
	for o.follow {
		time.Sleep(followPause)
		lines, err := j.chosen(o)
		if err != nil {
			return 1
		}
		at := last
		lines = slices.DeleteFunc(lines, func(e entry) bool { return e.at <= at })
		if len(lines) > 0 {
			last = lines[len(lines)-1].at
		}
		show(out, o, lines)
	}
	return 0
}

func show(out io.Writer, o logOptions, lines []entry) {
	w := bufio.NewWriter(out)
	defer func() { _ = w.Flush() }() // its reader may have gone
	for _, e := range lines {
		switch o.output {
		case "cat":
			fmt.Fprintln(w, e.message())
		case "json":
			text, _ := json.Marshal(map[string]string{"UNIT": e.unit, "MESSAGE": e.message(), "TIME": e.at}) // texts
			fmt.Fprintf(w, "%s\n", text)
		case "short-iso":
			host, _ := os.Hostname()
			fmt.Fprintln(w, strings.Replace(e.at, "Z", "+00:00", 1), host, e.text)
		default:
			fmt.Fprintln(w, e.short())
		}
	}
}

// chosen reads the lines that the options ask for, in the order of their times.
func (j *journal) chosen(o logOptions) ([]entry, error) {
	names, err := j.units()
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, name := range names {
		if len(o.units) > 0 && !slices.ContainsFunc(o.units, func(want string) bool {
			ok, _ := path.Match(want, name)
			return ok || want == name || j.lib.load(want).name == name
		}) {
			continue
		}
		lines, err := j.read(name)
		if err != nil {
			return nil, err
		}
		out = append(out, lines...)
	}
	since := o.since.UTC().Format(journalTime)
	out = slices.DeleteFunc(out, func(e entry) bool {
		return !o.since.IsZero() && e.at < since || o.grep != "" && !strings.Contains(e.text, o.grep)
	})
	slices.SortStableFunc(out, func(a, b entry) int { return strings.Compare(a.at, b.at) })
	return out, nil
}
