// Package pgtest starts real PostgreSQL servers for tests, each in a directory of
// its own.
package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a PostgreSQL that listens on a socket in its directory.
type Server struct {
	t        testing.TB
	bin, dir string
	settings []string
	cmd      *exec.Cmd
	ended    chan error
	names    atomic.Int64
}

// programs finds PostgreSQL's programs: where Debian has them, else on the path.
func programs() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) > 0 {
		return filepath.Dir(slices.Max(found))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(path)
	}
	return ""
}

// Start starts a server that ends with the test. Settings are lines of
// postgresql.conf. A test is skipped where PostgreSQL is missing, unless
// CAY_TEST_POSTGRES says that it must be there.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return StartIn(t, "", settings...)
}

// StartIn is Start with the data in a directory that is there.
func StartIn(t testing.TB, dir string, settings ...string) *Server {
	t.Helper()
	return plain.start(t, dir, nil, settings...)
}

// Prepared is what servers begin with. It is made once, because initdb and the making
// of tables take longer than most tests.
type Prepared struct {
	mu    sync.Mutex
	files []file
}

// plain is what a server without databases begins with.
var plain Prepared

// Start is the package's Start of a server that prepare has worked on, or on one whose
// data this one's are a copy of.
func (p *Prepared) Start(t testing.TB, prepare func(*Server)) *Server {
	t.Helper()
	return p.start(t, "", prepare)
}

func (p *Prepared) start(t testing.TB, dir string, prepare func(*Server), settings ...string) *Server {
	t.Helper()
	bin := programs()
	if bin == "" {
		const missing = "PostgreSQL is not installed (scripts/setup test-host installs it)"
		if os.Getenv("CAY_TEST_POSTGRES") != "" {
			t.Fatal(missing)
		}
		t.Skip("NOT TESTED HERE: " + missing)
	}
	if dir == "" {
		made, err := os.MkdirTemp("", "cay-pg-") // the path of a socket is short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(made) })
		dir = made
	}
	s := &Server{t: t, bin: bin, dir: dir, settings: settings}
	if c := s.credential(); c != nil {
		if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.Stop(syscall.SIGQUIT) })
	p.fill(s, prepare)
	s.Run()
	return s
}

// fill makes a server's data, or copies those that were made.
func (p *Prepared) fill(s *Server, prepare func(*Server)) {
	s.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.files != nil {
		s.write(p.files)
		return
	}
	if prepare == nil {
		s.run("initdb", "--no-sync", "--auth=trust", "--username=cay", "--encoding=UTF8", "--locale=C.UTF-8", "-D", s.data())
	} else {
		plain.fill(s, nil)
		s.Run()
		prepare(s)
		s.Stop(syscall.SIGINT)
	}
	p.files = s.read()
}

// file is one of a server's data, or a directory.
type file struct {
	name string
	mode fs.FileMode
	text []byte
}

func (s *Server) read() (out []file) {
	s.t.Helper()
	err := filepath.WalkDir(s.data(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(s.data(), path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		f := file{name: name, mode: info.Mode()}
		if err == nil && !d.IsDir() {
			f.text, err = os.ReadFile(path)
		}
		out = append(out, f)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *Server) write(files []file) {
	s.t.Helper()
	owner := s.credential()
	for _, f := range files {
		path := filepath.Join(s.data(), f.name)
		var err error
		if f.mode.IsDir() {
			err = os.Mkdir(path, f.mode.Perm())
		} else {
			err = os.WriteFile(path, f.text, f.mode.Perm())
		}
		if err == nil && owner != nil {
			err = os.Lchown(path, int(owner.Uid), int(owner.Gid))
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Credential is who runs PostgreSQL, and programs beside it that refuse root as well.
func Credential(t testing.TB) *syscall.Credential { return (&Server{t: t}).credential() }

func (s *Server) credential() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, e1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, e2 := strconv.ParseUint(u.Gid, 10, 32)
		if e1 == nil && e2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	s.t.Fatal("there is no user that PostgreSQL can run as")
	return nil
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential(), Pdeathsig: 0}
	return cmd
}

func (s *Server) run(name string, args ...string) {
	s.t.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// Run starts the server once more and waits until it answers. More settings are
// of this run.
func (s *Server) Run(settings ...string) {
	s.t.Helper()
	args := []string{"-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"}
	for _, setting := range slices.Concat(s.settings, settings) {
		args = append(args, "-c", setting)
	}
	s.cmd = s.command("postgres", args...)
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan error) { ended <- cmd.Wait() }(s.cmd, s.ended)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.await(ctx)
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context) {
	s.t.Helper()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case err := <-s.ended:
			s.t.Fatalf("PostgreSQL ended: %v: %s", err, s.Log())
		case <-ctx.Done():
			s.t.Fatalf("PostgreSQL does not answer: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the server: with SIGINT as an operator does, with SIGQUIT at once,
// which it recovers from when it runs again.
func (s *Server) Stop(how syscall.Signal) {
	s.t.Helper()
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Signal(how); err != nil {
		s.t.Error(err)
	}
	s.wait()
	s.cmd = nil
}

// wait waits for the server's end. A server that is told to stop reports how in its log.
func (s *Server) wait() {
	if err := <-s.ended; err != nil {
		s.t.Logf("PostgreSQL ended: %v", err)
	}
}

// Restart runs the server anew, whether it has ended by itself or not.
func (s *Server) Restart() {
	s.t.Helper()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // it may be gone
		s.wait()
	}
	s.Run()
}

// Crash has a process of the server die, upon which it ends all connections, recovers and
// goes on.
func (s *Server) Crash(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	err = conn.QueryRow(ctx, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").Scan(&pid)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = conn.Exec(ctx, "SELECT 1")
	}
	s.await(ctx)
}

// Standby starts a server that has what this one has, by streaming, and is asked for
// each commit: this one waits for it from then on.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	other := &Server{t: t, bin: s.bin, dir: dir, settings: s.settings}
	if c := s.credential(); c != nil {
		if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { other.Stop(syscall.SIGQUIT) })
	other.Follow(s)
	return other
}

// Follow has a server that does not run be the standby of another one, with nothing of
// its own left.
func (s *Server) Follow(primary *Server) {
	s.t.Helper()
	if err := os.RemoveAll(s.data()); err != nil {
		s.t.Fatal(err)
	}
	s.run("pg_basebackup", "-h", primary.dir, "-U", "cay", "-D", s.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	s.Run()
	primary.Exec(s.t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
}

// Promote has a standby be a primary, which waits for no standby.
func (s *Server) Promote() {
	s.t.Helper()
	s.Exec(s.t, "postgres", "SELECT pg_promote()", "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
}

// Dir is where the socket, the data and the log are.
func (s *Server) Dir() string { return s.dir }

// URL is the address of a database of that name.
func (s *Server) URL(name string) string {
	return "postgres://cay@/" + name + "?host=" + url.QueryEscape(s.dir)
}

// Database makes a database, a copy of another one unless like is empty, and
// returns its name.
func (s *Server) Database(t testing.TB, like string) (name string) {
	t.Helper()
	name = fmt.Sprintf("d%d", s.names.Add(1))
	text := "CREATE DATABASE " + name
	if like != "" {
		text += " TEMPLATE " + like
	}
	s.Exec(t, "postgres", text)
	return name
}

// Exec runs statements in a database, as its superuser.
func (s *Server) Exec(t testing.TB, name string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, text := range statements {
		if _, err := conn.Exec(ctx, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// Log is what the server has logged.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return strings.TrimSpace(string(text))
}
