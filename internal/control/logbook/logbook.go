// Package logbook keeps the log lines of sandboxes on this machine, a bounded
// file each. Lines that do not fit push the oldest out.
package logbook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	// maxFile bounds a file; a sandbox has two, the older whole.
	maxFile = 512 << 10
	// MaxLog bounds a log that goes to another machine, in bytes.
	MaxLog = 2 * maxFile
	// maxTotal bounds all files together; Prune keeps to it.
	maxTotal = 1 << 30

	suffix = ".log"
	older  = ".old"
	fresh  = ".new"
)

// Line is a line of a sandbox's log.
type Line struct {
	At      time.Time         `json:"at"`
	Level   string            `json:"level"`
	Logger  string            `json:"logger"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
	// Epoch and Seq say where the line comes from, so that a reader of that
	// source can go on after it.
	Epoch string `json:"epoch,omitempty"`
	Seq   int64  `json:"seq,omitempty"`
}

// Book is a directory of logs. Its methods are safe for concurrent use. A nil
// Book keeps nothing.
type Book struct {
	dir string
	mu  sync.Mutex
}

// Open makes the directory when it is not there.
func Open(dir string) (*Book, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "cannot make the directory %s", dir)
	}
	return &Book{dir: dir}, nil
}

// Append adds lines, all or, after an error, the first few. A crash may leave
// half a line, which Read passes over.
func (b *Book) Append(id cay.SandboxID, lines ...Line) error {
	if b == nil || len(lines) == 0 || !cay.ValidID(string(id)) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	path := b.path(id)
	if info, err := os.Stat(path); err == nil && info.Size() >= maxFile {
		if err := os.Rename(path, path+older); err != nil {
			return failed(err)
		}
	}
	text := []byte("\n") // ends what a crash may have left
	for _, l := range lines {
		line, err := json.Marshal(l)
		if err != nil {
			return cay.Wrap(cay.Internal, err, "cannot keep a line of a log")
		}
		text = append(append(text, line...), '\n')
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return failed(err)
	}
	_, err = f.Write(text)
	return failed(errors.Join(err, f.Close()))
}

// Read returns what is kept of a sandbox's log, in the order of Append. One
// that is not there is empty.
func (b *Book) Read(id cay.SandboxID) ([]Line, error) {
	if b == nil || !cay.ValidID(string(id)) {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []Line
	for _, path := range []string{b.path(id) + older, b.path(id)} {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, failed(err)
		}
		out = append(out, parse(text)...)
	}
	return out, nil
}

func parse(text []byte) (out []Line) {
	for line := range bytes.Lines(text) {
		var l Line
		if json.Unmarshal(line, &l) == nil && l.Message != "" {
			out = append(out, l)
		}
	}
	return out
}

// Pack returns what is kept of a sandbox's log, for the book of another machine.
func (b *Book) Pack(id cay.SandboxID) ([]byte, error) {
	lines, err := b.Read(id)
	if err != nil {
		return nil, err
	}
	return pack(lines)
}

func pack(lines []Line) ([]byte, error) {
	var out []byte
	for _, l := range lines {
		text, err := json.Marshal(l)
		if err != nil {
			return nil, cay.Wrap(cay.Internal, err, "cannot keep a line of a log")
		}
		out = append(append(out, text...), '\n')
	}
	return out, nil
}

// Unpack adds what another machine has packed of a sandbox's log, but for what is here
// already: the sandbox may have been here before.
func (b *Book) Unpack(id cay.SandboxID, packed []byte) error {
	if b == nil || len(packed) == 0 || !cay.ValidID(string(id)) {
		return nil
	}
	all, err := b.Read(id)
	if err != nil {
		return err
	}
	here := map[string]bool{}
	for _, l := range all {
		here[l.key()] = true
	}
	for _, l := range parse(packed) {
		if !here[l.key()] {
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b Line) int { return a.At.Compare(b.At) })
	text, err := pack(all)
	if err != nil {
		return err
	}
	if over := len(text) - MaxLog; over > 0 {
		text = text[over:] // of the line that is cut, Read passes over the rest
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	path := b.path(id)
	if err := os.WriteFile(path+older+fresh, text, 0o600); err != nil {
		return failed(err)
	}
	if err := os.Rename(path+older+fresh, path+older); err != nil {
		return failed(err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	return nil
}

// key tells lines apart: by their place in their source, if they have one.
func (l Line) key() string {
	if l.Epoch == "" {
		return l.At.String() + " " + l.Message
	}
	return l.Epoch + " " + strconv.FormatInt(l.Seq, 10)
}

// Log is what is kept of one sandbox.
type Log struct {
	Sandbox cay.SandboxID
	Changed time.Time // when the newest line came
	Size    int64     // bytes
}

// Logs lists what is kept, the log that changed last first.
func (b *Book) Logs() ([]Log, error) {
	if b == nil {
		return nil, nil
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, failed(err)
	}
	by := map[cay.SandboxID]*Log{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() { // it may be gone meanwhile
			continue
		}
		name, _, _ := strings.Cut(e.Name(), ".")
		l := by[cay.SandboxID(name)]
		if l == nil {
			l = &Log{Sandbox: cay.SandboxID(name)}
			by[l.Sandbox] = l
		}
		l.Size += info.Size()
		if info.ModTime().After(l.Changed) {
			l.Changed = info.ModTime()
		}
	}
	out := make([]Log, 0, len(by))
	for _, l := range by {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b Log) int {
		return cmp.Or(b.Changed.Compare(a.Changed), cmp.Compare(a.Sandbox, b.Sandbox))
	})
	return out, nil
}

// Prune removes logs without a new line since a time, and the oldest of
// others while all together are too big. It spares those to keep.
func (b *Book) Prune(before time.Time, keep func(cay.SandboxID) bool) error {
	if b == nil {
		return nil
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return failed(err)
	}
	var files []fs.FileInfo
	total := int64(0)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	var errs []error
	for _, f := range files {
		id, _, _ := strings.Cut(f.Name(), ".")
		if keep(cay.SandboxID(id)) || total <= maxTotal && !f.ModTime().Before(before) {
			continue
		}
		total -= f.Size()
		errs = append(errs, os.Remove(filepath.Join(b.dir, f.Name())))
	}
	return failed(errors.Join(errs...))
}

func (b *Book) path(id cay.SandboxID) string { return filepath.Join(b.dir, string(id)+suffix) }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return cay.Wrap(cay.Unavailable, err, "the logs of sandboxes cannot be kept or read")
}
