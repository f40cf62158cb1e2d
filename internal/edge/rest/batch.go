package rest

import (
	"context"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/edge/rates"
)

const (
	maxBatch    = 100
	batchAtOnce = 8

	actionPause  = "pause"
	actionResume = "resume"
	actionKill   = "kill"
)

// CountSandboxes counts a team's sandboxes that a list with the same filter has.
func (o own) CountSandboxes(ctx context.Context, r cayv1.CountSandboxesRequestObject) (cayv1.CountSandboxesResponseObject, error) {
	filter, err := parseMetadata(value(r.Params.Metadata, ""))
	if err != nil {
		return nil, err
	}
	n, err := o.fleet.Count(ctx, callerOf(ctx), fleet.Query{
		States: []cay.State{cay.Running, cay.Pausing, cay.Paused, cay.Resuming}, Metadata: filter, Template: value(r.Params.Template, ""),
	})
	if err != nil {
		return nil, err
	}
	return cayv1.CountSandboxes200JSONResponse{Running: n[cay.Running], Paused: n[cay.Pausing] + n[cay.Paused] + n[cay.Resuming]}, nil
}

// ActOnSandboxes does one thing to many sandboxes, some at a time. Each has an
// outcome of its own: one that fails stops no other.
func (o own) ActOnSandboxes(ctx context.Context, r cayv1.ActOnSandboxesRequestObject) (cayv1.ActOnSandboxesResponseObject, error) {
	ids, err := batchIDs(r.Body.SandboxIDs)
	if err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	if err := who.May(cay.WriteSandboxes); err != nil {
		return nil, err
	}
	act, action, err := o.batchAction(r.Body)
	if err != nil {
		return nil, err
	}
	if r.Body.Action != actionResume { // a resume pays for itself
		o.owe(ctx, rates.Write, len(ids)-1)
	}
	out := make([]cayv1.SandboxOutcome, len(ids))
	var wg sync.WaitGroup
	turns := make(chan struct{}, batchAtOnce)
	for i, id := range ids {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			out[i].SandboxID = string(id)
			if ctx.Err() != nil { // the client is gone: nothing more begins, and nothing is told
				return
			}
			err := act(ctx, id)
			if err == nil {
				return
			}
			e := wireError(err)
			out[i].Error = &cayv1.Error{Code: e.Code, Message: e.Message, ErrorCode: e.ErrorCode}
			if e.Code >= 500 {
				o.log.ErrorContext(ctx, "an action on a sandbox failed", "action", action, "sandbox", id, "err", err)
			}
			o.audit.Count(audit.Seen{
				Who: who, Action: action, Target: string(id), Outcome: cay.OutcomeFailed,
				Details: []string{"operation", "actOnSandboxes", "error", codeOf(err)},
			})
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return cayv1.ActOnSandboxes200JSONResponse{Outcomes: out}, nil
}

// batchIDs are the sandboxes of a batch, each once.
func batchIDs(names []string) ([]cay.SandboxID, error) {
	if len(names) == 0 || len(names) > maxBatch {
		return nil, cay.Errorf(cay.Invalid, "sandboxIDs: must have 1 to %d ids", maxBatch)
	}
	seen := make(map[cay.SandboxID]bool, len(names))
	ids := make([]cay.SandboxID, 0, len(names))
	for _, name := range names {
		id := sandboxID(name)
		switch {
		case !cay.ValidID(string(id)):
			return nil, cay.Errorf(cay.Invalid, "sandboxIDs: %.80q is no id of a sandbox", name)
		case seen[id]:
			return nil, cay.Errorf(cay.Invalid, "sandboxIDs: has %s twice", id)
		}
		seen[id] = true
		ids = append(ids, id)
	}
	return ids, nil
}

// batchAction is what a batch does to each of its sandboxes, and its name in the
// audit log.
func (o own) batchAction(b *cayv1.ActOnSandboxesJSONRequestBody) (act func(context.Context, cay.SandboxID) error, action string, err error) {
	if b.Action != actionResume && b.Timeout != nil {
		return nil, "", cay.Errorf(cay.Invalid, "timeout: is for resume alone")
	}
	switch b.Action {
	case actionKill:
		return func(ctx context.Context, id cay.SandboxID) error {
			return o.sandboxes.Kill(ctx, callerOf(ctx), id)
		}, string(cay.SandboxKilled), nil
	case actionPause:
		return func(ctx context.Context, id cay.SandboxID) error {
			return o.sandboxes.Pause(ctx, callerOf(ctx), id, cay.MemorySnapshot, false)
		}, string(cay.SandboxPaused), nil
	case actionResume:
		timeout := seconds(value(b.Timeout, defaultTimeoutV2))
		return func(ctx context.Context, id cay.SandboxID) error {
			if err := o.payResume(ctx, id); err != nil {
				return err
			}
			_, err := o.sandboxes.Resume(ctx, callerOf(ctx), id, timeout, "", true)
			return err
		}, string(cay.SandboxResumed), nil
	}
	return nil, "", cay.Errorf(cay.Invalid, "action: must be pause, resume or kill")
}
