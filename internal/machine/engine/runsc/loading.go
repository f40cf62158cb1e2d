package runsc

import (
	"context"
	"io"

	"github.com/cay-run/cay"
)

// LoadAll implements engine.Engine: every restore is eager.
func (e *Engine) LoadAll(_ context.Context, id cay.InstanceID) error {
	_, err := e.get(id)
	return err
}

// RecordWorkingSet implements engine.Engine.
func (e *Engine) RecordWorkingSet(_ context.Context, id cay.InstanceID, _ io.Writer) error {
	if _, err := e.get(id); err != nil {
		return err
	}
	return cay.Errorf(cay.Conflict, "instance %s was not restored by demand", id)
}
