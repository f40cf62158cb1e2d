package cargo

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
)

// Bucket is a prefix of an S3 bucket.
type Bucket struct{ at *blob.S3 }

// IsBucket reports whether a text names a prefix of a bucket.
func IsBucket(text string) bool { return blob.IsS3(text) }

// OpenBucket opens s3://BUCKET/PREFIX, with what the environment says of it: see
// blob.OpenS3.
func OpenBucket(text string, getenv func(string) string) (*Bucket, error) {
	at, err := blob.OpenS3(text, getenv)
	if err != nil {
		return nil, err
	}
	return &Bucket{at}, nil
}

// Tar is a tar stream of the objects below the prefix, by names without it. An
// object whose name ends with "/" is a directory.
func (b *Bucket) Tar(ctx context.Context) io.ReadCloser {
	ctx, stop := context.WithCancel(ctx)
	r := stream(func(w *tar.Writer) error {
		for file, err := range b.at.Files(ctx) {
			if err == nil {
				err = b.fetch(ctx, w, file)
			}
			if err != nil {
				return err
			}
		}
		return ctx.Err()
	})
	return &stopping{ReadCloser: r, stop: stop}
}

type stopping struct {
	io.ReadCloser
	stop context.CancelFunc
}

func (s *stopping) Close() error {
	s.stop()
	return s.ReadCloser.Close()
}

func (b *Bucket) fetch(ctx context.Context, w *tar.Writer, file blob.File) error {
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: file.Name, Mode: 0o644, Size: file.Size, ModTime: file.Changed}
	switch {
	case file.Name == "":
		return nil // the mark of the prefix itself
	case strings.HasSuffix(file.Name, "/"):
		h.Typeflag, h.Mode, h.Size = tar.TypeDir, 0o755, 0
		return w.WriteHeader(h)
	}
	content, err := b.at.ReadFile(ctx, file)
	if err != nil {
		return err
	}
	defer content.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w, content)
	if err == nil && n != h.Size {
		err = cay.Errorf(cay.Unavailable, "the object %.200q came with %d of %d bytes", file.Name, n, h.Size)
	}
	return err
}

// Stored counts what was stored.
type Stored struct {
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Left are links, which a bucket cannot have.
	Left int64 `json:"left"`
}

// Store writes the files of a tar stream below the prefix, each an object of its
// name. A directory is an object whose name ends with "/", so that empty ones
// stay.
func (b *Bucket) Store(ctx context.Context, in io.Reader) (Stored, error) {
	var out Stored
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return out, nil
		}
		if err == nil {
			err = b.put(ctx, h, t, &out)
		}
		if err != nil {
			return out, err
		}
	}
}

func (b *Bucket) put(ctx context.Context, h *tar.Header, content io.Reader, out *Stored) error {
	name := strings.TrimPrefix(path.Clean(h.Name), "/")
	if !utf8.ValidString(name) {
		return cay.Errorf(cay.Invalid, "the name %.200q is not UTF-8, which an object's must be", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeDir:
		name += "/"
	default:
		out.Left++
		return nil
	}
	err := b.at.WriteFile(ctx, name, content, h.Size)
	if err == nil {
		out.Objects++
		out.Bytes += h.Size
	}
	return err
}
