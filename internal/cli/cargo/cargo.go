// Package cargo moves trees of files as tar streams: out of archives of several
// kinds and prefixes of S3 buckets, and into them. It holds no tree in memory or
// on disk.
package cargo

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay"
)

// Kind is a kind of archive.
type Kind string

// The kinds of archives.
const (
	Tar     Kind = ".tar"
	TarGzip Kind = ".tar.gz"
	TarZstd Kind = ".tar.zst"
	Zip     Kind = ".zip"
)

// maxTarget bounds where a link of a zip leads: Linux has no longer paths.
const maxTarget = 4096

// KindOf tells the kind of an archive by its name; ok is false for a name of
// none.
func KindOf(name string) (kind Kind, ok bool) {
	name = strings.ToLower(name)
	for end, kind := range map[string]Kind{
		".tar": Tar, ".tar.gz": TarGzip, ".tgz": TarGzip, ".tar.zst": TarZstd, ".tzst": TarZstd, ".zip": Zip,
	} {
		if strings.HasSuffix(name, end) {
			return kind, true
		}
	}
	return "", false
}

// Open opens an archive of any kind, which its first bytes tell, as a tar stream.
// Only a file that can be read at any place may be a zip.
func Open(f *os.File) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(f, 256<<10)
	head, err := in.Peek(262)
	if err != nil && err != io.EOF {
		return nil, cay.Wrap(cay.Invalid, err, "cannot read the archive")
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "the archive cannot be read")
		}
		return z, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in)
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "the archive cannot be read")
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return openZip(f)
	case len(head) >= 262 && string(head[257:262]) == "ustar", len(head) > 0 && len(bytes.Trim(head, "\x00")) == 0:
		return io.NopCloser(in), nil
	}
	return nil, cay.Errorf(cay.Invalid, "this is no archive that can be read").
		WithHint("tar, tar.gz, tar.zst and zip can be")
}

// openZip turns a zip into a tar stream.
func openZip(f *os.File) (io.ReadCloser, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "cannot read the archive")
	}
	if !st.Mode().IsRegular() {
		return nil, cay.Errorf(cay.Invalid, "a zip cannot be read from a stream: its list of contents is at its end").
			WithHint("name the file")
	}
	z, err := zip.NewReader(f, st.Size())
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // the receiver looks at paths
		return nil, cay.Wrap(cay.Invalid, err, "the zip cannot be read")
	}
	return stream(func(w *tar.Writer) error {
		for _, entry := range z.File {
			if err := unzip(w, entry); err != nil {
				return cay.Wrap(cay.Invalid, err, "the zip's entry %.200q cannot be read", entry.Name)
			}
		}
		return nil
	}), nil
}

func unzip(w *tar.Writer, z *zip.File) error {
	if !utf8.ValidString(z.Name) {
		return errors.New("its name is not UTF-8, and a zip does not say what it is")
	}
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: z.Name, Mode: int64(z.Mode().Perm()), ModTime: z.Modified}
	if h.Mode == 0 { // made where files have no modes
		h.Mode = 0o644
	}
	switch mode := z.Mode(); {
	case mode.IsDir():
		h.Typeflag, h.Mode = tar.TypeDir, h.Mode|0o700
		return w.WriteHeader(h)
	case mode&fs.ModeSymlink != 0:
		target, err := textOf(z)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return w.WriteHeader(h)
	case !mode.IsRegular():
		return errors.New("it is a FIFO or a device")
	}
	r, err := z.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	h.Size = int64(z.UncompressedSize64)
	if h.Size < 0 {
		return errors.New("its size is impossible")
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w, r)
	if err == nil && n != h.Size {
		err = fmt.Errorf("it has %d bytes, not the %d that it says", n, h.Size)
	}
	return err
}

func textOf(z *zip.File) (string, error) {
	r, err := z.Open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxTarget+1))
	if err == nil && len(text) > maxTarget {
		err = errors.New("the link leads too far")
	}
	return string(text), err
}

// stream is the tar that write writes, as it is read.
func stream(write func(*tar.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(w, 256<<10)
		t := tar.NewWriter(out)
		err := write(t)
		if err == nil {
			err = errors.Join(t.Close(), out.Flush())
		}
		w.CloseWithError(err)
	}()
	return r
}

// Save writes a tar stream as an archive of a kind.
func Save(w io.Writer, kind Kind, in io.Reader) error {
	switch kind {
	case TarGzip:
		z := gzip.NewWriter(w)
		_, err := io.Copy(z, in)
		return errors.Join(err, z.Close())
	case TarZstd:
		z, err := zstd.NewWriter(w)
		if err != nil {
			return err
		}
		_, err = io.Copy(z, in)
		return errors.Join(err, z.Close())
	case Zip:
		return saveZip(w, in)
	}
	_, err := io.Copy(w, in)
	return err
}

func saveZip(w io.Writer, in io.Reader) error {
	z := zip.NewWriter(w)
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return z.Close()
		}
		if err != nil {
			return err
		}
		if err := saveEntry(z, h, t); err != nil {
			return err
		}
	}
}

func saveEntry(z *zip.Writer, h *tar.Header, content io.Reader) error {
	name := strings.TrimPrefix(path.Clean(h.Name), "/")
	if !utf8.ValidString(name) {
		return cay.Errorf(cay.Invalid, "the name %.200q is not UTF-8, which a zip cannot have", h.Name).WithHint("write a tar")
	}
	out := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: h.ModTime}
	switch h.Typeflag {
	case tar.TypeDir:
		out.Name += "/"
		out.SetMode(fs.FileMode(h.Mode&0o777) | fs.ModeDir)
		_, err := z.CreateHeader(out)
		return err
	case tar.TypeSymlink:
		out.SetMode(fs.FileMode(h.Mode&0o777) | fs.ModeSymlink)
		f, err := z.CreateHeader(out)
		if err == nil {
			_, err = io.WriteString(f, h.Linkname)
		}
		return err
	case tar.TypeReg:
		out.SetMode(fs.FileMode(h.Mode & 0o777))
		f, err := z.CreateHeader(out)
		if err == nil {
			_, err = io.Copy(f, content)
		}
		return err
	}
	return cay.Errorf(cay.Invalid, "%.200q is a second name of a file, which a zip cannot have", h.Name).WithHint("write a tar")
}
