package rest

import (
	"context"
	"html/template"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/logins"
	"github.com/cay-run/cay/internal/edge/rates"
)

const (
	loginRoute    = "/cay/v1/login"
	callbackRoute = loginRoute + "/callback"
	answerRoute   = loginRoute + "/answer"
	// loginCookie binds a login to a browser. It opens nothing.
	loginCookie = "cay_login"
	// maxBegun is how many logins an address may begin in a minute.
	maxBegun = 30
)

// CallbackRoute is where a login provider sends browsers back to.
const CallbackRoute = callbackRoute

// mountLogin adds the pages that a person's browser sees: on its way to the
// provider, back from it, and the question whether the login is theirs.
func (s *server) mountLogin(r chi.Router) {
	r.Get(loginRoute, s.sendBrowser)
	r.Get(callbackRoute, s.takeBrowser)
	r.With(http.NewCrossOriginProtection().Handler).Post(answerRoute, s.answerBrowser)
}

// sendBrowser sends a browser to the provider.
func (s *server) sendBrowser(w http.ResponseWriter, r *http.Request) {
	address, browser, err := s.logins.Send(r.Context(), r.URL.Query().Get("id"))
	if err != nil {
		s.failPage(w, r, err)
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: loginCookie, Value: browser, Path: loginRoute, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: strings.HasPrefix(s.url, "https://"), MaxAge: 600,
	})
	guardPage(w)
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// takeBrowser takes a browser that comes back from the provider.
func (s *server) takeBrowser(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	page, ask, err := s.logins.Arrive(r.Context(), logins.Return{
		State: q.Get("state"), Code: q.Get("code"), Error: q.Get("error"), Issuer: q.Get("iss"), Browser: browserOf(r),
	})
	switch {
	case err != nil:
		s.failPage(w, r, err)
	case ask != nil:
		showPage(w, http.StatusOK, questionPage, ask)
	default:
		guardPage(w)
		http.Redirect(w, r, page, http.StatusSeeOther)
	}
}

// answerBrowser takes the answer to the question.
func (s *server) answerBrowser(w http.ResponseWriter, r *http.Request) {
	yes := r.PostFormValue("answer") == "yes"
	if err := s.logins.Answer(r.PostFormValue("proof"), browserOf(r), yes); err != nil {
		s.failPage(w, r, err)
		return
	}
	text := "You are logged in. Go back to the terminal; this page may be closed."
	if !yes {
		text = "The login was refused. It opened no session."
	}
	showPage(w, http.StatusOK, textPage, text)
}

func browserOf(r *http.Request) string {
	c, err := r.Cookie(loginCookie)
	if err != nil {
		return ""
	}
	return c.Value
}

var (
	questionPage = template.Must(template.New("question").Parse(pageHead + `<h1>Log in to Cay?</h1>
<p>A program at {{if .Address}}<b>{{.Address}}</b>{{else}}an unknown address{{end}} wants to act as <b>{{.Email}}</b>. It shows this code:</p>
<p class="code">{{.Code}}</p>
<p>Go on only if you have begun this login yourself, and the terminal shows the same code.</p>
<form method="post" action="` + answerRoute + `"><input type="hidden" name="proof" value="{{.Proof}}">
<button name="answer" value="yes">Yes, log in</button> <button name="answer" value="no">No</button></form>`))
	textPage = template.Must(template.New("text").Parse(pageHead + `<h1>Cay</h1><p>{{.}}</p>`))
)

const pageHead = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Cay</title>
<style>body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}.code{font:2rem monospace;letter-spacing:.1em}button{font:inherit;padding:.5rem 1rem}</style>`

// guardPage keeps a page out of frames, logs of others and caches.
func guardPage(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}

func showPage(w http.ResponseWriter, status int, page *template.Template, data any) {
	guardPage(w)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = page.Execute(w, data) // the browser may be gone
}

// failPage tells a person of an error.
func (s *server) failPage(w http.ResponseWriter, r *http.Request, err error) {
	e := wireError(err)
	if e.Code >= 500 {
		s.log.ErrorContext(r.Context(), "a page failed", "err", err)
	}
	rates.TellRetry(w.Header(), rates.RetryOf(err))
	showPage(w, int(e.Code), textPage, e.Message)
}

// BeginLogin begins a login.
func (o own) BeginLogin(ctx context.Context, r cayv1.BeginLoginRequestObject) (cayv1.BeginLoginResponseObject, error) {
	from, err := o.paced(ctx, "logins", maxBegun)
	if err != nil {
		return nil, err
	}
	at, err := o.logins.Begin(r.Body.Challenge, value(r.Body.Return, ""), from)
	if err != nil {
		return nil, err
	}
	return cayv1.BeginLogin201JSONResponse{
		LoginID: at.ID, URL: o.url + loginRoute + "?id=" + at.ID, Code: at.Code, ExpiresAt: at.Ends.UTC(),
	}, nil
}

// RedeemLogin gives the session of a login.
func (o own) RedeemLogin(ctx context.Context, r cayv1.RedeemLoginRequestObject) (cayv1.RedeemLoginResponseObject, error) {
	got, err := o.logins.Redeem(ctx, r.LoginID, r.Body.Verifier, value(r.Body.Ticket, ""))
	switch {
	case err != nil:
		return nil, err
	case got == nil:
		return cayv1.RedeemLogin202Response{}, nil
	}
	return cayv1.RedeemLogin201JSONResponse{Token: got.Token, Session: wireSession(got.Session, got.Session.ID), Person: wireMe(got.Me)}, nil
}

// LogOut ends the session of the request.
func (o own) LogOut(ctx context.Context, _ cayv1.LogOutRequestObject) (cayv1.LogOutResponseObject, error) {
	return cayv1.LogOut204Response{}, o.logins.Logout(ctx, callerOf(ctx))
}

// GetMe tells a person of themselves.
func (o own) GetMe(ctx context.Context, _ cayv1.GetMeRequestObject) (cayv1.GetMeResponseObject, error) {
	me, err := o.logins.Me(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return cayv1.GetMe200JSONResponse(wireMe(me)), nil
}

// ListSessions lists a person's own sessions.
func (o own) ListSessions(ctx context.Context, _ cayv1.ListSessionsRequestObject) (cayv1.ListSessionsResponseObject, error) {
	list, err := o.wireSessions(ctx, "")
	return cayv1.ListSessions200JSONResponse(list), err
}

// EndSession ends a session of a person's own.
func (o own) EndSession(ctx context.Context, r cayv1.EndSessionRequestObject) (cayv1.EndSessionResponseObject, error) {
	return cayv1.EndSession204Response{}, o.logins.EndSession(ctx, callerOf(ctx), "", cay.SessionID(r.SessionID))
}

// EndSessions ends a person's other sessions.
func (o own) EndSessions(ctx context.Context, _ cayv1.EndSessionsRequestObject) (cayv1.EndSessionsResponseObject, error) {
	return cayv1.EndSessions204Response{}, o.logins.EndSessions(ctx, callerOf(ctx), "")
}

// AdminListSessions lists the sessions of any person.
func (o own) AdminListSessions(ctx context.Context, r cayv1.AdminListSessionsRequestObject) (cayv1.AdminListSessionsResponseObject, error) {
	list, err := o.wireSessions(ctx, cay.PersonID(r.PersonID))
	return cayv1.AdminListSessions200JSONResponse(list), err
}

// AdminEndSessions ends all sessions of any person.
func (o own) AdminEndSessions(ctx context.Context, r cayv1.AdminEndSessionsRequestObject) (cayv1.AdminEndSessionsResponseObject, error) {
	return cayv1.AdminEndSessions204Response{}, o.logins.EndSessions(ctx, callerOf(ctx), cay.PersonID(r.PersonID))
}

// AdminEndSession ends a session of any person.
func (o own) AdminEndSession(ctx context.Context, r cayv1.AdminEndSessionRequestObject) (cayv1.AdminEndSessionResponseObject, error) {
	return cayv1.AdminEndSession204Response{}, o.logins.EndSession(ctx, callerOf(ctx), cay.PersonID(r.PersonID), cay.SessionID(r.SessionID))
}

func (o own) wireSessions(ctx context.Context, person cay.PersonID) ([]cayv1.Session, error) {
	who := callerOf(ctx)
	list, err := o.logins.Sessions(ctx, who, person)
	out := []cayv1.Session{}
	for _, x := range list {
		out = append(out, wireSession(x, who.Session))
	}
	return out, err
}

func wireSession(x cay.Session, current cay.SessionID) cayv1.Session {
	return cayv1.Session{
		ID: string(x.ID), CreatedAt: x.CreatedAt, UsedAt: x.UsedAt, ExpiresAt: x.Ends(),
		Address: pointer(x.Address), Agent: pointer(x.Agent), Current: pointer(x.ID == current),
	}
}

func wireMe(me logins.Me) cayv1.Me {
	out := cayv1.Me{ID: string(me.Person.ID), Email: me.Person.Email, Name: pointer(me.Person.Name)}
	for _, r := range me.In {
		out.Teams = append(out.Teams, struct {
			Disabled *bool  `json:"disabled,omitempty"`
			ID       string `json:"id"`
			Name     string `json:"name"`
			Role     string `json:"role"`
		}{pointer(!r.Team.DisabledAt.IsZero()), string(r.Team.ID), r.Team.Name, string(r.Role)})
	}
	return out
}
