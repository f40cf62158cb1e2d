package rest

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/shares"
)

const (
	paceOver = time.Minute
	// paceCounters is how many counters there are in each of two rows.
	paceCounters = 1 << 16

	// A stranger has a network of IPv6, and sends from any address of it. Sites have
	// many networks, which together send siteNetworks times as much.
	networkBits  = 64
	siteBits     = 48
	siteNetworks = 16
)

// pace counts what networks send without a credential, minute by minute, in memory of one
// size: a network has a counter in each of two rows, by a hash that no stranger knows, and
// the lower one counts. Others may share one of them, hardly both. Its zero value is ready.
type pace struct {
	mu    sync.Mutex
	began time.Time
	seeds [2]maphash.Seed
	rows  [2][]uint32
}

// take refuses a network that sends more of a kind than it may in a minute.
func (p *pace) take(what, address string, most int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.rows[0] == nil || now.Sub(p.began) >= paceOver {
		p.began = now
		for i := range p.rows {
			p.seeds[i], p.rows[i] = maphash.MakeSeed(), make([]uint32, paceCounters)
		}
	}
	network, site := shares.Network(address, networkBits), shares.Network(address, siteBits)
	if p.count(what+" "+network) > most || site != network && p.count(what+" "+site) > most*siteNetworks {
		return cay.Errorf(cay.Exhausted, "%s: more than %d in a minute from one network", what, most).
			WithCode(cay.CodeLoginRate)
	}
	return nil
}

// count counts one more of a key and returns how many there were. The caller holds the lock.
func (p *pace) count(key string) int {
	lowest := uint32(1<<32 - 1)
	for i := range p.rows {
		c := &p.rows[i][maphash.String(p.seeds[i], key)%paceCounters]
		*c++
		lowest = min(lowest, *c)
	}
	return int(lowest)
}
