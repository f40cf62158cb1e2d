// Package bundle writes templates as one file and reads them, for machines
// that have no network: a tar, compressed with zstd, that holds
//
//	template.json   the Manifest
//	root/…          the files of the root
//	SHA256          of all bytes of the tar before it, in hexadecimal
//
// Running processes are no part of it: the machine that reads the file boots the root
// and starts what the manifest says, so that neither engine nor processor have
// to be the same. A file may come from any machine.
package bundle

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// Format is raised when an older Cay could not read the files any more.
const Format = 1

const (
	manifestName = "template.json"
	rootPrefix   = "root/"
	sumName      = "SHA256"

	manifestMost = 1 << 20
	windowMost   = 32 << 20 // memory of a decoder
	headerSize   = 512      // of the entry of the sum
)

// Manifest says what a template is besides its files.
type Manifest struct {
	Format    int        `json:"format"`
	Name      string     `json:"name"`
	Limits    cay.Limits `json:"limits"`
	Setup     cay.Setup  `json:"setup"`
	CreatedAt time.Time  `json:"createdAt"`
}

// Write writes a template.
func Write(ctx context.Context, w io.Writer, m Manifest, tree *erofs.Tree) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	m.Format = Format
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return errors.Join(err, z.Close())
	}
	sum := sha256.New()
	p := &packer{out: tar.NewWriter(io.MultiWriter(sum, z)), names: map[*erofs.Node]string{}}
	err = p.file(manifestName, text)
	if err == nil {
		err = p.tree(ctx, rootPrefix, tree.Lookup(""))
	}
	if err == nil {
		err = p.out.Flush()
	}
	if err == nil {
		err = p.file(sumName, []byte(hex.EncodeToString(sum.Sum(nil))))
	}
	if err != nil {
		return errors.Join(err, z.Close())
	}
	return errors.Join(p.out.Close(), z.Close())
}

// packer writes the tar.
type packer struct {
	out   *tar.Writer
	names map[*erofs.Node]string // of files that are there already
}

func (p *packer) file(name string, text []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatUSTAR}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	_, err := p.out.Write(text)
	return err
}

// types are tar's flags by the type in a mode.
var types = map[uint32]byte{
	0x8000: tar.TypeReg, 0x4000: tar.TypeDir, 0xa000: tar.TypeSymlink,
	0x2000: tar.TypeChar, 0x6000: tar.TypeBlock, 0x1000: tar.TypeFifo,
}

// tree writes a file, and what is in it.
func (p *packer) tree(ctx context.Context, name string, n *erofs.Node) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	kind, ok := types[n.Mode&0xf000]
	if !ok || strings.HasPrefix(path.Base(name), ".wh.") {
		return nil // sockets, and what layers would take for a whiteout
	}
	h := &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(n.Mode & 0o7777), Uid: int(n.UID), Gid: int(n.GID),
		ModTime: n.Mtime, Format: tar.FormatPAX,
	}
	if first, again := p.names[n]; again {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.out.WriteHeader(h)
	}
	switch kind {
	case tar.TypeDir:
		h.Name = strings.TrimSuffix(name, "/") + "/"
	case tar.TypeSymlink:
		h.Linkname = n.Target
	case tar.TypeReg:
		h.Size = n.Size
	case tar.TypeChar, tar.TypeBlock:
		h.Devmajor, h.Devminor = int64(n.Rdev>>8&0xfff), int64(n.Rdev&0xff|n.Rdev>>12&^0xff)
	}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	if kind == tar.TypeReg {
		_, err := io.Copy(p.out, n.Content())
		p.names[n] = name
		return err
	}
	if kind != tar.TypeDir {
		p.names[n] = name
	}
	for _, child := range slices.Sorted(n.Names()) {
		if err := p.tree(ctx, path.Join(name, child), n.Child(child)); err != nil {
			return err
		}
	}
	return nil
}

// Reader reads the file of a template.
type Reader struct {
	Manifest Manifest
	in       *tar.Reader
	sum      *summed
	z        *zstd.Decoder
}

// Open reads the manifest of a template's file.
func Open(r io.Reader) (*Reader, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowMost))
	if err != nil {
		return nil, damaged(err)
	}
	out := &Reader{sum: &summed{r: z, sum: sha256.New()}, z: z}
	out.in = tar.NewReader(out.sum)
	if err := out.manifest(); err != nil {
		z.Close()
		return nil, err
	}
	return out, nil
}

// Close lets go of the decoder, not of what it reads.
func (r *Reader) Close() { r.z.Close() }

func (r *Reader) manifest() error {
	h, err := r.in.Next()
	if err != nil {
		return damaged(err)
	}
	if h.Name != manifestName || h.Size > manifestMost {
		return cay.Errorf(cay.Invalid, "this is no file of a template").WithHint("make one with: cay template export NAME")
	}
	if err := json.NewDecoder(io.LimitReader(r.in, manifestMost)).Decode(&r.Manifest); err != nil {
		return damaged(err)
	}
	if f := r.Manifest.Format; f < 1 || f > Format {
		return cay.Errorf(cay.Unsupported, "the file has format %d; this Cay reads up to %d", f, Format)
	}
	return nil
}

// Files writes the files of the root as a tar. After an error the reader must
// drop all of it: the sum comes last.
func (r *Reader) Files(w io.Writer) error {
	out := tar.NewWriter(w)
	for {
		h, err := r.in.Next()
		if err != nil {
			return damaged(err)
		}
		if h.Name == sumName {
			break
		}
		name, ok := strings.CutPrefix(h.Name, rootPrefix)
		if !ok {
			return cay.Errorf(cay.Invalid, "the file holds %.200q, which is no part of a template", h.Name)
		}
		next := &tar.Header{
			Typeflag: h.Typeflag, Name: "/" + name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777,
			Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Devmajor: h.Devmajor, Devminor: h.Devminor, Format: tar.FormatPAX,
		}
		if h.Typeflag == tar.TypeLink {
			next.Linkname = strings.TrimPrefix(h.Linkname, rootPrefix)
		}
		if err := out.WriteHeader(next); err != nil {
			return damaged(err)
		}
		if _, err := copyFrom(out, r.in); err != nil {
			return err
		}
	}
	want := hex.EncodeToString(r.sum.sum.Sum(nil)) // of all before this entry
	text, err := io.ReadAll(io.LimitReader(r.in, int64(len(want))+1))
	if err != nil {
		return damaged(err)
	}
	if string(text) != want {
		return cay.Errorf(cay.Invalid, "the file is damaged: its checksum differs")
	}
	if _, err := r.in.Next(); err != io.EOF {
		return cay.Errorf(cay.Invalid, "the file goes on after its checksum")
	}
	return out.Close()
}

// copyFrom is io.Copy whose error names the side that failed.
func copyFrom(w io.Writer, r io.Reader) (int64, error) {
	n, read, err := disk.Copy(w, r)
	if read != nil {
		err = damaged(read)
	}
	return n, err
}

func damaged(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return cay.Wrap(cay.Invalid, err, "the file is damaged or ends early: %v", err)
}

// summed sums what it reads, but for the last header, which is that of the sum
// when it is asked for.
type summed struct {
	r    io.Reader
	sum  hash.Hash
	held []byte
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.held = append(s.held, p[:n]...)
	if more := len(s.held) - headerSize; more > 0 {
		s.sum.Write(s.held[:more])
		s.held = append(s.held[:0], s.held[more:]...)
	}
	return n, err
}
