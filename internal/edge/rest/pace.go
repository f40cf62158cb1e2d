package rest

import (
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	paceOver = time.Minute
	// paceAddresses bounds how many addresses are counted apart; what is more
	// is counted together.
	paceAddresses = 10_000
)

// pace counts what addresses ask without a credential, minute by minute. Its
// zero value is ready.
type pace struct {
	mu    sync.Mutex
	began time.Time
	n     map[string]int
}

// take refuses an address that asks for the same more often than it may in a
// minute.
func (p *pace) take(what, address string, most int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.n == nil || now.Sub(p.began) >= paceOver {
		p.began, p.n = now, map[string]int{}
	}
	key := what + " " + address
	if len(p.n) >= paceAddresses && p.n[key] == 0 {
		key = what
	}
	if p.n[key]++; p.n[key] > most {
		return cay.Errorf(cay.Exhausted, "%s: more than %d in a minute from one address", what, most).
			WithCode(cay.CodeLoginRate)
	}
	return nil
}
