package parcel

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"

	"github.com/cay-run/cay"
)

// unpackInto adds what a local archive of an ADD holds, and reports whether
// the file is one: a tar, plain or packed with gzip or bzip2.
func unpackInto(p *Parcel, name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, cay.Wrap(cay.Invalid, err, "cannot read %s", name)
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var r io.Reader = in
	magic, _ := in.Peek(6)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if r, err = gzip.NewReader(in); err != nil {
			return false, nil
		}
	case bytes.HasPrefix(magic, []byte("BZh")):
		r = bzip2.NewReader(in)
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")), bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return false, cay.Errorf(cay.Unsupported, "ADD of %s: xz and zstd archives are not unpacked here", path.Base(name)).
			WithHint("pack it with gzip, or COPY it and unpack it with RUN")
	}
	// A tar says so at the 257th byte; a gzipped file may be no tar.
	plain := bufio.NewReaderSize(r, 1<<16)
	head, err := plain.Peek(512)
	if len(head) < 512 || string(head[257:262]) != "ustar" {
		if errors.Is(err, gzip.ErrChecksum) {
			return false, cay.Wrap(cay.Invalid, err, "the archive %s is damaged", name)
		}
		return false, nil
	}
	if err := p.Directory(); err != nil {
		return true, err
	}
	return true, p.AddAll(tar.NewReader(plain), func(name string, _ bool) (string, bool) { return name, true })
}
