package approvals

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// LinkRoute is where links that decide lead to, before the ids of the approval and
// of the webhook and the signature.
const LinkRoute = "/cay/v1/decide"

// Decide answers a team's approval. One of two decisions at once counts, and the
// other is told so.
func (a *Approvals) Decide(ctx context.Context, who cay.Caller, id cay.ApprovalID, d cay.Decision) (cay.Approval, error) {
	if err := who.May(cay.DecideApprovals); err != nil {
		return cay.Approval{}, err
	}
	x, err := a.store.Approval(ctx, who.Team, id)
	if err != nil {
		return x, known(err, id)
	}
	if err := a.apart(ctx, x, who.Origins()); err != nil {
		return x, err
	}
	return a.decide(ctx, who, who.Actor(), x, d)
}

func (a *Approvals) decide(ctx context.Context, who cay.Caller, by cay.Actor, x cay.Approval, d cay.Decision) (cay.Approval, error) {
	if seen(x).State != cay.ApprovalPending {
		return x, over(seen(x))
	}
	if err := d.Apply(&x, by, ledger.Now()); err != nil {
		return x, err
	}
	return x, a.end(ctx, who, x, cay.ReasonAsked)
}

// end records the end of an approval, and tells of it.
func (a *Approvals) end(ctx context.Context, who cay.Caller, x cay.Approval, reason string) error {
	err := a.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.EndApproval(ctx, x); err != nil {
			return err
		}
		return tx.AddEvents(ctx, decided(who, x, reason))
	})
	if cay.KindOf(err) == cay.Conflict {
		if now, failed := a.store.Approval(ctx, x.Team, x.ID); failed == nil {
			return over(seen(now))
		}
	}
	if err == nil {
		a.ledger.Wake(x.Team)
		a.wake(x.ID)
	}
	return err
}

// decided tells of the end of an approval, in the name of the party that decided.
func decided(who cay.Caller, x cay.Approval, reason string) cay.Event {
	e := ledger.NewEvent(who, cay.Sandbox{ID: x.Sandbox, Team: x.Team}, cay.ApprovalDecided, reason,
		"approval", string(x.ID), "kind", string(x.Kind), "title", x.Title, "subject", x.Subject, "state", string(x.State), "remember", string(x.Remember), "note", x.Note)
	if x.Decided.Kind != "" {
		e.Actor = x.Decided
	}
	return e
}

// over says what became of an approval.
func over(x cay.Approval) error {
	by := ""
	if x.Decided.Name != "" {
		by = " by " + x.Decided.Name
	}
	at := x.DecidedAt
	if at.IsZero() {
		at = x.ExpiresAt
	}
	return cay.Errorf(cay.Conflict, "the approval is %s%s since %s; that counts", x.State, by, at.UTC().Format(time.RFC3339)).WithCode(cay.CodeApprovalOver)
}

// apart refuses a credential of the party that asks: the one that asked, the one
// that made the sandbox, keys that go back to either or to the person behind it. A
// person may decide what their key asks.
func (a *Approvals) apart(ctx context.Context, x cay.Approval, by cay.Origins) error {
	origins := slices.Clone(x.Askers)
	if x.Sandbox != "" {
		s, err := a.living(ctx, x.Team, x.Sandbox)
		if cay.KindOf(err) == cay.NotFound {
			return cay.Wrap(cay.Conflict, err, "the sandbox %s is over, and with it the approval", x.Sandbox).WithCode(cay.CodeApprovalOver)
		}
		if err != nil {
			return err
		}
		made, err := a.originOf(ctx, x.Team, cay.Origins{Key: s.Key})
		if err != nil {
			return err
		}
		origins = append(origins, made)
	}
	for _, origin := range origins {
		same, err := a.sameOrigin(ctx, x.Team, by, origin)
		if err != nil {
			return err
		}
		if same {
			return cay.Errorf(cay.Denied, "the party that asks cannot decide").WithCode(cay.CodeApprovalOwn).
				WithHint("decide as a person, or with a key that goes back to another one")
		}
	}
	return nil
}

// decidedBy reports whether a yes came from one of some parties: it does not count for
// their own requests.
func (a *Approvals) decidedBy(ctx context.Context, x cay.Approval, askers []cay.Origins) (bool, error) {
	var by cay.Origins
	switch {
	case x.State != cay.ApprovalApproved:
		return false, nil
	case x.Decided.Kind == cay.ActorKey:
		by.Key = cay.KeyID(x.Decided.ID)
	case x.Decided.Kind == cay.ActorPerson:
		by.Person = cay.PersonID(x.Decided.ID)
	case x.Decided.Kind == cay.ActorLink:
		w, err := a.store.Webhook(ctx, x.Team, cay.WebhookID(x.Decided.ID))
		if err != nil && cay.KindOf(err) != cay.NotFound {
			return false, err
		}
		by = w.ChosenBy
	}
	for _, o := range askers {
		if same, err := a.sameOrigin(ctx, x.Team, by, o); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// originOf adds the person and the exchange behind a key.
func (a *Approvals) originOf(ctx context.Context, team cay.TeamID, o cay.Origins) (cay.Origins, error) {
	if o.Key == "" {
		return o, nil
	}
	k, err := a.store.Key(ctx, team, o.Key)
	if err != nil && cay.KindOf(err) != cay.NotFound { // one that is gone decides nothing
		return o, err
	}
	o.Person, o.Exchange = cmp.Or(o.Person, k.Person), cmp.Or(o.Exchange, k.Exchange)
	return o, nil
}

// sameOrigin reports whether a credential goes back to another one.
func (a *Approvals) sameOrigin(ctx context.Context, team cay.TeamID, by, origin cay.Origins) (bool, error) {
	switch {
	case origin == cay.Origins{} || by == cay.Origins{}: // the server, or its operator
		return false, nil
	case by.Key == "":
		return origin.Key == "" && by.Person == origin.Person, nil
	case by.Key == origin.Key:
		return true, nil
	}
	by, err := a.originOf(ctx, team, by)
	switch {
	case err != nil:
		return false, err
	case by.Person != "" && by.Person == origin.Person, by.Exchange != "" && by.Exchange == origin.Exchange:
		return true, nil
	}
	if origin.Key == "" {
		return false, nil
	}
	return a.descends(ctx, team, by.Key, origin.Key)
}

// descends reports whether a key was made by another one, over any others. Where
// one between them is gone, a key that is older than the other cannot have been.
func (a *Approvals) descends(ctx context.Context, team cay.TeamID, id, from cay.KeyID) (bool, error) {
	const longest = 100
	for range longest {
		k, err := a.store.Key(ctx, team, id)
		switch {
		case cay.KindOf(err) == cay.NotFound:
			return true, nil
		case err != nil:
			return false, err
		case k.CreatedBy == "" || k.CreatedBy == string(k.Person):
			return false, nil
		case k.CreatedBy == string(from):
			return true, nil
		}
		maker := cay.KeyID(k.CreatedBy)
		if _, err := a.store.Key(ctx, team, maker); cay.KindOf(err) == cay.NotFound {
			root, err := a.store.Key(ctx, team, from)
			if cay.KindOf(err) == cay.NotFound {
				return true, nil
			}
			return err == nil && !k.CreatedAt.Before(root.CreatedAt), err
		}
		id = maker
	}
	return true, nil
}

// linkText is what the signature of a link is of.
func linkText(id cay.ApprovalID, hook cay.WebhookID) string {
	return "decide approval\n" + string(id) + "\n" + string(hook)
}

// LinkFor returns the link that a webhook is sent with an approval; empty where it
// is not to have one: the approval is over, or the party that asks chose the
// webhook's address.
func (a *Approvals) LinkFor(ctx context.Context, w cay.Webhook, id cay.ApprovalID) (string, error) {
	if a.links == nil {
		return "", nil
	}
	x, err := a.store.Approval(ctx, w.Team, id)
	if err == nil && seen(x).State == cay.ApprovalPending {
		err = a.apart(ctx, x, w.ChosenBy)
	}
	switch kind := cay.KindOf(err); {
	case err == nil && seen(x).State != cay.ApprovalPending, kind == cay.NotFound, kind == cay.Denied, kind == cay.Conflict:
		return "", nil
	case err != nil:
		return "", err
	}
	return a.url + LinkRoute + "/" + url.PathEscape(string(x.ID)) + "/" + url.PathEscape(string(w.ID)) + "/" + a.links.Sign(linkText(x.ID, w.ID)), nil
}

// Link is what the holder of a link presents.
type Link struct {
	Approval  cay.ApprovalID
	Webhook   cay.WebhookID
	Signature string
}

// errLink is the answer for a link that this server did not make, and for one whose
// webhook is gone.
func errLink() error {
	return cay.Errorf(cay.NotFound, "the link opens nothing: it is not whole, or its webhook is gone or was changed")
}

// ByLink finds the approval of a link.
func (a *Approvals) ByLink(ctx context.Context, l Link) (cay.Approval, error) {
	x, _, err := a.byLink(ctx, l)
	return seen(x), err
}

func (a *Approvals) byLink(ctx context.Context, l Link) (cay.Approval, cay.Webhook, error) {
	if a.links == nil || !a.links.CheckSign(linkText(l.Approval, l.Webhook), l.Signature) {
		return cay.Approval{}, cay.Webhook{}, errLink()
	}
	x, err := a.store.ApprovalOf(ctx, l.Approval)
	var w cay.Webhook
	if err == nil {
		w, err = a.store.Webhook(ctx, x.Team, l.Webhook)
	}
	var team cay.Team
	if err == nil {
		team, err = a.store.Team(ctx, x.Team)
	}
	switch {
	case cay.KindOf(err) == cay.NotFound || err == nil && (!w.Decides() || !w.Enabled):
		err = errLink()
	case err == nil:
		err = team.Open()
	}
	return x, w, err
}

// DecideByLink answers the approval of a link in the name of its webhook.
func (a *Approvals) DecideByLink(ctx context.Context, l Link, from *cay.Origin, d cay.Decision) (cay.Approval, error) {
	x, w, err := a.byLink(ctx, l)
	if err == nil && seen(x).State == cay.ApprovalPending {
		err = a.apart(ctx, x, w.ChosenBy)
	}
	if err != nil {
		return x, err
	}
	who := cay.ForTeam(x.Team)
	who.From = from
	return a.decide(ctx, who, cay.Actor{Kind: cay.ActorLink, ID: string(w.ID), Name: w.Name}, x, d)
}
