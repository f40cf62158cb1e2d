package runsc

import (
	"context"
	"io"

	"github.com/cay-run/cay"
)

// Changes implements engine.Engine.
func (e *Engine) Changes(ctx context.Context, id cay.InstanceID) (io.ReadCloser, error) {
	return nil, cay.Errorf(cay.Unsupported, "the changed files of a sandbox cannot be read yet")
}
