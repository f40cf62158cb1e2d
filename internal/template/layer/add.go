package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"

	filesMost = 2_000_000
	nameMost  = 4096
	blockSize = 4096

	paxCapability = "SCHILY.xattr.security.capability"
	capableMost   = 1000
)

// modes are the types of files by tar's flag.
var modes = map[byte]uint32{
	tar.TypeReg: 0x8000, tar.TypeDir: 0x4000, tar.TypeSymlink: 0xa000,
	tar.TypeChar: 0x2000, tar.TypeBlock: 0x6000, tar.TypeFifo: 0x1000,
}

// elsewhere are the directories of a sandbox that are mounts: their files are no
// part of its root.
var elsewhere = []string{"dev/", "proc/", "sys/", ".cay/"}

// place is where a content is.
type place struct {
	pack  int
	start int64
}

// writer makes one layer.
type writer struct {
	out   index
	known map[string]place // contents that are stored, by their sum
	pack  *os.File         // of what is new
	mine  int              // its number
	end   int64
	left  int64 // bytes of content that may still come
	buf   []byte

	capable []string
}

// Add stores what a tar in OCI's form says of changes to below, which is the
// digest of a layer or empty for a root image. Contents that before (which may
// be nil) has as well are not stored again. Contents together must not exceed
// most bytes, holes included. The tar may be of a hostile guest's making.
func (s *Store) Add(ctx context.Context, below string, before *Layer, in io.Reader, most int64) (*Layer, error) {
	pack, err := os.CreateTemp(s.tmp(), "pack-")
	if err != nil {
		return nil, disk.Error(err, "begin a layer")
	}
	defer os.Remove(pack.Name())
	defer pack.Close()
	w := &writer{out: index{Below: below, Files: []file{}}, known: map[string]place{}, pack: pack, left: most, buf: make([]byte, 64<<10)}
	if before != nil {
		w.out.Packs = append(w.out.Packs, before.packs...)
		for _, f := range before.files {
			if f.Sum != "" {
				w.known[f.Sum] = place{f.Pack, f.Start}
			}
		}
	}
	w.mine = len(w.out.Packs)
	if err := w.read(ctx, tar.NewReader(in)); err != nil {
		var ours *cay.Error
		if errors.As(err, &ours) || ctx.Err() != nil {
			return nil, err
		}
		return nil, disk.Error(err, "read the files of a step")
	}
	return s.seal(w)
}

func (w *writer) read(ctx context.Context, in *tar.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if len(w.out.Files) >= filesMost {
			return cay.Errorf(cay.Invalid, "the step changed more than %d files", filesMost)
		}
		f, ok, err := describe(h)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if h.Typeflag == tar.TypeReg && f.Kind == present && h.Size > 0 {
			if err := w.store(&f, in, h.Size); err != nil {
				return err
			}
		}
		w.out.Files = append(w.out.Files, f)
		if h.PAXRecords[paxCapability] != "" && len(w.capable) < capableMost {
			w.capable = append(w.capable, f.Name)
		}
	}
}

// describe turns a header into a change; ok is false for what no root has.
func describe(h *tar.Header) (f file, ok bool, err error) {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if len(name) > nameMost || len(h.Linkname) > nameMost {
		return f, false, cay.Errorf(cay.Invalid, "the step made a file whose name has more than %d bytes", nameMost)
	}
	for _, dir := range elsewhere {
		if strings.HasPrefix(name, dir) {
			return f, false, nil
		}
	}
	dir, base := path.Split(name)
	if hidden, found := strings.CutPrefix(base, whiteout); found {
		if base == opaque {
			return file{Name: path.Clean(dir), Kind: cleared}, true, nil
		}
		return file{Name: dir + hidden, Kind: gone}, true, nil
	}
	if h.Typeflag == tar.TypeLink {
		return file{Name: name, Kind: link, Link: strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")}, true, nil
	}
	mode, known := modes[h.Typeflag]
	if !known {
		return f, false, nil
	}
	f = file{
		Name: name, Mode: mode | uint32(h.Mode)&0o7777, UID: uint32(h.Uid), GID: uint32(h.Gid),
		Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond()),
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		f.Link = h.Linkname
	case tar.TypeChar, tar.TypeBlock:
		f.Rdev = uint32(h.Devmajor)&0xfff<<8 | uint32(h.Devminor)&0xff | uint32(h.Devminor)&^0xff<<12
	}
	return f, true, nil
}

// store reads a content and finds or makes its place.
func (w *writer) store(f *file, in io.Reader, size int64) error {
	if w.left -= size; w.left < 0 {
		return cay.Errorf(cay.NoSpace, "the step's files are larger than the disk of the template (%.200q has %d MB)", f.Name, size>>20).
			WithHint("holes in sparse files count too")
	}
	f.Size, f.Pack, f.Start = size, w.mine, w.end
	sum, at, blank := sha256.New(), w.end, true
	for left := size; left > 0; {
		b := w.buf[:min(int64(len(w.buf)), left)]
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		sum.Write(b)
		if !zero(b) {
			if _, err := w.pack.WriteAt(b, at); err != nil {
				return err
			}
			blank = false
		}
		at, left = at+int64(len(b)), left-int64(len(b))
	}
	f.Sum = hex.EncodeToString(sum.Sum(nil))
	if have, ok := w.known[f.Sum]; ok {
		f.Pack, f.Start = have.pack, have.start
		if blank {
			return nil
		}
		return w.pack.Truncate(w.end) // the next content may have holes
	}
	w.known[f.Sum] = place{w.mine, w.end}
	w.end = (at + blockSize - 1) / blockSize * blockSize
	return nil
}

var zeros [64 << 10]byte

func zero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// seal gives a layer its name.
func (s *Store) seal(w *writer) (*Layer, error) {
	if w.end > 0 {
		digest, err := s.sealPack(w)
		if err != nil {
			return nil, err
		}
		w.out.Packs = append(w.out.Packs, digest)
	}
	w.out.Packs = w.out.used()
	text, err := json.Marshal(w.out)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "encode a layer")
	}
	sum := sha256.Sum256(text)
	l := &Layer{Digest: hex.EncodeToString(sum[:]), Below: w.out.Below, Capable: w.capable, packs: w.out.Packs, files: w.out.Files}
	if _, err := os.Lstat(s.path(l.Digest)); err == nil {
		return l, nil
	}
	tmp, err := os.MkdirTemp(s.tmp(), "layer-")
	if err != nil {
		return nil, disk.Error(err, "begin a layer")
	}
	defer os.RemoveAll(tmp)
	if err := writeSynced(filepath.Join(tmp, "index.json"), text); err != nil {
		return nil, disk.Error(err, "write a layer")
	}
	err = os.Rename(tmp, filepath.Join(s.dir, l.Digest))
	if _, there := os.Lstat(s.path(l.Digest)); err != nil && there != nil { // else another build made the same
		return nil, disk.Error(err, "name a layer")
	}
	return l, nil
}

// used drops the packs that no file is in, and numbers the others anew.
func (x *index) used() []string {
	numbers := map[int]int{}
	var packs []string
	for i := range x.Files {
		f := &x.Files[i]
		if f.Size == 0 {
			continue
		}
		n, ok := numbers[f.Pack]
		if !ok {
			n = len(packs)
			numbers[f.Pack] = n
			packs = append(packs, x.Packs[f.Pack])
		}
		f.Pack = n
	}
	return packs
}

// sealPack names the pack by the contents in it and where they are, which is
// the same as by all its bytes, and has been summed up already.
func (s *Store) sealPack(w *writer) (digest string, err error) {
	sum := sha256.New()
	for _, f := range w.out.Files {
		if f.Size > 0 && f.Pack == w.mine {
			_, _ = io.WriteString(sum, f.Sum)
		}
	}
	digest = hex.EncodeToString(sum.Sum(nil))
	if err := errors.Join(w.pack.Truncate(w.end), w.pack.Sync()); err != nil {
		return "", disk.Error(err, "write a layer")
	}
	if err := os.Rename(w.pack.Name(), s.pack(digest)); err != nil {
		return "", disk.Error(err, "name a pack")
	}
	return digest, nil
}

func writeSynced(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}
