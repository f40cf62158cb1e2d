package doctor

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
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
