package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/cache"
)

// bucket writes, reads and lists where the settings say that copies go.
func bucket(ctx context.Context, h host) Check {
	at := h.cfg.Bucket.Bucket
	if at == "" {
		return ok("snapshots are in the data directory alone")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := blob.Open(at, os.Getenv)
	if err == nil {
		err = b.Probe(ctx)
	}
	if err == nil {
		return ok("the bucket can keep copies of snapshots")
	}
	hint := "check CAY_BUCKET, and AWS_ENDPOINT_URL_S3"
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Hint != "" {
		hint = ours.Hint
	}
	return fail(err.Error(), hint)
}

// cached says how much of the disk what the bucket has too may take. The state of it only a
// server knows.
func cached(_ context.Context, h host) Check {
	if h.cfg.Bucket.Bucket == "" {
		return ok("none: without a bucket nothing is evicted")
	}
	return ok(h.cfg.Bucket.Cache + " of the disk at most for what the bucket has too (CAY_CACHE)")
}

// holds is the check of a cache with what a server says of it.
func holds(name string, c cache.State) Check {
	detail := fmt.Sprintf("%s of up to %s (CAY_CACHE): %s can be evicted, %s are in use, %s of %d snapshots are not copied yet; the bucket alone has %d",
		gib(uint64(c.Bytes)), gib(uint64(c.Limit)), gib(uint64(c.Evictable)), gib(uint64(c.Used)), gib(uint64(c.UncopiedBytes)), c.Uncopied, c.Evicted)
	out := ok(detail)
	switch {
	case c.BucketIsAway:
		out = warn(detail+"; the bucket does not answer, and nothing is evicted", "see the row of the bucket")
	case c.CopiesFail != "":
		out = warn(detail+"; copies fail: "+c.CopiesFail, "until they get on, what is not copied is on this machine alone")
	case c.Bytes > c.Limit && c.UncopiedBytes > 0:
		out = warn(detail, "what is not copied stays: see the server's log for what keeps the copies")
	case c.Bytes > c.Limit:
		out = warn(detail, "what is in use stays: give CAY_CACHE more, or the machine fewer sandboxes")
	}
	out.Name = name
	return out
}
