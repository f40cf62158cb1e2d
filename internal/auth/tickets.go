package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	// ticketWithin is how long a ticket opens a connection.
	ticketWithin = 30 * time.Second
	// maxTickets bounds the tickets of a team that are not used yet: of more, the
	// oldest goes. They are kept in memory alone: a restart ends them.
	maxTickets = 200
)

// Ticket is what a connection may do that cannot carry its caller's credential, as
// websockets of browsers cannot.
type Ticket struct {
	Who     cay.Caller
	Purpose string
	Sandbox cay.SandboxID
	Port    int // where the purpose is one

	ends time.Time
}

// tickets are those that are not used yet, by the hash of their text.
type tickets struct {
	mu  sync.Mutex
	all map[[32]byte]Ticket
}

// IssueTicket returns the text of 128 bits that RedeemTicket trades once, within 30 seconds, for
// the ticket.
func (a *Auth) IssueTicket(t Ticket) (text string, ends time.Time) {
	a.tickets.mu.Lock()
	defer a.tickets.mu.Unlock()
	if a.tickets.all == nil {
		a.tickets.all = map[[32]byte]Ticket{}
	}
	now := time.Now()
	n, oldest := 0, [32]byte{}
	for hash, old := range a.tickets.all {
		switch {
		case !now.Before(old.ends):
			delete(a.tickets.all, hash)
		case old.Who.Team == t.Who.Team:
			if n++; n == 1 || old.ends.Before(a.tickets.all[oldest].ends) {
				oldest = hash
			}
		}
	}
	if n >= maxTickets {
		delete(a.tickets.all, oldest)
	}
	text, t.ends = rand.Text(), now.Add(ticketWithin)
	a.tickets.all[sha256.Sum256([]byte(text))] = t
	return text, t.ends
}

var errTicket = cay.Errorf(cay.Unauthenticated, "the ticket was used, is older than 30 seconds, or is for something else").
	WithHint("ask for another: POST /cay/v1/tickets")

// RedeemTicket trades a ticket for what it was made for. It is gone then, also when it is
// not for that; and it opens nothing when its caller's credential has ended meanwhile.
func (a *Auth) RedeemTicket(ctx context.Context, text string, purposes []string, sandbox cay.SandboxID, port int) (Ticket, error) {
	hash := sha256.Sum256([]byte(text))
	a.tickets.mu.Lock()
	t, found := a.tickets.all[hash]
	delete(a.tickets.all, hash)
	a.tickets.mu.Unlock()
	if !found || !time.Now().Before(t.ends) || !slices.Contains(purposes, t.Purpose) || t.Sandbox != sandbox || t.Port != port || !a.Still(ctx, t.Who) {
		return Ticket{}, errTicket
	}
	return t, nil
}
