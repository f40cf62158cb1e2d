// Package interp is the code interpreter inside a sandbox: the HTTP API that
// code interpreter clients call on port 49999, served by talking to kernels
// directly: Jupyter's for Python, small programs of our own for the other
// languages. A context is a kernel that is started, watched and replaced here;
// executions are requests to it, and what it publishes about them becomes a
// stream of JSON lines.
//
// Nothing here depends on the wall clock or on a timer firing in time: a
// sandbox may be frozen for hours and go on, or be restored many times.
package interp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cay-run/cay/internal/guest"
)

//go:embed kernel/*
var kernelFiles embed.FS

// Config is what a Server needs.
type Config struct {
	// Python is the interpreter that has ipykernel, python3 if empty.
	Python string
	// Node is node, from which JavaScript and TypeScript come, node if empty.
	Node string
	// R and Java are these languages' programs, R and java if empty.
	R, Java string
	// Languages are those to offer, of Languages(), which it is if empty. The
	// program of one may be missing: then its kernel cannot start.
	Languages []string
	// Dir is a directory of our own for sockets and kernel files, with a path
	// short enough for sockets; /run/cay/interp if empty. Its parents must be
	// passable for the kernels' user.
	Dir string
	// Home is the working directory of contexts that name none, guest.Home if
	// empty.
	Home string
	// User is the name and Credential the ids that kernels run as; without a
	// credential they run as we do.
	User       string
	Credential *syscall.Credential
	// Env is the sandbox-wide environment as it is now; nil for none. Kernels
	// start with our own environment and this one on top.
	Env func() map[string]string
	// Spawn starts a command and returns how to wait for its end, for a
	// process that also reaps orphans; nil uses cmd.Start and cmd.Wait.
	Spawn func(*exec.Cmd) (wait func() error, err error)
	// Why says why a process was killed, as far as it is known; nil for never.
	Why func(pid int) string
	// Log is where kernels' starts and ends are reported; nil for nowhere.
	Log *slog.Logger
}

// Server serves the interpreter's API.
type Server struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // supervisors and executions
	warm   atomic.Bool

	mu       sync.Mutex
	sessions []*session // oldest first
	defaults map[string]*session
}

// New makes a server, lays out its kernel files and makes the default contexts.
// No kernel is started.
func New(cfg Config) (*Server, error) {
	cfg = withDefaults(cfg)
	s := &Server{cfg: cfg, defaults: map[string]*session{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	lib := filepath.Join(cfg.Dir, "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		return nil, err
	}
	err := fs.WalkDir(kernelFiles, "kernel", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := kernelFiles.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(lib, d.Name()), b, 0o644)
	})
	if err != nil {
		return nil, err
	}
	for _, lang := range atHand {
		if !slices.Contains(cfg.Languages, lang) {
			continue
		}
		if _, err := s.defaultSession(lang); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func withDefaults(cfg Config) Config {
	if cfg.Python == "" {
		cfg.Python = "python3"
	}
	if cfg.Node == "" {
		cfg.Node = "node"
	}
	if cfg.R == "" {
		cfg.R = "R"
	}
	if cfg.Java == "" {
		cfg.Java = "java"
	}
	if len(cfg.Languages) == 0 {
		cfg.Languages = Languages()
	}
	if cfg.Dir == "" {
		cfg.Dir = "/run/cay/interp"
	}
	if cfg.Home == "" {
		cfg.Home = guest.Home
	}
	if cfg.Env == nil {
		cfg.Env = func() map[string]string { return nil }
	}
	if cfg.Why == nil {
		cfg.Why = func(int) string { return "" }
	}
	if cfg.Spawn == nil {
		cfg.Spawn = func(cmd *exec.Cmd) (func() error, error) { return cmd.Wait, cmd.Start() }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// Start starts the default Python context and has it import what people use
// most, so that a snapshot taken afterwards holds it warm, and compiles the Java
// kernel. GET /health fails until Start has succeeded.
func (s *Server) Start(ctx context.Context) error {
	sess, err := s.defaultSession(langPython)
	if err != nil {
		return err
	}
	sess.warms.Store(true)
	compiled := make(chan error, 1)
	go func() { compiled <- s.compileJava(ctx) }()
	for range 3 { // a kernel can be unlucky, for one with the memory
		if err = sess.warm(ctx); !errors.Is(err, errKernelGone) {
			break
		}
	}
	if failed := <-compiled; failed != nil {
		s.cfg.Log.Warn("Java will start slowly", "err", failed)
	}
	s.warm.Store(err == nil)
	return err
}

// Reseed gives every kernel new entropy, so that clones of one snapshot draw
// different random numbers. It does not wait: each kernel gets it before its
// next execution, or now where nothing runs.
func (s *Server) Reseed(_ context.Context, entropy []byte) error {
	return s.mix(entropy, func(sess *session, own []byte) { sess.entropy = own })
}

// Stir is Reseed for a machine that goes on, maybe from a moment that it went
// on from before: only generators that no code can have seeded get entropy.
func (s *Server) Stir(_ context.Context, entropy []byte) error {
	return s.mix(entropy, func(sess *session, own []byte) {
		if sess.Language == langPython { // other kernels draw such numbers from the system
			sess.stir = own
		}
	})
}

func (s *Server) mix(entropy []byte, give func(sess *session, own []byte)) error {
	for _, sess := range s.list() {
		mac := hmac.New(sha256.New, entropy)
		mac.Write([]byte(sess.ID))
		own := mac.Sum(nil)
		sess.mu.Lock()
		give(sess, own)
		sess.mu.Unlock()
		if !s.background(sess.catchUp) {
			return errClosed
		}
	}
	return nil
}

// Close ends all kernels and waits for what runs.
func (s *Server) Close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.work.Wait()
}

// background runs f as something that Close waits for, unless it has begun to.
func (s *Server) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.work.Go(f)
	return true
}

// Handler serves the API.
func (s *Server) Handler() http.Handler { return s.routes() }

// errNotFound says that there is no such context.
var errNotFound = errors.New("context not found")

// badRequest is a mistake of the caller's.
type badRequest string

func (e badRequest) Error() string { return string(e) }

// defaultSession returns the context that a language's executions share.
func (s *Server) defaultSession(lang string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.defaults[lang]; sess != nil {
		return sess, nil
	}
	sess, err := s.newSession(lang, s.cfg.Home)
	if err == nil {
		s.defaults[lang] = sess
	}
	return sess, err
}

// create makes a context and waits for its kernel.
func (s *Server) create(ctx context.Context, lang, cwd string) (*session, error) {
	lang, err := s.language(lang)
	if err != nil {
		return nil, err
	}
	if cwd == "" {
		cwd = s.cfg.Home
	}
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(s.cfg.Home, cwd)
	}
	if fi, err := os.Stat(cwd); err != nil || !fi.IsDir() {
		return nil, badRequest(fmt.Sprintf("cwd %q is not a directory", cwd))
	}
	s.mu.Lock()
	sess, err := s.newSession(lang, cwd)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if _, err := sess.kernel(ctx, nil); err != nil {
		_ = s.remove(sess.ID)
		if errors.Is(err, fs.ErrPermission) && !s.enters(cwd) {
			return nil, badRequest(fmt.Sprintf("cwd %q: %s, as which code runs, may not enter it; choose another, or open it with sudo", cwd, s.cfg.User))
		}
		return nil, err
	}
	return sess, nil
}

// enters reports whether the kernels' user may enter a directory.
func (s *Server) enters(dir string) bool {
	cmd := exec.Command("/bin/sh", "-c", ":")
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: s.cfg.Credential}
	wait, err := s.cfg.Spawn(cmd)
	if err == nil {
		err = wait()
	}
	return !errors.Is(err, fs.ErrPermission)
}

// newSession adds a context, whose kernel starts when it is asked for. The caller holds mu.
func (s *Server) newSession(lang, cwd string) (*session, error) {
	if s.ctx.Err() != nil {
		return nil, errClosed
	}
	ctx, cancel := context.WithCancel(s.ctx)
	sess := &session{
		ID: newID(), Language: lang, Cwd: cwd,
		env: s.cfg.Env, close: cancel, ended: ctx.Done(),
		turn: make(chan struct{}, 1), wanted: make(chan struct{}), changed: make(chan struct{}),
	}
	sess.turn <- struct{}{}
	sess.start = func(ctx context.Context) (kernel, map[string]string, error) {
		env := s.cfg.Env()
		k, err := s.startKernel(ctx, lang, spec{
			cwd: cwd, env: s.environment(env), cred: s.cfg.Credential,
			start: s.cfg.Spawn, why: s.cfg.Why, dir: s.cfg.Dir, log: s.cfg.Log.With("context", sess.ID, "language", lang),
		})
		if err != nil {
			s.cfg.Log.Warn("kernel start", "context", sess.ID, "language", lang, "err", err)
		}
		if lang == langJava {
			env = nil // its code looks for it in properties, which the first preparation sets
		}
		return k, env, err
	}
	s.sessions = append(s.sessions, sess)
	s.work.Go(func() { sess.supervise(ctx) })
	return sess, nil
}

// environment is what a kernel starts with.
func (s *Server) environment(sandbox map[string]string) []string {
	env := append(os.Environ(), "LANG=C.UTF-8", "SHELL=/bin/bash")
	if s.cfg.Credential != nil {
		env = append(env, "HOME="+s.cfg.Home)
	}
	if s.cfg.User != "" {
		env = append(env, "USER="+s.cfg.User, "LOGNAME="+s.cfg.User)
	}
	for name, value := range sandbox {
		env = append(env, name+"="+value)
	}
	return env
}

func (s *Server) list() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*session{}, s.sessions...)
}

func (s *Server) lookup(id string) (*session, error) {
	for _, sess := range s.list() {
		if sess.ID == id {
			return sess, nil
		}
	}
	return nil, errNotFound
}

// remove closes a context. A default one is made anew when next asked for.
func (s *Server) remove(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, sess := range s.sessions {
		if sess.ID == id {
			sess.close()
			s.sessions = append(s.sessions[:i:i], s.sessions[i+1:]...)
			if s.defaults[sess.Language] == sess {
				delete(s.defaults, sess.Language)
			}
			return nil
		}
	}
	return errNotFound
}

// newID makes a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
