package oci

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Import takes an image from an archive: what `docker save` writes, or a tar of
// an OCI layout, either gzipped or not. The archive is spooled to the store's
// disk. Without a name it keeps the one that the archive has.
func (s *Store) Import(ctx context.Context, r io.Reader, as string, step func(string)) (Image, error) {
	if step == nil {
		step = func(string) {}
	}
	tmp, err := os.MkdirTemp(s.dir, tempPrefix)
	if err != nil {
		return Image{}, disk.Error(err, "make a directory in %s", s.dir)
	}
	defer os.RemoveAll(tmp)
	archive := filepath.Join(tmp, "archive.tar")
	if err := s.spool(ctx, r, archive); err != nil {
		return Image{}, err
	}
	img, has, err := readArchive(ctx, archive, filepath.Join(tmp, "layout"))
	if err != nil {
		return Image{}, err
	}
	if as == "" {
		as = has
	}
	if as == "" {
		return Image{}, cay.Errorf(cay.Invalid, "the archive does not say what its image is called").
			WithHint("give it a name")
	}
	ref, err := s.parse(as)
	if err != nil {
		return Image{}, err
	}
	done, err := s.add(ctx, img, ref, true, step)
	if cay.KindOf(err) == cay.Unavailable && ctx.Err() == nil { // no registry was asked
		err = cay.Wrap(cay.Invalid, err, "the archive's image is unusable: %v", errors.Unwrap(err))
	}
	return done, err
}

// spool writes an archive to disk, unzipped, within the limits.
func (s *Store) spool(ctx context.Context, r io.Reader, to string) (err error) {
	in := bufio.NewReaderSize(r, 1<<16)
	var from io.Reader = in
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(in)
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "the archive is not a good gzip")
		}
		from = z
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return disk.Error(err, "make %s", to)
	}
	defer func() {
		if closed := f.Close(); err == nil && closed != nil {
			err = disk.Error(closed, "write the archive to disk")
		}
	}()
	most, grow := s.opts.Limits.Bytes, s.grow()
	defer grow.done() // its image is counted as it is unpacked
	n, err := io.Copy(io.MultiWriter(f, grow), io.LimitReader(&cancelled{ctx, from}, most+1))
	switch {
	case ctx.Err() != nil:
		return cay.Wrap(cay.Unavailable, ctx.Err(), "the import was cancelled")
	case cay.KindOf(err) == cay.NoSpace:
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		return cay.Wrap(cay.Invalid, err, "the archive is damaged or ends early")
	case err != nil:
		return disk.Error(err, "write the archive to disk")
	case n > most:
		return cay.Errorf(cay.Exhausted, "the archive is larger than allowed")
	}
	return nil
}

// cancelled is a reader that a context ends.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// readArchive finds the image in an archive and the name it has there.
func readArchive(ctx context.Context, archive, dir string) (img v1.Image, has string, err error) {
	isLayout, err := extractLayout(ctx, archive, dir)
	if err != nil {
		return nil, "", err
	}
	if isLayout {
		if err := os.Remove(archive); err != nil { // all of it is below dir
			return nil, "", disk.Error(err, "remove the archive")
		}
		return readLayout(dir)
	}
	left := int64(metaMost)
	open := func() (io.ReadCloser, error) {
		f, err := os.Open(archive)
		if err != nil || left == unbounded {
			return f, err
		}
		return &frugal{f, &left}, nil
	}
	m, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, "", cay.Wrap(cay.Invalid, err, "the archive holds no image: neither what docker save writes nor an OCI layout")
	}
	if len(m) != 1 {
		return nil, "", cay.Errorf(cay.Invalid, "the archive holds %d images", len(m)).WithHint("save them one by one")
	}
	if len(m[0].RepoTags) > 0 {
		has = m[0].RepoTags[0]
	}
	img, err = tarball.Image(open, nil)
	if err != nil {
		return nil, "", cay.Wrap(cay.Invalid, err, "the archive's image is unusable: %v", err)
	}
	left = unbounded // from now on layers are opened
	return img, has, nil
}

// metaMost bounds the part of an archive that is read into memory: the image's
// description, and headers.
const (
	metaMost  = 8 << 20
	unbounded = -1
)

// frugal is a file of which only so much is read; skipped bytes cost nothing.
type frugal struct {
	f    *os.File
	left *int64
}

func (f *frugal) Read(p []byte) (int, error) {
	n, err := f.f.Read(p[:min(int64(len(p)), *f.left)])
	if *f.left -= int64(n); *f.left == 0 {
		return n, errors.New("what describes the image is too large")
	}
	return n, err
}

func (f *frugal) Seek(to int64, from int) (int64, error) { return f.f.Seek(to, from) }

func (f *frugal) Close() error { return f.f.Close() }

// layoutFile are the only files of an OCI layout that matter.
var layoutFile = regexp.MustCompile(`^(oci-layout|index\.json|blobs/sha256/[0-9a-f]{64})$`)

// extractLayout unpacks an OCI layout. An archive that is none is left alone.
func extractLayout(ctx context.Context, archive, dir string) (bool, error) {
	f, err := os.Open(archive)
	if err != nil {
		return false, disk.Error(err, "open the archive")
	}
	defer f.Close()
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700); err != nil {
		return false, disk.Error(err, "make %s", dir)
	}
	var marks int
	in := tar.NewReader(f)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return marks == 2, nil
		}
		if err != nil {
			return false, cay.Wrap(cay.Invalid, err, "the archive is not a good tar: %v", err)
		}
		clean := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Typeflag != tar.TypeReg || !layoutFile.MatchString(clean) {
			continue
		}
		if err := writeFile(filepath.Join(dir, clean), &cancelled{ctx, in}); err != nil {
			return false, err
		}
		if !strings.HasPrefix(clean, "blobs/") {
			marks++
		}
	}
}

func writeFile(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return disk.Error(err, "make %s", path)
	}
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Close()); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return cay.Wrap(cay.Invalid, err, "the archive ends early")
		}
		return disk.Error(err, "unpack the archive")
	}
	return nil
}

// refAnnotation and containerdName are how layouts name their images.
const (
	refAnnotation  = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

func readLayout(dir string) (v1.Image, string, error) {
	bad := func(err error) error { return cay.Wrap(cay.Invalid, err, "the OCI layout is unusable: %v", err) }
	if err := small(filepath.Join(dir, "index.json")); err != nil {
		return nil, "", bad(err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, "", bad(err)
	}
	img, has, err := pick(dir, index, 0)
	if err != nil {
		return nil, "", bad(err)
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, "", bad(err)
	}
	if err := small(blobOf(dir, m.Config.Digest)); err != nil {
		return nil, "", bad(err)
	}
	return img, has, nil
}

func blobOf(dir string, digest v1.Hash) string {
	return filepath.Join(dir, "blobs", digest.Algorithm, digest.Hex)
}

// small fails for a file that is too large to be read into memory. One that
// lacks is for its reader to say.
func small(name string) error {
	if st, err := os.Stat(name); err == nil && st.Size() > configMost {
		return errors.New("what describes its image is too large")
	}
	return nil
}

// pick finds the image for this machine in an index, which may hold others.
func pick(dir string, index v1.ImageIndex, depth int) (v1.Image, string, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, "", err
	}
	for _, d := range m.Manifests {
		has := d.Annotations[containerdName]
		if ref := d.Annotations[refAnnotation]; has == "" && ref != "" {
			if _, err := name.ParseReference(ref, name.WeakValidation); err == nil {
				has = ref
			}
		}
		if err := small(blobOf(dir, d.Digest)); err != nil {
			return nil, "", err
		}
		switch {
		case d.MediaType.IsIndex() && depth < 3:
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, "", err
			}
			img, innerHas, err := pick(dir, inner, depth+1)
			if err != nil {
				continue
			}
			if has == "" {
				has = innerHas
			}
			return img, has, nil
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH):
			img, err := index.Image(d.Digest)
			return img, has, err
		}
	}
	return nil, "", errors.New("it holds no image for linux/" + runtime.GOARCH)
}
