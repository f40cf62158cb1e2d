// Package blob keeps objects in a bucket: a prefix of an S3 bucket, or a directory.
// Objects are written whole and read whole or in ranges; each begins with the
// SHA-256 of its content, so that what a server or a disk damaged is found on any of
// them. The conformance suite in blob/blobtest is what every kind passes.
package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// MaxObject is the most bytes that an object may have.
const MaxObject = 64 << 20

// The failures of a bucket. An error is a *cay.Error around one of them.
var (
	ErrMissing     = errors.New("the object is missing")
	ErrExists      = errors.New("the object is there already")
	ErrDamaged     = errors.New("the object is damaged")
	ErrCredentials = errors.New("the credentials do not open the bucket")
	ErrClock       = errors.New("the clocks differ")
	ErrConditional = errors.New("the bucket has no conditional writes")
	ErrUnreachable = errors.New("the bucket does not answer")
	ErrNoBucket    = errors.New("there is no such bucket")
	ErrFull        = errors.New("the bucket is full")
)

// Object is an object in a list.
type Object struct {
	Name    string
	Size    int64 // of its content
	Changed time.Time
}

// Bucket keeps objects under names. Its methods may be called at the same time, by
// several processes too: an object is seen whole or not at all. A
// request that the bucket does not answer is repeated, a few times.
type Bucket struct {
	at    driver
	tries int
	wait  time.Duration // after the first try; then twice as long each time
}

// driver is a kind of bucket. It does each thing once, and keeps what it is given.
type driver interface {
	// put writes an object; with absent, only where none is, else ErrExists.
	put(ctx context.Context, name string, content []byte, absent bool) error
	// get reads n bytes from a place on, or to the end for -1.
	get(ctx context.Context, name string, from, n int64) (io.ReadCloser, error)
	// remove removes an object; one that is not there is no error.
	remove(ctx context.Context, name string) error
	// list gives the objects whose names begin with prefix and come after another
	// name, in the order of their names' bytes, until yield is false.
	list(ctx context.Context, prefix, after string, yield func(Object) bool) error
}

// Open opens s3://BUCKET/PREFIX, with what the environment says of it (see OpenS3),
// or a directory by its absolute path. It asks the bucket nothing: see Probe.
func Open(text string, getenv func(string) string) (*Bucket, error) {
	if IsS3(text) {
		s, err := OpenS3(text, getenv)
		if err != nil {
			return nil, err
		}
		return s.Bucket(), nil
	}
	return OpenDir(text)
}

// Bounds of what is tried again: it waits for 6 seconds in all.
const (
	tries    = 6
	waitOnce = 200 * time.Millisecond
	tryFor   = 2 * time.Minute // an object at half a megabyte a second
)

func newBucket(at driver) *Bucket { return &Bucket{at: at, tries: tries, wait: waitOnce} }

const sumSize = sha256.Size

// Put writes an object, in the place of one that is there.
func (b *Bucket) Put(ctx context.Context, name string, content []byte) error {
	stored, err := toStore(name, content)
	if err != nil {
		return err
	}
	return b.again(ctx, func(ctx context.Context) error { return b.at.put(ctx, name, stored, false) })
}

// Create writes an object, unless there is one of its name: ErrExists. Of several
// who create it at once one succeeds, on a bucket that Probe found good.
func (b *Bucket) Create(ctx context.Context, name string, content []byte) error {
	stored, err := toStore(name, content)
	if err != nil {
		return err
	}
	lost := false // an answer, so that the object that is there may be this one
	err = b.again(ctx, func(ctx context.Context) error {
		err := b.at.put(ctx, name, stored, true)
		lost = lost || errors.Is(err, ErrUnreachable)
		return err
	})
	if lost && errors.Is(err, ErrExists) {
		if there, e := b.Get(ctx, name); e == nil && bytes.Equal(there, content) {
			return nil
		}
	}
	return err
}

func toStore(name string, content []byte) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if len(content) > MaxObject {
		return nil, cay.Errorf(cay.Invalid, "the object %s has %d bytes, more than %d", name, len(content), MaxObject)
	}
	sum := sha256.Sum256(content)
	return append(sum[:], content...), nil
}

// Get reads an object, and compares it with its checksum: ErrDamaged, ErrMissing.
func (b *Bucket) Get(ctx context.Context, name string) ([]byte, error) {
	stored, err := b.read(ctx, name, 0, -1)
	if err != nil {
		return nil, err
	}
	if len(stored) < sumSize || sha256.Sum256(stored[sumSize:]) != [sumSize]byte(stored[:sumSize]) {
		return nil, cay.Wrap(cay.Internal, ErrDamaged, "the object %s is damaged: its checksum is of other bytes", name)
	}
	return stored[sumSize:], nil
}

// GetRange reads n bytes of an object's content. They are compared with nothing: the
// caller knows what they are. Invalid means that the content ends before.
func (b *Bucket) GetRange(ctx context.Context, name string, from, n int64) ([]byte, error) {
	if from < 0 || n <= 0 || n > MaxObject {
		return nil, cay.Errorf(cay.Invalid, "%d bytes from %d on are no range", n, from)
	}
	return b.read(ctx, name, from+sumSize, n)
}

func (b *Bucket) read(ctx context.Context, name string, from, n int64) (out []byte, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	err = b.again(ctx, func(ctx context.Context) error {
		in, err := b.at.get(ctx, name, from, n)
		if err != nil {
			return err
		}
		defer in.Close()
		most := int64(MaxObject + sumSize)
		if n >= 0 {
			most = n
		}
		out, err = io.ReadAll(io.LimitReader(in, most+1))
		var ours *cay.Error
		switch {
		case errors.As(err, &ours):
			return err
		case err != nil:
			return cay.Wrap(cay.Unavailable, errors.Join(ErrUnreachable, err), "the object %s broke off", name)
		case int64(len(out)) > most:
			return cay.Errorf(cay.Invalid, "the object %s has more than %d bytes", name, most)
		case int64(len(out)) < n:
			return pastEnd(name)
		}
		return nil
	})
	return out, err
}

func pastEnd(name string) error {
	return cay.Errorf(cay.Invalid, "the object %s ends before the range that was asked for", name)
}

// Remove removes an object; that it is gone already is no error.
func (b *Bucket) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return b.again(ctx, func(ctx context.Context) error { return b.at.remove(ctx, name) })
}

// List gives the objects whose names begin with a prefix, in the order of their
// names' bytes. Those that come or go meanwhile may be among them or not. After an
// error it ends.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		after, goesOn := "", true
		err := b.retry(ctx, func() error {
			return b.at.list(ctx, prefix, after, func(o Object) bool {
				after, o.Size = o.Name, o.Size-sumSize
				goesOn = yield(o, nil)
				return goesOn
			})
		})
		if err != nil && goesOn {
			yield(Object{}, err)
		}
	}
}

// Probe reports whether the bucket can be used: written, read, listed and written on
// a condition. It removes the object that it makes for that, below probe/.
func (b *Bucket) Probe(ctx context.Context) (err error) {
	name := "probe/" + strings.ToLower(string(cay.NewSnapshotID()))
	content := []byte(name)
	if err := b.Create(ctx, name, content); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Remove(context.WithoutCancel(ctx), name)) }()
	if there, err := b.Get(ctx, name); err != nil || !bytes.Equal(there, content) {
		return errors.Join(err, errNot(there, content))
	}
	found := false
	for o, err := range b.List(ctx, "probe/") {
		if err != nil {
			return err
		}
		found = found || o.Name == name && o.Size == int64(len(content))
	}
	if !found {
		return cay.Errorf(cay.Unsupported, "the bucket does not list what was written to it")
	}
	switch err := b.Create(ctx, name, []byte("another")); {
	case err == nil:
		return errConditional(nil)
	case !errors.Is(err, ErrExists):
		return err
	}
	return nil
}

func errNot(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	return cay.Wrap(cay.Internal, ErrDamaged, "the bucket does not return what was written to it")
}

func errConditional(cause error) error {
	return cay.Wrap(cay.Unsupported, errors.Join(ErrConditional, cause), "the bucket has no conditional writes (If-None-Match)").
		WithHint("use an S3 service that has them, as AWS, MinIO, Ceph, Garage and versitygw do")
}

// again does something, each time for a while, until the bucket has answered.
func (b *Bucket) again(ctx context.Context, f func(context.Context) error) error {
	return b.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, tryFor)
		defer cancel()
		return f(ctx)
	})
}

func (b *Bucket) retry(ctx context.Context, f func() error) error {
	for n := 1; ; n++ {
		err := f()
		if err == nil || !errors.Is(err, ErrUnreachable) || n >= b.tries {
			return err
		}
		pause := b.wait << (n - 1)
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// checkName holds names to what every kind of bucket keeps apart: lower-case
// letters, digits, '-', '_' and '.', in parts between slashes.
func checkName(name string) error {
	bad := name == "" || len(name) > 512
	for part := range strings.SplitSeq(name, "/") {
		bad = bad || part == "" || part[0] == '.' || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != ""
	}
	if bad {
		return cay.Errorf(cay.Invalid, "%.200q is no name of an object", name)
	}
	return nil
}
