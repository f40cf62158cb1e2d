package proc

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// defaultPath serves where PATH is not set.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program is a request to start something, made definite.
type program struct {
	user user.User
	path string
	args []string
	env  []string
	dir  string
}

// program resolves the account, directory, environment and executable of a
// request.
func (s *Service) program(h http.Header, cfg *pb.ProcessConfig) (program, error) {
	account, dir := s.cfg.Defaults()
	name := account
	if asked := wire.User(h); asked != "" {
		name = asked
	}
	u, err := s.cfg.Users.Lookup(name)
	if err != nil {
		if unknown := (*user.UnknownError)(nil); errors.As(err, &unknown) {
			return program{}, connect.NewError(connect.CodeUnauthenticated, err)
		}
		return program{}, connect.NewError(connect.CodeInternal, err)
	}
	p := program{user: u, dir: u.Path(cfg.GetCwd(), s.cfg.Users.StartDir(u, account, dir))}
	if st, err := os.Stat(p.dir); err != nil || !st.IsDir() {
		return program{}, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cwd '%s' does not exist", p.dir))
	}
	env := environment(u, s.cfg.Env(), cfg.GetEnvs())
	for k, v := range env {
		p.env = append(p.env, k+"="+v)
	}
	if p.path, err = lookPath(cfg.GetCmd(), env["PATH"]); err != nil {
		return program{}, connect.NewError(connect.CodeInvalidArgument, err)
	}
	p.args = append([]string{cfg.GetCmd()}, cfg.GetArgs()...)
	if err := tooLong(p.args, p.env); err != nil {
		return program{}, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return p, nil
}

// The kernel's bounds of one string and of all strings that a program is
// started with, each string with the zero that ends it.
const (
	maxArgument  = 128 << 10
	maxArguments = 2 << 20
)

// tooLong says which string of a start is beyond the kernel's bounds, which
// would say so in a word only.
func tooLong(args, env []string) error {
	total := 0
	for _, arg := range args {
		if len(arg) >= maxArgument {
			return fmt.Errorf("the command is too long: it has a part of %d bytes, and a program takes at most %d in one; write it to a file and run that", len(arg), maxArgument-1)
		}
		total += len(arg) + 1
	}
	for _, pair := range env {
		if len(pair) >= maxArgument {
			name, _, _ := strings.Cut(pair, "=")
			return fmt.Errorf("the environment variable %.100s is too long: with its name it has %d bytes, and a program takes at most %d", name, len(pair), maxArgument-1)
		}
		total += len(pair) + 1
	}
	if total >= maxArguments {
		return fmt.Errorf("the command and its environment are too long: together they have %d bytes, and a program takes at most %d", total, maxArguments-1)
	}
	return nil
}

// environment layers what a process sees: the account's, the sandbox's, the
// call's.
func environment(u user.User, layers ...map[string]string) map[string]string {
	env := map[string]string{
		"PATH":    os.Getenv("PATH"),
		"HOME":    u.Home,
		"USER":    u.Name,
		"LOGNAME": u.Name,
		"SHELL":   u.Shell,
	}
	for _, layer := range layers {
		for k, v := range layer {
			env[k] = v
		}
	}
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	return env
}

// lookPath finds an executable as a shell would, in the PATH of the process.
func lookPath(cmd, path string) (string, error) {
	if cmd == "" {
		return "", errors.New("no command given")
	}
	if strings.Contains(cmd, "/") {
		return cmd, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, cmd)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", cmd)
}

// launch starts a request's process. It is in the table and has the returned
// subscriber when launch returns, but run is not yet called.
func (s *Service) launch(h http.Header, req *pb.StartRequest) (*process, *subscriber, error) {
	prog, err := s.program(h, req.GetProcess())
	if err != nil {
		return nil, nil, err
	}
	p := &process{
		tag:     req.Tag,
		config:  req.GetProcess(),
		expired: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	attr := &syscall.ProcAttr{Dir: prog.dir, Env: prog.env, Sys: &syscall.SysProcAttr{}}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: prog.user.UID, Gid: prog.user.GID, Groups: prog.user.Groups}
	}
	open := p.openPipes
	if req.Pty != nil {
		open = p.openTTY
		p.screen = newScreen(&s.room)
	}
	theirs, err := open(attr, prog.user, req)
	defer closeAll(theirs)
	if err == nil {
		p.child, err = s.cfg.Reaper.Start(prog.path, prog.args, attr)
	}
	if err != nil {
		p.closeFiles()
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	p.pid = uint32(p.child.Pid)
	sub, _ := p.subscribe(false)
	s.table.add(p)
	return p, sub, nil
}

// openPipes gives the process a standard input, output and error. The returned
// descriptors are the process's own.
func (p *process) openPipes(attr *syscall.ProcAttr, _ user.User, req *pb.StartRequest) (theirs []int, err error) {
	attr.Sys.Setpgid = true
	if req.Stdin == nil || req.GetStdin() {
		in, err := newPipe("stdin", true)
		if err != nil {
			return nil, err
		}
		p.stdin = newInput(in.file)
		theirs = append(theirs, in.child)
	} else {
		null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
		}
		theirs = append(theirs, null)
	}
	for _, name := range []string{"stdout", "stderr"} {
		out, err := newPipe(name, false)
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, out.child)
		event := stdoutEvent
		if name == "stderr" {
			event = stderrEvent
		}
		p.addOutput(out, pipeChunk, event)
	}
	attr.Files = descriptors(theirs[0], theirs[1], theirs[2])
	return theirs, nil
}

// openTTY gives the process a terminal and a session of its own.
func (p *process) openTTY(attr *syscall.ProcAttr, u user.User, req *pb.StartRequest) (theirs []int, err error) {
	attr.Sys.Setsid, attr.Sys.Setctty, attr.Sys.Ctty = true, true, 0
	tty, err := openPTY(u, req.GetPty().GetSize())
	if err != nil {
		return nil, err
	}
	p.tty = newInput(tty.file)
	p.outputs = append(p.outputs, &output{
		file: tty.file, fd: tty.fd, chunk: ttyChunk,
		want: func() bool { return true }, // it is kept
		emit: func(b []byte, in *slab) { p.show(outputOf(ptyEvent(b), in), b) },
	})
	attr.Files = descriptors(tty.child, tty.child, tty.child)
	return []int{tty.child}, nil
}

func (p *process) addOutput(from ends, chunk int, event func([]byte) *pb.ProcessEvent_DataEvent) {
	p.outputs = append(p.outputs, &output{
		file:  from.file,
		fd:    from.fd,
		chunk: chunk,
		want:  func() bool { return len(p.subscribers()) > 0 },
		emit: func(b []byte, in *slab) {
			publish(p.subscribers(), outputOf(event(b), in))
		},
	})
}

func outputOf(e *pb.ProcessEvent_DataEvent, in *slab) message {
	return message{&pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: e}}, in}
}

// closeFiles closes what was opened for a process that did not start.
func (p *process) closeFiles() {
	if p.stdin != nil {
		_ = p.stdin.close()
	}
	for _, o := range p.outputs {
		o.file.Close()
	}
}

func stdoutEvent(b []byte) *pb.ProcessEvent_DataEvent {
	return &pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Stdout{Stdout: b}}
}

func stderrEvent(b []byte) *pb.ProcessEvent_DataEvent {
	return &pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Stderr{Stderr: b}}
}

func ptyEvent(b []byte) *pb.ProcessEvent_DataEvent {
	return &pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Pty{Pty: b}}
}

func descriptors(fds ...int) []uintptr {
	out := make([]uintptr, len(fds))
	for i, fd := range fds {
		out[i] = uintptr(fd)
	}
	return out
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd) // the child has its copies
	}
}
