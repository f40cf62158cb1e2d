package approvals

import (
	"context"
	"time"

	"github.com/cay-run/cay"
)

// HeldWithin is how long what a sandbox or its client wants is held for a decision.
// It is less than egress, and the SDKs of clients, wait for an answer.
const HeldWithin = 50 * time.Second

// MayStart returns why a command or code may not start in a sandbox, of which its id,
// team and patterns count. Where it is asked about, it waits for the decision for a
// while; a yes to one time is for one start. The parties that ask for it are those that
// were given the sandbox's token, where none is named.
func (a *Approvals) MayStart(ctx context.Context, box cay.Sandbox, what cay.Start, by ...cay.Origins) error {
	if !what.IsAsked(box.AskCommands) {
		return nil
	}
	shown := what.Shown()
	if len(shown) > cay.MaxStartShown {
		return cay.Errorf(cay.Denied, "the command was not started: a person is asked about it, and it is too long to be shown: %d bytes, at most %d", len(shown), cay.MaxStartShown).
			WithCode(cay.CodeCommandDenied).WithHint("write it to a file, and run that")
	}
	askers, err := a.askers(ctx, box, by)
	if err != nil {
		return err
	}
	x, err := a.Hold(ctx, box.Team, Question{
		Sandbox: box.ID, Kind: cay.CommandApproval, Subject: what.Subject(), Title: what.Title(), Body: shown, Each: true, Askers: askers,
	}, HeldWithin)
	switch {
	case err != nil || x.State == cay.ApprovalApproved:
		return err
	case x.State == cay.ApprovalPending:
		return cay.Errorf(cay.Denied, "the command was not started: approval %s waits for a decision", x.ID).
			WithCode(cay.CodeCommandWaits).WithHint("start it again once that is decided")
	case x.Note != "" && x.State == cay.ApprovalDenied:
		return cay.Errorf(cay.Denied, "the command was not started: approval %s is denied: %s", x.ID, x.Note).WithCode(cay.CodeCommandDenied)
	}
	return cay.Errorf(cay.Denied, "the command was not started: approval %s is %s", x.ID, x.State).WithCode(cay.CodeCommandDenied)
}

// askers are the parties that ask for a start in a sandbox, with what is behind them.
func (a *Approvals) askers(ctx context.Context, box cay.Sandbox, by []cay.Origins) (out []cay.Origins, err error) {
	if len(by) == 0 {
		if by, err = a.store.TokenHolders(ctx, box.ID); err != nil {
			return nil, err
		}
	}
	for _, o := range by {
		if o, err = a.originOf(ctx, box.Team, o); err != nil {
			return nil, err
		}
		if o != (cay.Origins{}) { // the operator
			out = append(out, o)
		}
	}
	return out, nil
}
