package rest

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/edge/rates"
)

// classes are the operations whose class does not follow from their method. An
// operation that goes on, a stream of events or a connection to a port, is one
// request: the one that opens it. An upload by a signed link carries no key and
// is none: its link was asked for.
var classes = map[string]rates.Class{
	"GET /health":                                  rates.Free,
	"POST /sandboxes":                              rates.Create,
	"POST /v2/sandboxes":                           rates.Create,
	"POST /sandboxes/{sandboxID}/resume":           rates.Create,
	"POST /sandboxes/{sandboxID}/fork":             rates.Create,
	"POST /cay/v1/checkpoints/{checkpointID}/fork": rates.Create,
}

// ClassOf returns the class of an operation, by its path in the contract.
func ClassOf(method, path string) rates.Class {
	if class, ok := classes[method+" "+path]; ok {
		return class
	}
	if method == http.MethodGet || method == http.MethodHead {
		return rates.Read
	}
	return rates.Write
}

// limitRate refuses requests of a team that are too many. It comes after the
// check of the key, and before anything else of a request is looked at.
// Administrators have no rate: they must be able to raise one.
func (s *server) limitRate(next http.Handler) http.Handler {
	if s.rates == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := callerOf(r.Context())
		if who.Team == "" || who.Scopes&cay.Admin != 0 {
			next.ServeHTTP(w, r)
			return
		}
		class := ClassOf(r.Method, chi.RouteContext(r.Context()).RoutePattern())
		state := s.rates.Take(who.Team, class)
		state.Tell(w.Header())
		if !state.Allowed {
			s.audit.Count(audit.Seen{Who: who, Action: audit.RateRefused, Target: class.String(), Outcome: cay.OutcomeFailed})
			s.fail(w, r, state.Refusal())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// payResume takes the token of a create for a request of another class that is
// about to resume a sandbox.
func (s *server) payResume(ctx context.Context, id cay.SandboxID) error {
	who := callerOf(ctx)
	if s.rates == nil || who.Scopes&cay.Admin != 0 {
		return nil
	}
	box, err := s.sandboxes.Get(ctx, cay.ForTeam(who.Team), id)
	if err != nil || box.State != cay.Paused { // the use case says what is wrong
		return nil
	}
	if state := s.rates.Take(who.Team, rates.Create); !state.Allowed {
		return state.Refusal()
	}
	return nil
}

// oweCreates takes the tokens of sandboxes that a request made besides its first.
func (s *server) oweCreates(ctx context.Context, more int) { s.owe(ctx, rates.Create, more) }

// owe takes tokens for what a request does besides itself.
func (s *server) owe(ctx context.Context, class rates.Class, more int) {
	if who := callerOf(ctx); s.rates != nil && who.Scopes&cay.Admin == 0 {
		s.rates.Owe(who.Team, class, more)
	}
}
