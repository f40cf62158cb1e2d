package build

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// A step whose time is over fails with that reason, from the first party that
// notices.
func TestOvertime(t *testing.T) {
	over, broken := errors.New("it took too long"), errors.New("broken")
	ahead := connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	for name, tt := range map[string]struct {
		after     time.Duration
		cancelled bool
		err, want error
	}{
		"the agent first":  {after: time.Minute - time.Millisecond, err: ahead, want: over},
		"the server first": {after: time.Minute, err: context.DeadlineExceeded, want: over},
		"broken in time":   {after: time.Second, err: broken},
		"called off":       {after: time.Second, cancelled: true, err: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(t.Context())
				defer cancel()
				ctx, done := context.WithTimeoutCause(parent, time.Minute, over)
				defer done()
				time.Sleep(tt.after)
				if synctest.Wait(); tt.cancelled {
					cancel()
				}
				if got := overtime(ctx, tt.err); got != tt.want {
					t.Errorf("got %v, want %v", got, tt.want)
				}
			})
		})
	}
}
