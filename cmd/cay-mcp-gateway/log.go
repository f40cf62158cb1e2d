package main

import (
	"os"
	"sync"
)

// maxLog bounds the log: beyond it the log begins anew, and the one before stays
// beside it.
const maxLog = 4 << 20

// bounded is a log file that servers cannot make grow for ever.
type bounded struct {
	path string

	mu   sync.Mutex
	file *os.File
	size int64
}

func newBounded(path string, file *os.File) *bounded {
	b := &bounded{path: path, file: file}
	if info, err := file.Stat(); err == nil {
		b.size = info.Size()
	}
	return b
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size > maxLog {
		b.turn()
	}
	n, err := b.file.Write(p)
	b.size += int64(n)
	return n, err
}

// turn begins the log anew. Where it cannot, it goes on in the old one.
func (b *bounded) turn() {
	if err := os.Rename(b.path, b.path+".1"); err != nil {
		return
	}
	file, err := os.OpenFile(b.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	_ = b.file.Close()
	b.file, b.size = file, 0
}
