package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/cay-run/cay"
)

// S3 is a prefix of an S3 bucket.
type S3 struct {
	api    *minio.Client // which tries again by itself
	once   *minio.Client // which does not: Bucket counts
	bucket string
	prefix string // empty, or ends with "/"
}

// IsS3 reports whether a text names a prefix of an S3 bucket.
func IsS3(text string) bool { return strings.HasPrefix(text, "s3://") }

// OpenS3 reads s3://BUCKET/PREFIX, and from the environment what opens it,
// by the names that AWS' own tools have for it: AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID with
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile AWS_PROFILE of
// AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials. Without any of those,
// requests are not signed, as public buckets allow.
func OpenS3(text string, getenv func(string) string) (*S3, error) {
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
	s := &S3{bucket: name, prefix: prefix}
	for client, tries := range map[**minio.Client]int{&s.api: minio.MaxRetry, &s.once: 1} {
		made, err := minio.New(host, &minio.Options{
			Creds: opens(getenv), Secure: secure, BucketLookup: lookup, MaxRetries: tries,
			Region: first(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION")),
		})
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "the bucket cannot be used")
		}
		*client = made
	}
	return s, nil
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

// Bucket has objects of ours below the prefix.
func (s *S3) Bucket() *Bucket { return newBucket(s) }

// File is an object as it lies in the bucket, of whatever made it. Its name is
// without the prefix, and empty for a mark of the prefix itself.
type File struct {
	Name    string
	Size    int64
	Changed time.Time

	etag string
}

// Files lists the objects below the prefix. After an error it ends.
func (s *S3) Files(ctx context.Context) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		for o := range s.api.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix, Recursive: true}) {
			if o.Err != nil {
				yield(File{}, s.explain(o.Err, ""))
				return
			}
			if !yield(File{strings.TrimPrefix(o.Key, s.prefix), o.Size, o.LastModified, o.ETag}, nil) {
				return
			}
		}
	}
}

// ReadFile reads the object that was listed, and no newer one that took its place.
func (s *S3) ReadFile(ctx context.Context, f File) (io.ReadCloser, error) {
	o := minio.GetObjectOptions{}
	if err := o.SetMatchETag(f.etag); err != nil {
		return nil, s.explain(err, f.Name)
	}
	in, err := s.api.GetObject(ctx, s.bucket, s.prefix+f.Name, o)
	if err != nil {
		return nil, s.explain(err, f.Name)
	}
	return explained{in, s, f.Name}, nil
}

// WriteFile writes an object of any size as it comes.
func (s *S3) WriteFile(ctx context.Context, name string, content io.Reader, size int64) error {
	_, err := s.api.PutObject(ctx, s.bucket, s.prefix+name, content, size, writing())
	return s.explain(err, name)
}

// writing has a sum of each part sent, and no stream of signed chunks: not every
// server reads those.
func writing() minio.PutObjectOptions {
	return minio.PutObjectOptions{SendContentMd5: true, DisableContentSha256: true}
}

func (s *S3) put(ctx context.Context, name string, content []byte, absent bool) error {
	o := writing()
	o.DisableMultipart = true
	if absent {
		o.SetMatchETagExcept("*")
	}
	_, err := s.once.PutObject(ctx, s.bucket, s.prefix+name, bytes.NewReader(content), int64(len(content)), o)
	if absent && answerOf(err).StatusCode == http.StatusNotImplemented {
		return errConditional(err)
	}
	return s.explain(err, name)
}

func (s *S3) get(ctx context.Context, name string, from, n int64) (io.ReadCloser, error) {
	o := minio.GetObjectOptions{}
	if n >= 0 {
		if err := o.SetRange(from, from+n-1); err != nil {
			return nil, s.explain(err, name)
		}
	}
	in, _, _, err := minio.Core{Client: s.once}.GetObject(ctx, s.bucket, s.prefix+name, o)
	if err != nil {
		return nil, s.explain(err, name)
	}
	return in, nil
}

func (s *S3) remove(ctx context.Context, name string) error {
	err := s.explain(s.once.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{}), name)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	return err
}

func (s *S3) list(ctx context.Context, prefix, after string, yield func(Object) bool) error {
	o := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}
	if after != "" {
		o.StartAfter = s.prefix + after
	}
	for object := range s.once.ListObjectsIter(ctx, s.bucket, o) {
		if object.Err != nil {
			return s.explain(object.Err, prefix)
		}
		if !yield(Object{strings.TrimPrefix(object.Key, s.prefix), object.Size, object.LastModified}) {
			return nil
		}
	}
	return nil
}

// explained is an object whose errors are explained.
type explained struct {
	io.ReadCloser
	of   *S3
	name string
}

func (e explained) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = e.of.explain(err, e.name)
	}
	return n, err
}

func (s *S3) refused(err error) error {
	return cay.Wrap(cay.Denied, errors.Join(ErrCredentials, err), "the bucket %.100q is not open to these credentials", s.bucket).
		WithHint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
}

// answerOf is what the server said; nothing where none answered.
func answerOf(err error) (answer minio.ErrorResponse) {
	errors.As(err, &answer)
	return answer
}

// explain says in the words of this program what a bucket answered.
func (s *S3) explain(err error, name string) error {
	var known *cay.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	answer := answerOf(err)
	switch answer.Code {
	case minio.NoSuchBucket:
		return cay.Wrap(cay.NotFound, errors.Join(ErrNoBucket, err), "there is no bucket %.100q", s.bucket)
	case minio.NoSuchKey:
		return missing(name, err)
	case "RequestTimeTooSkewed", "RequestExpired":
		return cay.Wrap(cay.Unavailable, errors.Join(ErrClock, err), "the clock of this machine and that of the bucket %.100q differ by more than it allows", s.bucket).
			WithHint("set the clock: timedatectl set-ntp true")
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound": // the last is versitygw's, with 404
		return s.refused(err)
	case minio.PreconditionFailed:
		return cay.Wrap(cay.Conflict, errors.Join(ErrExists, err), "the object %s is there already", name)
	case "InvalidRange":
		return pastEnd(name)
	case "QuotaExceeded", "XMinioStorageFull", "StorageFull", "InsufficientStorage":
		return cay.Wrap(cay.NoSpace, errors.Join(ErrFull, err), "the bucket %.100q is full", s.bucket)
	}
	switch answer.StatusCode {
	case http.StatusForbidden, http.StatusUnauthorized:
		return s.refused(err)
	case http.StatusNotFound:
		return missing(name, err)
	case http.StatusPreconditionFailed:
		return cay.Wrap(cay.Conflict, errors.Join(ErrExists, err), "the object %s is there already", name)
	case http.StatusRequestedRangeNotSatisfiable:
		return pastEnd(name)
	}
	if answer.StatusCode >= 400 && answer.StatusCode < 500 && answer.StatusCode != http.StatusTooManyRequests &&
		answer.StatusCode != http.StatusRequestTimeout && answer.StatusCode != http.StatusConflict {
		return cay.Wrap(cay.Internal, err, "the bucket %.100q refuses a request", s.bucket)
	}
	return cay.Wrap(cay.Unavailable, errors.Join(ErrUnreachable, err), "the bucket %.100q does not answer", s.bucket)
}
