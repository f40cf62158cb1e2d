package main

import (
	"encoding/binary"
	"os"
	"sync"
)

// magic begins what the sentry says of its loading where it reads by itself
// (pgalloc.LoadStatus, patch 0020). The server reads both alike.
const magic = 0x6361796c6f616431

// progress tells how far the loading of the pages is: native 64-bit words with
// the magic number, the bytes that there were to load, those that are left, and 1
// if loading has failed.
type progress struct {
	file *os.File

	mu          sync.Mutex
	total, left int64
	failed      bool
}

func (p *progress) begin(total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total, p.left = total, total
	p.write()
}

// add notes that n bytes were read, and whether that was all that could be.
func (p *progress) add(n int64, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = max(p.left-n, 0)
	p.failed = p.failed || failed
	p.write()
}

// end notes that the sentry wants nothing more. Pages that were dropped are
// never asked for.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.failed {
		p.left = 0
	}
	p.write()
}

func (p *progress) write() {
	failed := uint64(0)
	if p.failed {
		failed = 1
	}
	var text []byte
	for _, word := range []uint64{magic, uint64(p.total), uint64(p.left), failed} {
		text = binary.NativeEndian.AppendUint64(text, word)
	}
	_, _ = p.file.WriteAt(text, 0) // it is for the server alone
}
