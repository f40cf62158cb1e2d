package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type commandIn struct {
	Command    string            `json:"command" jsonschema:"a line for bash"`
	Dir        string            `json:"cwd,omitempty" jsonschema:"where it runs; the user's home when left out"`
	Env        map[string]string `json:"env,omitempty" jsonschema:"environment variables besides the sandbox's"`
	User       string            `json:"user,omitempty" jsonschema:"root, or another account; the usual one when left out"`
	Timeout    int               `json:"timeout,omitempty" jsonschema:"seconds until it is ended; 120 when left out, at most 3600. Not of commands in the background"`
	Background bool              `json:"background,omitempty" jsonschema:"return at once with a process_id, for servers and long work; process_output reads what it prints"`
	target
}

type commandOut struct {
	Sandbox  string `json:"sandbox_id"`
	Process  string `json:"process_id,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Status   string `json:"status"`
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
	Cut      bool   `json:"cut,omitempty"`
}

type outputIn struct {
	Process string `json:"process_id" jsonschema:"as execute_command returned it"`
	Cursor  int64  `json:"cursor,omitempty" jsonschema:"where to read on: next_cursor of the call before; 0 is the beginning"`
	Wait    int    `json:"wait,omitempty" jsonschema:"seconds to wait for output or the end, if there is nothing new; at most 60"`
	target
}

type outputOut struct {
	Sandbox  string `json:"sandbox_id"`
	Running  bool   `json:"running"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Output   string `json:"output"`
	Next     int64  `json:"next_cursor"`
	Size     int64  `json:"size"`
}

type inputIn struct {
	Process string `json:"process_id" jsonschema:"as execute_command returned it"`
	Input   string `json:"input,omitempty" jsonschema:"text for its standard input; end lines with a newline"`
	Close   bool   `json:"close,omitempty" jsonschema:"end its standard input afterwards"`
	target
}

type signalIn struct {
	Process string `json:"process_id" jsonschema:"as execute_command returned it"`
	Signal  string `json:"signal,omitempty" jsonschema:"TERM (when left out), KILL, INT, HUP, USR1, USR2, STOP or CONT"`
	target
}

func (f *Face) addProcesses(s *sdk.Server) {
	add(f, s, tool{"execute_command", "Run a command", "Runs a command line in a sandbox, to its end or in the background. In the foreground its standard input is empty.", destroys}, executeCommand)
	add(f, s, tool{"process_output", "Read a process's output", "Reads what a background command has printed since a cursor, and says whether it runs.", reads}, processOutput)
	add(f, s, tool{"process_input", "Write to a process", "Sends text to the standard input of a background command, or ends it.", destroys}, processInput)
	add(f, s, tool{"process_signal", "Signal a process", "Sends a signal to a background command and all that it started.", destroys}, processSignal)
}

func executeCommand(ctx context.Context, c *call, in commandIn) (out commandOut, err error) {
	limit, err := seconds(in.Timeout, usualRun, maxRun)
	if err != nil {
		return out, err
	}
	box, err := c.open(ctx, in.target, limit)
	if err != nil {
		return out, err
	}
	out.Sandbox = box.ID
	if in.Background {
		return background(ctx, c, box, in)
	}
	stdout, stderr := &excerpt{most: maxText * 7 / 10}, &excerpt{most: maxText * 3 / 10}
	told := c.progress(ctx)
	p, err := box.Start(ctx, client.Command{
		Path: "/bin/bash", Args: []string{"-l", "-c", in.Command}, Dir: in.Dir, Env: in.Env, User: in.User,
		Stdout: told.of(stdout), Stderr: told.of(stderr),
	})
	if err != nil {
		return out, err
	}
	late := time.AfterFunc(limit, func() { end(ctx, box, p.PID, in.User) })
	defer late.Stop()
	exit, err := p.Wait()
	if err != nil {
		if ctx.Err() != nil { // the client left, and nothing could read the result
			end(ctx, box, p.PID, in.User)
		}
		return out, err
	}
	out.Stdout, out.Stderr, out.Cut = stdout.text(), stderr.text(), stdout.cut() || stderr.cut()
	out.Status = exit.Status
	if exit.Code >= 0 {
		out.ExitCode = &exit.Code
	}
	if !late.Stop() {
		out.Status = fmt.Sprintf("ended after %s: give a longer timeout, or run it in the background", limit)
	}
	c.showCommand(out)
	return out, nil
}

// showCommand is a command that has ended, for the model.
func (c *call) showCommand(out commandOut) {
	var text strings.Builder
	text.WriteString(out.Stdout)
	if out.Stdout != "" && !strings.HasSuffix(out.Stdout, "\n") {
		text.WriteByte('\n')
	}
	if out.Stderr != "" {
		text.WriteString("stderr:\n" + strings.TrimSuffix(out.Stderr, "\n") + "\n")
	}
	if out.Cut {
		text.WriteString("[it was cut: send the output to a file and read that with download_file, or run it in the background]\n")
	}
	if out.Status != "exit status 0" || text.Len() == 0 {
		text.WriteString(out.Status + "\n")
	}
	c.say("%s", text.String())
}

// end ends a process and all that it started: it leads a group of its own.
func end(ctx context.Context, box *client.Sandbox, pid uint32, user string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	// It may have ended meanwhile, and so may the sandbox.
	_, _ = box.Run(ctx, client.Command{Path: "/bin/kill", Args: []string{"-KILL", "--", "-" + strconv.Itoa(int(pid))}, User: user})
}

// wrapper runs a command in the background. Its output and its exit code are
// files of the sandbox, so that they outlive every connection, a pause, and this
// server. Its directory, $0, names it, and says of a pid whether it is still the
// same process.
//
// The command leads a group of its own, so that a signal reaches all of it and not
// the one that waits for its end. It writes its pid itself, after its exec: a bash
// that has just forked drops signals. Then it says that it has begun.
const wrapper = `mkdir -m 700 "$0" || exit 125
set -m
/bin/sh -c 'echo $$ >"$0/pid"; echo >&3; exec /bin/bash -l -c "$1" 3>&-' "$0" "$1" 3>&1 >"$0/out" 2>&1 &
wait -f $!
code=$?
echo $code >"$0/code.new"
mv "$0/code.new" "$0/code"
exit $code`

// processDir is where a background command is kept.
func processDir(id string) string { return "/tmp/.cay-mcp-" + id }

// errBegun has this side stop following a command that goes on.
var errBegun = errors.New("it has begun")

func background(ctx context.Context, c *call, box *client.Sandbox, in commandIn) (out commandOut, err error) {
	if in.Timeout != 0 {
		return out, cay.Errorf(cay.Invalid, "timeout: is not of commands in the background").WithHint("end it with process_signal")
	}
	id, said := strings.ToLower(rand.Text()[:10]), &excerpt{most: 1000}
	p, err := box.Start(ctx, client.Command{
		Path: "/bin/bash", Args: []string{"-c", wrapper, processDir(id), in.Command}, Dir: in.Dir, Env: in.Env, User: in.User, Stdin: true,
		Stdout: writer(func([]byte) (int, error) { return 0, errBegun }), Stderr: said,
	})
	if err != nil {
		return out, err
	}
	switch exit, err := p.Wait(); {
	case err == nil:
		return out, cay.Errorf(cay.Conflict, "the command could not begin: %s: %s", exit.Status, said.text())
	case !errors.Is(err, errBegun):
		return out, err
	}
	out = commandOut{Sandbox: box.ID, Process: fmt.Sprintf("%s-%d", id, p.PID), Status: "running"}
	c.say("process_id: %s", out.Process)
	return out, nil
}

// process takes the id of a background command apart.
func process(id string) (dir string, pid uint32, err error) {
	name, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || n == 0 || len(name) != 10 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return "", 0, cay.Errorf(cay.Invalid, "process_id: %.80q is none that execute_command returned", id)
	}
	return processDir(name), uint32(n), nil
}

// look tells of a background command: its state and what it printed. $0 is its
// directory, $1 its pid, $2 the cursor, $3 how much to read, $4 how long to wait.
const look = `
state() {
  if [ -f "$0/code" ]; then echo "exit $(cat "$0/code")"
  elif grep -qsaF "$0" "/proc/$1/cmdline"; then echo running
  elif [ -d "$0" ]; then [ -f "$0/code" ] && echo "exit $(cat "$0/code")" || echo killed
  else echo none; fi
}
until=$((SECONDS + $4))
while :; do
  now=$(state "$1"); size=$(stat -c %s "$0/out" 2>/dev/null || echo 0)
  [ "$now" != running ] || [ "$size" -gt "$2" ] || [ "$SECONDS" -ge "$until" ] && break
  sleep 0.1
done
echo "$now $size"
[ "$now" = none ] || tail -c "+$(($2 + 1))" "$0/out" 2>/dev/null | head -c "$3"`

const (
	maxWait  = time.Minute
	pageSize = maxText * 8 / 10
)

func processOutput(ctx context.Context, c *call, in outputIn) (out outputOut, err error) {
	dir, pid, err := process(in.Process)
	if err != nil {
		return out, err
	}
	if in.Wait < 0 || in.Wait > int(maxWait/time.Second) || in.Cursor < 0 {
		return out, cay.Errorf(cay.Invalid, "wait must be 0 to 60 seconds, and cursor at least 0")
	}
	box, err := c.open(ctx, in.target, maxWait)
	if err != nil {
		return out, err
	}
	text := &bounded{most: pageSize + 1024}
	if _, err := shell(ctx, box, text, look, dir, pid, in.Cursor, pageSize, in.Wait); err != nil {
		return out, err
	}
	first, rest, _ := bytes.Cut(text.b, []byte("\n"))
	state, size, _ := cutLast(string(first))
	out = outputOut{Sandbox: box.ID, Running: state == "running", Next: in.Cursor}
	if out.Size, err = strconv.ParseInt(size, 10, 64); err != nil || state == "none" {
		return out, cay.Errorf(cay.NotFound, "process_id: %s is not in sandbox %s", in.Process, box.ID)
	}
	if code, ok := strings.CutPrefix(state, "exit "); ok {
		if n, err := strconv.Atoi(code); err == nil {
			out.ExitCode = &n
		}
	}
	rest = whole(rest, out.Running || in.Cursor+int64(len(rest)) < out.Size)
	out.Output, out.Next = readable(rest), in.Cursor+int64(len(rest))
	if state == "killed" {
		state = "ended by a signal"
	}
	c.say("%s\n[%s; next_cursor %d of %d bytes]", out.Output, state, out.Next, out.Size)
	return out, nil
}

// cutLast cuts a line at its last space.
func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// whole leaves a character that is not all there to the next page, if there will
// be more.
func whole(b []byte, more bool) []byte {
	for i := 1; more && i < utf8.UTFMax && i <= len(b); i++ {
		if last := b[len(b)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	b    []byte
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.b = append(b.b, p[:min(len(p), b.most-len(b.b))]...)
	return len(p), nil
}

// shell runs a script of ours, whose $0 is the first argument.
func shell(ctx context.Context, box *client.Sandbox, out *bounded, script string, args ...any) (client.Exit, error) {
	words := []string{"-c", script}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	p, err := box.Start(ctx, client.Command{Path: "/bin/bash", Args: words, User: "root", Stdout: out})
	if err != nil {
		return client.Exit{}, err
	}
	return p.Wait()
}

func processInput(ctx context.Context, c *call, in inputIn) (out doneOut, err error) {
	dir, pid, err := process(in.Process)
	if err != nil {
		return out, err
	}
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	if err := running(ctx, box, in.Process, dir, pid); err != nil {
		return out, err
	}
	p := box.Process(pid)
	if in.Input != "" {
		err = p.Input(ctx, []byte(in.Input))
	}
	if err == nil && in.Close {
		err = p.CloseStdin(ctx)
	}
	if err != nil {
		return out, err
	}
	c.say("sent %d bytes", len(in.Input))
	return doneOut{box.ID, "sent"}, nil
}

var signals = []string{"TERM", "KILL", "INT", "HUP", "USR1", "USR2", "STOP", "CONT"}

func processSignal(ctx context.Context, c *call, in signalIn) (out doneOut, err error) {
	dir, pid, err := process(in.Process)
	if err != nil {
		return out, err
	}
	name := strings.TrimPrefix(strings.ToUpper(in.Signal), "SIG")
	if name == "" {
		name = signals[0]
	}
	known := false
	for _, s := range signals {
		known = known || s == name
	}
	if !known {
		return out, cay.Errorf(cay.Invalid, "signal: %.20q is none of %s", in.Signal, strings.Join(signals, ", "))
	}
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	if err := running(ctx, box, in.Process, dir, pid); err != nil {
		return out, err
	}
	said := &bounded{most: 500}
	exit, err := shell(ctx, box, said, signalScript, dir, name)
	if err == nil && exit.Code != 0 {
		err = cay.Errorf(cay.Conflict, "process %s got no signal: %s", in.Process, strings.TrimSpace(readable(said.b)))
	}
	if err != nil {
		return out, err
	}
	c.say("sent SIG%s to %s", name, in.Process)
	return doneOut{box.ID, "sent"}, nil
}

// signalScript sends a signal to the group of a command.
const signalScript = `kill -s "$1" -- "-$(cat "$0/pid")" 2>&1`

// running refuses a process that has ended: its pid may be another's.
func running(ctx context.Context, box *client.Sandbox, id, dir string, pid uint32) error {
	exit, err := shell(ctx, box, &bounded{}, `[ -d "$0" ] || exit 3; grep -qsaF "$0" "/proc/$1/cmdline"`, dir, pid)
	switch {
	case err != nil:
		return err
	case exit.Code == 3:
		return cay.Errorf(cay.NotFound, "process_id: %s is not in sandbox %s", id, box.ID)
	case exit.Code != 0:
		return cay.Errorf(cay.Conflict, "process %s has ended", id).WithHint("process_output has its exit code")
	}
	return nil
}
