package rest

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/coder/websocket"
	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/edge/doors"
)

// The purposes of tickets.
const (
	forDesktop = "desktop"
	forView    = "desktop.view"
	forPort    = "port"
)

const (
	// subprotocol is what websockets here speak; a ticket stands beside it, because a
	// browser sends no other header of a page's. Neither address nor log has it.
	subprotocol  = "cay"
	ticketPrefix = "ticket."
)

// ticketed are the routes that take tickets, with their purposes.
var ticketed = map[string][]string{
	"/cay/v1/sandboxes/{sandboxID}/desktop":      {forDesktop, forView},
	"/cay/v1/sandboxes/{sandboxID}/ports/{port}": {forPort},
}

// CreateTicket makes a ticket for a websocket of the caller's.
func (o own) CreateTicket(ctx context.Context, r cayv1.CreateTicketRequestObject) (cayv1.CreateTicketResponseObject, error) {
	who := callerOf(ctx)
	if err := who.May(cay.ExecSandboxes); err != nil {
		return nil, err
	}
	port := int(value(r.Body.Port, 0))
	switch r.Body.Purpose {
	case forDesktop, forView:
		if port != 0 {
			return nil, cay.Errorf(cay.Invalid, "port: is of the purpose port alone")
		}
	case forPort:
		if err := doors.Closed(port); err != nil {
			return nil, err
		}
	default:
		return nil, cay.Errorf(cay.Invalid, "purpose: must be %s, %s or %s", forDesktop, forView, forPort)
	}
	b, err := o.sandboxes.Get(ctx, cay.ForTeam(who.Team), sandboxID(r.Body.SandboxID))
	if err != nil {
		return nil, err
	}
	text, ends := o.auth.IssueTicket(auth.Ticket{Who: who, Purpose: r.Body.Purpose, Sandbox: b.ID, Port: port})
	return cayv1.CreateTicket201JSONResponse{Ticket: text, ExpiresAt: ends.UTC()}, nil
}

// asked is the request for a websocket, and the purpose of its ticket, if it has one:
// generated code gives a handler only the request's context.
type asked struct {
	r       *http.Request
	purpose string
}

type socketKey struct{}

// socketOf returns the request for a websocket; r is nil for another.
func socketOf(ctx context.Context) asked {
	a, _ := ctx.Value(socketKey{}).(asked)
	return a
}

// isWebsocket reports whether a request asks for a websocket.
func isWebsocket(r *http.Request) bool {
	return r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// callerAt is the party on whose behalf a request is: that of its credential, or of
// its ticket.
func (s *server) callerAt(r *http.Request, p auth.Presented) (who cay.Caller, purpose string, err error) {
	ticket := ticketOf(r)
	purposes := ticketed[chi.RouteContext(r.Context()).RoutePattern()]
	if ticket == "" || len(purposes) == 0 {
		who, err = s.auth.Caller(r.Context(), p)
		return who, "", err
	}
	port, _ := strconv.Atoi(chi.URLParam(r, "port")) // one that is none is of no ticket
	t, err := s.auth.RedeemTicket(r.Context(), ticket, purposes, sandboxID(chi.URLParam(r, "sandboxID")), port)
	return t.Who, t.Purpose, err
}

// ticketOf is the ticket of a request for a websocket, if it has one.
func ticketOf(r *http.Request) string {
	if !isWebsocket(r) {
		return ""
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for item := range strings.SplitSeq(line, ",") {
			if text, ok := strings.CutPrefix(strings.TrimSpace(item), ticketPrefix); ok {
				return text
			}
		}
	}
	return ""
}

// accept makes a request a websocket. A page of another host is refused, whatever it
// brings.
func accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	return websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, CompressionMode: websocket.CompressionDisabled})
}

// portSocket is the answer of ConnectPort to a websocket.
type portSocket struct {
	at    asked
	serve func(net.Conn) // to its end
	drop  func()         // in its stead
}

// VisitConnectPortResponse joins.
func (p portSocket) VisitConnectPortResponse(w http.ResponseWriter) error {
	c, err := accept(w, p.at.r)
	if err != nil { // it has been answered
		p.drop()
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.serve(websocket.NetConn(ctx, c, websocket.MessageBinary))
	return nil
}
