package cargo

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/cay-run/cay"
)

// Bucket is a prefix of an S3 bucket.
type Bucket struct {
	api    *minio.Client
	bucket string
	prefix string // empty, or ends with "/"
}

// IsBucket reports whether a text names a prefix of a bucket.
func IsBucket(text string) bool { return strings.HasPrefix(text, "s3://") }

// OpenBucket reads s3://BUCKET/PREFIX, and from the environment what opens it,
// by the names that AWS' own tools have for it: AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID with
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile AWS_PROFILE of
// AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials. Without any of those,
// requests are not signed, as public buckets allow.
func OpenBucket(text string, getenv func(string) string) (*Bucket, error) {
	rest, _ := strings.CutPrefix(text, "s3://")
	name, prefix, _ := strings.Cut(rest, "/")
	if err := s3utils.CheckValidBucketName(name); err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "%.200q names no bucket", text).WithHint("say s3://BUCKET/PREFIX")
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	host, secure, lookup := "s3.amazonaws.com", true, minio.BucketLookupAuto
	if at := first(getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL")); at != "" {
		u, err := url.Parse(at)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, cay.Errorf(cay.Invalid, "AWS_ENDPOINT_URL is %q, not like https://host:port", at)
		}
		host, secure, lookup = u.Host, u.Scheme == "https", minio.BucketLookupPath
	}
	api, err := minio.New(host, &minio.Options{
		Creds: opens(getenv), Secure: secure, BucketLookup: lookup,
		Region: first(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION")),
	})
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the bucket cannot be used")
	}
	return &Bucket{api: api, bucket: name, prefix: prefix}, nil
}

func opens(getenv func(string) string) *credentials.Credentials {
	if id := getenv("AWS_ACCESS_KEY_ID"); id != "" {
		return credentials.NewStaticV4(id, getenv("AWS_SECRET_ACCESS_KEY"), getenv("AWS_SESSION_TOKEN"))
	}
	file := credentials.NewFileAWSCredentials(getenv("AWS_SHARED_CREDENTIALS_FILE"), getenv("AWS_PROFILE"))
	if _, err := file.GetWithContext(nil); err == nil {
		return file
	}
	return credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// Tar is a tar stream of the objects below the prefix, by names without it. An
// object whose name ends with "/" is a directory.
func (b *Bucket) Tar(ctx context.Context) io.ReadCloser {
	ctx, stop := context.WithCancel(ctx)
	r := stream(func(w *tar.Writer) error {
		for object := range b.api.ListObjects(ctx, b.bucket, minio.ListObjectsOptions{Prefix: b.prefix, Recursive: true}) {
			if object.Err != nil {
				return b.explain(object.Err)
			}
			if err := b.fetch(ctx, w, object); err != nil {
				return b.explain(err)
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

func (b *Bucket) fetch(ctx context.Context, w *tar.Writer, object minio.ObjectInfo) error {
	name := strings.TrimPrefix(object.Key, b.prefix)
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: object.Size, ModTime: object.LastModified}
	switch {
	case name == "":
		return nil // the mark of the prefix itself
	case strings.HasSuffix(name, "/"):
		h.Typeflag, h.Mode, h.Size = tar.TypeDir, 0o755, 0
		return w.WriteHeader(h)
	}
	// The object that was listed is fetched, and no newer one that took its place.
	o := minio.GetObjectOptions{}
	if err := o.SetMatchETag(object.ETag); err != nil {
		return err
	}
	content, err := b.api.GetObject(ctx, b.bucket, object.Key, o)
	if err != nil {
		return err
	}
	defer content.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w, content)
	if err == nil && n != h.Size {
		err = cay.Errorf(cay.Unavailable, "the object %.200q came with %d of %d bytes", object.Key, n, h.Size)
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
		if err != nil {
			return out, err
		}
		if err := b.put(ctx, h, t, &out); err != nil {
			return out, b.explain(err)
		}
	}
}

func (b *Bucket) put(ctx context.Context, h *tar.Header, content io.Reader, out *Stored) error {
	key := b.prefix + strings.TrimPrefix(path.Clean(h.Name), "/")
	if !utf8.ValidString(key) {
		return cay.Errorf(cay.Invalid, "the name %.200q is not UTF-8, which an object's must be", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeDir:
		key += "/"
	default:
		out.Left++
		return nil
	}
	// A sum of each part, and no stream of signed chunks: not every server reads
	// those.
	_, err := b.api.PutObject(ctx, b.bucket, key, content, h.Size, minio.PutObjectOptions{SendContentMd5: true, DisableContentSha256: true})
	if err == nil {
		out.Objects++
		out.Bytes += h.Size
	}
	return err
}

// explain says in the words of this program what a bucket answered.
func (b *Bucket) explain(err error) error {
	var known *cay.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	answer := minio.ToErrorResponse(err)
	switch {
	case answer.Code == minio.NoSuchBucket:
		return cay.Errorf(cay.NotFound, "there is no bucket %.100q", b.bucket)
	case answer.StatusCode == http.StatusForbidden, answer.Code == minio.AccessDenied:
		return cay.Wrap(cay.Denied, err, "the bucket %.100q is not open to these credentials", b.bucket).
			WithHint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
	}
	return cay.Wrap(cay.Unavailable, err, "the bucket %.100q", b.bucket)
}
