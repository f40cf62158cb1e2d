package rest

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/logins"
)

// inspectRoute is the page of a sandbox on E2B's dashboard, which its command line
// prints the address of.
const inspectRoute = "/dashboard/inspect/sandbox/{sandboxID}"

// inspect leads to the page of a sandbox on the console.
func (s *server) inspect(w http.ResponseWriter, r *http.Request) {
	id := sandboxID(chi.URLParam(r, "sandboxID"))
	if !cay.ValidID(string(id)) {
		s.fail(w, r, cay.Errorf(cay.Invalid, "sandboxID: %.80q has not the form of an id", string(id)))
		return
	}
	http.Redirect(w, r, s.console()+"/sandboxes/"+string(id), http.StatusFound)
}

// maxOpened is how many sessions of the console an address may ask for in a
// minute.
const maxOpened = 20

// CreateConsoleLink makes a link that opens the console as the caller.
func (o own) CreateConsoleLink(ctx context.Context, _ cayv1.CreateConsoleLinkRequestObject) (cayv1.CreateConsoleLinkResponseObject, error) {
	if o.console == nil {
		return nil, cay.Errorf(cay.Unsupported, "this server has no console")
	}
	code, ends, err := o.logins.Link(callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return cayv1.CreateConsoleLink201JSONResponse{URL: o.console() + "/login#" + code, Code: code, ExpiresAt: ends.UTC()}, nil
}

// OpenConsoleSession trades the code of a link, or a key, for a session.
func (o own) OpenConsoleSession(ctx context.Context, r cayv1.OpenConsoleSessionRequestObject) (cayv1.OpenConsoleSessionResponseObject, error) {
	from, err := o.paced(ctx, "console logins", maxOpened)
	if err != nil {
		return nil, err
	}
	got, err := o.openConsole(ctx, value(r.Body.Code, ""), value(r.Body.Key, ""), from)
	if err != nil {
		o.audit.Count(audit.Seen{
			Who: cay.Caller{From: from}, Action: "session.refused", Target: "console", Outcome: cay.OutcomeFailed, Details: []string{"error", codeOf(err)},
		})
		return nil, err
	}
	return cayv1.OpenConsoleSession201JSONResponse{Token: got.Token, Session: wireSession(got.Session, got.Session.ID)}, nil
}

func (o own) openConsole(ctx context.Context, code, key string, from *cay.Origin) (got logins.Opened, err error) {
	if (code == "") == (key == "") {
		return got, cay.Errorf(cay.Invalid, "one of code and key is required, and not both")
	}
	if code != "" {
		return o.logins.Open(ctx, code, from)
	}
	who, err := o.auth.Caller(ctx, auth.Presented{Key: key})
	if err != nil {
		return got, err
	}
	return o.logins.OpenAs(ctx, who, from, "key")
}

// GetCaller tells the party that asks of itself.
func (o own) GetCaller(ctx context.Context, _ cayv1.GetCallerRequestObject) (cayv1.GetCallerResponseObject, error) {
	who := callerOf(ctx)
	out := cayv1.GetCaller200JSONResponse{
		Kind: cayv1.CallerKindOperator, Name: pointer(who.Name), TeamID: pointer(string(who.Team)),
		Scopes: append([]string{}, who.Scopes.Names()...), Session: pointer(string(who.Session)),
	}
	switch {
	case who.Person != "":
		me, err := o.logins.Me(ctx, who)
		if err != nil {
			return nil, err
		}
		out.Kind, out.ID, out.Name = cayv1.CallerKindPerson, pointer(string(who.Person)), pointer(me.Person.Email)
	case who.Key != "":
		out.Kind, out.ID = cayv1.CallerKindKey, pointer(string(who.Key))
	}
	if who.Team == "" {
		return out, nil
	}
	names, err := o.fleet.TeamNames(ctx)
	out.TeamName = pointer(names[who.Team])
	return out, err
}

// AccessSandbox gives the tokens of a sandbox, without a change of it.
func (o own) AccessSandbox(ctx context.Context, r cayv1.AccessSandboxRequestObject) (cayv1.AccessSandboxResponseObject, error) {
	who := callerOf(ctx)
	if err := who.May(cay.ExecSandboxes); err != nil {
		return nil, err
	}
	b, err := o.sandboxes.Get(ctx, cay.ForTeam(who.Team), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	box, err := o.sandbox(ctx, b)
	if err != nil {
		return nil, err
	}
	return cayv1.AccessSandbox200JSONResponse{
		State: wireState(b.State), EnvdAccessToken: box.EnvdAccessToken, TrafficAccessToken: box.TrafficAccessToken,
	}, nil
}
