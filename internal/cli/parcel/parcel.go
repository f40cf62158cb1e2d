// Package parcel packs what a COPY or ADD of a Dockerfile takes of its context
// and the net, as the server gets it.
package parcel

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Parcel is the archive of one COPY, laid out as it is to lie below its
// destination, in a temporary file without a name: it goes with the process.
type Parcel struct {
	file   *os.File
	out    *bufio.Writer
	tar    *tar.Writer
	sum    hash.Hash // of what matters: not of times
	names  []string
	dirs   bool
	single string // the name of its only file
	size   int64
}

// New makes an empty parcel.
func New() (*Parcel, error) {
	f, err := tempFile()
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(f, 1<<18)
	return &Parcel{file: f, out: out, tar: tar.NewWriter(out), sum: sha256.New()}, nil
}

// Remove gives back what the parcel takes of the disk.
func (p *Parcel) Remove() { p.file.Close() }

// Open returns the archive, from its beginning. The parcel is sealed.
func (p *Parcel) Open() (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(p.file, 0, p.size)), nil
}

// tempFile makes a file that goes when it is closed.
func tempFile() (*os.File, error) {
	f, err := os.CreateTemp("", "cay-")
	if err != nil {
		return nil, tempError(err)
	}
	return f, os.Remove(f.Name())
}

// tempError is a failure of a temporary file.
func tempError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return cay.Wrap(cay.NoSpace, err, "no room for a temporary file in %s", os.TempDir()).WithHint("set TMPDIR to a directory that has some")
	}
	return cay.Wrap(cay.Internal, err, "write a temporary file")
}

// add adds an entry. Its content, if it has one, is read from r.
func (p *Parcel) add(h *tar.Header, r io.Reader) error {
	h.Name = strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if h.Name == "" {
		return nil // the destination itself
	}
	if h.Typeflag == tar.TypeDir {
		p.dirs = true
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	p.names = append(p.names, h.Name)
	fmt.Fprintf(p.sum, "%q %c %o %d %q\n", h.Name, h.Typeflag, h.Mode&0o7777, h.Size, h.Linkname)
	if err := p.tar.WriteHeader(h); err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot pack %s: %v", h.Name, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	_, read, err := disk.Copy(io.MultiWriter(p.tar, p.sum), r)
	var ours *cay.Error
	switch {
	case errors.As(read, &ours):
		return read
	case errors.Is(err, syscall.ENOSPC):
		return tempError(err)
	case read != nil:
		return cay.Wrap(cay.Invalid, read, "cannot pack %s: %v", h.Name, read)
	case err != nil:
		return cay.Wrap(cay.Invalid, err, "cannot pack %s: %v", h.Name, err)
	}
	return nil
}

// Content adds a file that is here as text.
func (p *Parcel) Content(name, data string) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
	return p.add(h, strings.NewReader(data))
}

// Directory says that the parcel is what a directory holds, even if that is
// one file.
func (p *Parcel) Directory() error {
	if p.dirs {
		return nil
	}
	p.dirs = true
	return p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755})
}

// Seal ends the archive.
func (p *Parcel) Seal() error {
	if len(p.names) == 0 && !p.dirs {
		return cay.Errorf(cay.NotFound, "no files to copy")
	}
	if len(p.names) == 1 && !p.dirs {
		p.single = p.names[0]
	}
	if err := errors.Join(p.tar.Close(), p.out.Flush()); err != nil {
		return tempError(err)
	}
	info, err := p.file.Stat()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "write a temporary file")
	}
	p.size = info.Size()
	return nil
}

// Size is that of the archive. The parcel is sealed.
func (p *Parcel) Size() int64 { return p.size }

// Single is the name of the only file, empty where there are more. The parcel is
// sealed.
func (p *Parcel) Single() string { return p.single }

// Hash names the content and what is done with it.
func (p *Parcel) Hash(args []string) string {
	all := sha256.New()
	fmt.Fprintf(all, "%q %x", args, p.sum.Sum(nil))
	return hex.EncodeToString(all.Sum(nil))
}

// AddAll adds the entries of another archive that keep wants, under the names
// that it gives.
func (p *Parcel) AddAll(in *tar.Reader, keep func(name string, dir bool) (string, bool)) error {
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "an archive is damaged: %v", err)
		}
		if !slices.Contains([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}, h.Typeflag) {
			continue
		}
		name, ok := keep(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), h.Typeflag == tar.TypeDir)
		if !ok {
			continue
		}
		next := &tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode & 0o7777, Size: h.Size, ModTime: h.ModTime}
		if h.Typeflag == tar.TypeLink {
			if next.Linkname, ok = keep(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), false); !ok {
				return cay.Errorf(cay.Unsupported, "%s is a hard link to what is not copied", h.Name)
			}
		}
		if err := p.add(next, in); err != nil {
			return err
		}
	}
}
