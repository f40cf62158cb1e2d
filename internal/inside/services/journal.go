package services

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// journalDir has a file for each unit: lines of a time, a program with its
	// process id, and a text.
	journalDir = "/var/log/cay-services"
	// journalMost is how large a file becomes before it replaces the one before it.
	journalMost = 8 << 20
	// lineMost bounds one line.
	lineMost = 16 << 10
	// journalTime is the form of times in files.
	journalTime = "2006-01-02T15:04:05.000000Z"
)

// journal writes what services say. A disk that is full loses lines, not services.
type journal struct {
	lib library
	mu  sync.Mutex
}

func (j *journal) path(unit string) string { return j.lib.at(filepath.Join(journalDir, unit+".log")) }

// write adds a line.
func (j *journal) write(unit, program string, pid int, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	path := j.path(unit)
	if st, err := os.Lstat(path); err == nil && st.Size() > journalMost {
		_ = os.Rename(path, path+".1") // else it grows on
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if errors.Is(err, os.ErrNotExist) {
		if os.MkdirAll(filepath.Dir(path), 0o750) == nil {
			f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
		}
	}
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintf(f, "%s %s[%d]: %s\n", time.Now().UTC().Format(journalTime), program, pid, text)
}

// copy writes all lines of a stream, until its writers have closed it.
func (j *journal) copy(r io.ReadCloser, unit, program string, pid int) {
	defer r.Close()
	in := bufio.NewReaderSize(r, lineMost)
	for {
		line, err := in.ReadSlice('\n') // a longer one comes in pieces
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 {
			j.write(unit, program, pid, string(text))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// entry is a line of the journal.
type entry struct {
	at   string // as it is in the file, which orders it
	text string // program[pid]: text
	unit string
}

// read returns the lines of a unit, oldest first.
func (j *journal) read(unit string) ([]entry, error) {
	var out []entry
	for _, path := range []string{j.path(unit) + ".1", j.path(unit)} {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if e, ok := parseEntry(strings.TrimSuffix(line, "\n"), unit); ok {
				out = append(out, e)
			}
		}
	}
	return out, nil
}

func parseEntry(line, unit string) (entry, bool) {
	at, text, ok := strings.Cut(line, " ")
	if _, err := time.Parse(journalTime, at); !ok || err != nil {
		return entry{}, false
	}
	return entry{at, text, unit}, true
}

// units are those that have said something.
func (j *journal) units() ([]string, error) {
	entries, err := os.ReadDir(j.lib.at(journalDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".log"); ok {
			out = append(out, name)
		}
	}
	return out, nil
}
